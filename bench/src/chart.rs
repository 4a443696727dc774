//! The picture: bandwidth by message size, and latency, rdmesh beside the others.

use crate::copy::size_name;
use crate::results::Results;
use crate::{SIZES, copy, device, pingpong, tcp, ucx};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

type Outcome = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 1100;
const HEIGHT: u32 = 460;
const FONT: &str = "sans-serif";
/// Columns to the right of the curves, for the legend.
const ROOM: usize = 2;

/// Draws the results into the file `path`.
pub(crate) fn draw(path: &Path, results: &Results) -> Outcome {
    let area = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(WIDTH * 6 / 10);
    bandwidth(&left, results)?;
    latency(&right, results)?;
    area.present()?;
    Ok(())
}

fn bandwidth(area: &Area<'_>, results: &Results) -> Outcome {
    let groups = [
        (copy::SHARED, BLACK),
        (ucx::GROUPS[1].0, RGBColor(150, 110, 200)),
        (device::WRITE, RGBColor(20, 110, 200)),
        (device::SEND, RGBColor(60, 170, 230)),
        (device::READ, RGBColor(0, 150, 130)),
        (tcp::LOOPBACK, RGBColor(240, 160, 60)),
        (tcp::VETH, RGBColor(210, 60, 40)),
        (ucx::GROUPS[2].0, RGBColor(170, 120, 80)),
    ];
    let curve = |group| -> Vec<(usize, f64)> {
        let point = |(i, &bytes)| Some((i, results.median(group, &size_name(bytes))? / 1000.0));
        SIZES.iter().enumerate().filter_map(point).collect()
    };
    let top = groups.iter().flat_map(|(g, _)| curve(g)).map(|(_, y)| y).fold(1.0, f64::max) * 1.3;
    let mut chart = ChartBuilder::on(area)
        .caption("Bandwidth by message size, GB/s", (FONT, 18))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(48)
        .build_cartesian_2d(0..SIZES.len() + ROOM - 1, (0.1..top).log_scale())?;
    let size_of = |i: &usize| SIZES.get(*i).map_or_else(String::new, |&b| size_name(b));
    chart.configure_mesh().disable_x_mesh().x_labels(SIZES.len() + ROOM).x_label_formatter(&size_of).draw()?;
    for (group, color) in groups {
        let points = curve(group);
        if points.is_empty() {
            continue;
        }
        let style = color.stroke_width(if group.starts_with("rdmesh") { 3 } else { 1 });
        chart.draw_series(points.iter().map(|&p| Circle::new(p, 3, color.filled())))?;
        let line = chart.draw_series(LineSeries::new(points, style))?;
        line.label(group).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    let mut legend = chart.configure_series_labels();
    legend
        .background_style(WHITE.mix(0.85))
        .label_font((FONT, 12))
        .position(SeriesLabelPosition::MiddleRight)
        .draw()?;
    Ok(())
}

fn latency(area: &Area<'_>, results: &Results) -> Outcome {
    let bars: Vec<(String, f64, RGBColor)> = [
        (pingpong::GROUP, "two processes, yield after 8 looks", "shared memory, direct", BLACK),
        (pingpong::GROUP, "with a third between, yield after 8 looks", "shared memory, relayed", BLACK),
        (device::LATENCY, "WRITE, half round trip", "rdmesh WRITE", RGBColor(20, 110, 200)),
        (device::LATENCY, "SEND, half round trip", "rdmesh SEND", RGBColor(60, 170, 230)),
        (device::EVENTS, "SEND, half round trip", "rdmesh SEND, events", RGBColor(60, 170, 230)),
        (ucx::GROUPS[1].0, ucx::LATENCY, "UCX, shared memory", RGBColor(150, 110, 200)),
        (ucx::GROUPS[2].0, ucx::LATENCY, "UCX, TCP", RGBColor(170, 120, 80)),
        (tcp::LOOPBACK, tcp::LATENCY, "TCP, loopback", RGBColor(240, 160, 60)),
        (tcp::VETH, tcp::LATENCY, "TCP, veth", RGBColor(210, 60, 40)),
    ]
    .into_iter()
    .filter_map(|(group, name, label, color)| Some((label.to_owned(), results.median(group, name)?, color)))
    .collect();
    let top = bars.iter().map(|b| b.1).fold(1.0, f64::max) * 1.25;
    // A bar, its label above it, and a little air.
    const ROWS: i32 = 3;
    let count = bars.len() as i32;
    let mut chart = ChartBuilder::on(area)
        .caption("Half round trip of 2 bytes, µs", (FONT, 18))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(10)
        .build_cartesian_2d(0.0..top, 0..ROWS * count)?;
    chart.configure_mesh().disable_y_mesh().disable_y_axis().draw()?;
    for (i, (label, value, color)) in bars.iter().enumerate() {
        let y = ROWS * (count - 1 - i as i32);
        chart.draw_series([Rectangle::new([(0.0, y), (*value, y + 1)], color.filled())])?;
        chart.draw_series([Text::new(format!("{label}: {value:.1}"), (0.0, y + 2), (FONT, 11))])?;
    }
    Ok(())
}
