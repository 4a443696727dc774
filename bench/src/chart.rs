//! Charts of the results: bandwidth by message size, and latency, of rdmesh and other transports, on one host and on two.

use crate::copy::size_name;
use crate::hosts::{self, ETHERNET, JUMBO};
use crate::perftest::{SEND_LATENCY, WRITE_LATENCY};
use crate::results::Results;
use crate::{SIZES, chains, copy, device, mpi, pingpong, policies, pools, tcp, ucx};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

pub(crate) type Outcome = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line: bandwidth by message size.
struct Curve {
    group: String,
    label: String,
    color: RGBColor,
    width: u32,
}

/// A bar: what it is, and how much.
type Bar = (String, f64, RGBColor);

/// Points, with what they are.
type Dots<'a> = (&'a str, RGBColor, Vec<(f64, f64)>);

/// Height of the picture of chains.
const CHAINS: u32 = 720;
/// Height of the picture of policies.
const POLICIES: u32 = 420;
const WIDTH: u32 = 1100;
/// Width of the curves; the bars have the rest.
const CURVES: u32 = WIDTH * 6 / 10;
const ONE_HOST: u32 = 460;
const TWO_HOSTS: u32 = 500;
/// Height of the bars of latency, of [`TWO_HOSTS`].
const LATENCY: u32 = 300;
const FONT: &str = "sans-serif";
/// Columns to the right of the curves, for the legend.
const ROOM: usize = 2;

const BLUE: RGBColor = RGBColor(20, 110, 200);
const LIGHT_BLUE: RGBColor = RGBColor(60, 170, 230);
const GREEN: RGBColor = RGBColor(0, 150, 130);
const DARK_BLUE: RGBColor = RGBColor(10, 50, 110);
const VIOLET: RGBColor = RGBColor(150, 110, 200);
const BROWN: RGBColor = RGBColor(170, 120, 80);
const ORANGE: RGBColor = RGBColor(240, 160, 60);
const RED: RGBColor = RGBColor(210, 60, 40);
const DARK_RED: RGBColor = RGBColor(120, 20, 20);

/// Draws the results into the file `path`.
pub(crate) fn draw(path: &Path, results: &Results) -> Outcome {
    let area = SVGBackend::new(path, (WIDTH, ONE_HOST + TWO_HOSTS)).into_drawing_area();
    area.fill(&WHITE)?;
    let (one, two) = area.split_vertically(ONE_HOST);
    one_host(&one, results)?;
    two_hosts(&two, results)?;
    area.present()?;
    Ok(())
}

/// Draws gets by chain and by other ways into the file `path`.
pub(crate) fn draw_chains(path: &Path, results: &Results) -> Outcome {
    let area = SVGBackend::new(path, (WIDTH, CHAINS)).into_drawing_area();
    area.fill(&WHITE)?;
    for (group, panel) in [chains::ONE_HOST, chains::TWO_HOSTS].into_iter().zip(area.split_evenly((1, 2))) {
        let (upper, lower) = panel.split_vertically(CHAINS / 2);
        for (size, panel) in [("64", upper), ("4096", lower)] {
            let bar = |(way, color): (&str, RGBColor)| {
                Some((way.into(), results.median(group, &format!("get, {size} B: {way}"))?, color))
            };
            let colors = [GREEN, BLUE, LIGHT_BLUE, ORANGE, RED, BROWN];
            let all: Vec<Bar> = chains::WAYS.into_iter().zip(colors).filter_map(bar).collect();
            bars(&panel, &format!("{group}: get of {size} B, µs"), 1, &all)?;
        }
    }
    area.present()?;
    Ok(())
}

/// Draws rates by their limits into the file `path`: of one flow, and of ten at once.
pub(crate) fn draw_policies(path: &Path, results: &Results) -> Outcome {
    let area = SVGBackend::new(path, (WIDTH, POLICIES)).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(WIDTH / 2);
    let one = policies::rates(results, policies::ONE_HOST);
    let two = policies::rates(results, policies::TWO_HOSTS);
    limits(&left, "One flow: rate by limit, Gb/s", &[("one host", BLUE, one), ("two hosts", GREEN, two)])?;
    limits(&right, "Ten flows at once: rate by limit, Gb/s", &[("one host", BLUE, policies::flows(results))])?;
    area.present()?;
    Ok(())
}

/// Draws the time of MPI messages by their length into the file `path`.
pub(crate) fn draw_mpi(path: &Path, results: &Results) -> Outcome {
    let area = SVGBackend::new(path, (WIDTH, POLICIES)).into_drawing_area();
    area.fill(&WHITE)?;
    for (group, panel) in [mpi::ONE_HOST[0], mpi::TWO_HOSTS[0]].into_iter().zip(area.split_evenly((1, 2))) {
        let mut chart = ChartBuilder::on(&panel)
            .caption(format!("{group}: time each way, µs"), (FONT, 18))
            .margin(12)
            .x_label_area_size(30)
            .y_label_area_size(52)
            .build_cartesian_2d((8.0..4_194_304.0).log_scale(), (10.0..10_000.0).log_scale())?;
        let name = |bytes: &f64| if *bytes < 1024.0 { format!("{bytes} B") } else { size_name(*bytes as u64) };
        chart.configure_mesh().x_desc("message").x_label_formatter(&name).draw()?;
        for (way, color) in mpi::WAYS.into_iter().zip([RED, BLUE, GREEN]) {
            let points = mpi::times(results, group, way);
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
                .label(way.name())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK.mix(0.3)).draw()?;
    }
    area.present()?;
    Ok(())
}

/// Draws the time until endpoints are ready by their number into the file `path`.
pub(crate) fn draw_endpoints(path: &Path, results: &Results) -> Outcome {
    let area = SVGBackend::new(path, (WIDTH, POLICIES)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Time until the last of many endpoints is reachable, ms", (FONT, 18))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(64)
        .build_cartesian_2d((1.0..4000.0).log_scale(), (0.1..100_000.0).log_scale())?;
    chart.configure_mesh().x_desc("endpoints").draw()?;
    let ways = [(pools::ACQUIRED, BLUE), (pools::ONE_BY_ONE, GREEN), (pools::BY_IP, RED)];
    for (way, color) in ways {
        let point = |count: u32| Some((f64::from(count), results.median(way, &pools::figure(count))?));
        let points: Vec<(f64, f64)> = pools::COUNTS.into_iter().filter_map(point).collect();
        let line = chart.draw_series(LineSeries::new(points, color.stroke_width(3)).point_size(4))?;
        line.label(way).legend(move |(x, y)| Rectangle::new([(x, y - 2), (x + 18, y + 2)], color.filled()));
    }
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::UpperLeft).background_style(WHITE.mix(0.85)).label_font((FONT, 12)).draw()?;
    area.present()?;
    Ok(())
}

/// Pairs of a limit and what was found, beside the line on which they are to lie.
fn limits(area: &Area<'_>, caption: &str, all: &[Dots<'_>]) -> Outcome {
    const MOST: f64 = 11.0;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 18))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..MOST, 0.0..MOST)?;
    chart.configure_mesh().draw()?;
    chart.draw_series(LineSeries::new([(0.0, 0.0), (MOST, MOST)], ORANGE))?;
    for (label, color, points) in all {
        let color = *color;
        let dots = chart.draw_series(points.iter().map(|&point| Circle::new(point, 5, color.stroke_width(2))))?;
        dots.label(*label).legend(move |(x, y)| Circle::new((x + 9, y), 5, color.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.85)).label_font((FONT, 12)).draw()?;
    Ok(())
}

fn one_host(area: &Area<'_>, results: &Results) -> Outcome {
    let (left, right) = area.split_horizontally(CURVES);
    let groups = [
        (copy::SHARED, BLACK, 1),
        (ucx::GROUPS[1].0, VIOLET, 1),
        (device::WRITE, BLUE, 3),
        (device::SEND, LIGHT_BLUE, 3),
        (device::READ, GREEN, 3),
        (tcp::LOOPBACK, ORANGE, 1),
        (tcp::VETH, RED, 1),
        (ucx::GROUPS[2].0, BROWN, 1),
    ];
    let curve = |(group, color, width): (&str, _, _)| Curve { group: group.into(), label: group.into(), color, width };
    curves(&left, "One host: bandwidth by message size, GB/s", results, &SIZES, &groups.map(curve))?;
    let half_trips = [
        (pingpong::GROUP, "two processes, yield after 8 looks", "shared memory, direct", BLACK),
        (pingpong::GROUP, "with a third between, yield after 8 looks", "shared memory, relayed", BLACK),
        (device::LATENCY, WRITE_LATENCY, "rdmesh WRITE", BLUE),
        (device::LATENCY, SEND_LATENCY, "rdmesh SEND", LIGHT_BLUE),
        (device::EVENTS, SEND_LATENCY, "rdmesh SEND, events", LIGHT_BLUE),
        (ucx::GROUPS[1].0, ucx::LATENCY, "UCX, shared memory", VIOLET),
        (ucx::GROUPS[2].0, ucx::LATENCY, "UCX, TCP", BROWN),
        (tcp::LOOPBACK, tcp::LATENCY, "TCP, loopback", ORANGE),
        (tcp::VETH, tcp::LATENCY, "TCP, veth", RED),
    ];
    let bar =
        |(group, name, label, color): (&str, _, &str, _)| Some((label.into(), results.median(group, name)?, color));
    bars(&right, "Half round trip of 2 bytes, µs", 1, &half_trips.into_iter().filter_map(bar).collect::<Vec<_>>())
}

fn two_hosts(area: &Area<'_>, results: &Results) -> Outcome {
    let (left, right) = area.split_horizontally(CURVES);
    let (upper, lower) = right.split_vertically(LATENCY);
    let groups = [
        (ETHERNET, device::WRITE, BLUE, 3),
        (ETHERNET, device::SEND, LIGHT_BLUE, 3),
        (ETHERNET, device::READ, GREEN, 3),
        (ETHERNET, hosts::TCP, ORANGE, 1),
        (ETHERNET, hosts::VXLAN, RED, 1),
        (JUMBO, device::WRITE, DARK_BLUE, 3),
        (JUMBO, hosts::VXLAN, DARK_RED, 1),
    ];
    let curve = |(wire, what, color, width): (hosts::Wire, &str, _, _)| Curve {
        group: wire.group(what),
        label: wire.label(what),
        color,
        width,
    };
    curves(&left, "Two hosts: bandwidth by message size, GB/s", results, &hosts::SIZES, &groups.map(curve))?;
    let half_trips = [
        (device::LATENCY, WRITE_LATENCY, "rdmesh WRITE", BLUE),
        (device::LATENCY, SEND_LATENCY, "rdmesh SEND", LIGHT_BLUE),
        (device::EVENTS, SEND_LATENCY, "rdmesh SEND, events", LIGHT_BLUE),
        (hosts::TCP, tcp::LATENCY, "TCP between the hosts", ORANGE),
        (hosts::VXLAN, tcp::LATENCY, "TCP over VXLAN", RED),
    ];
    let of = |what: &str, name: &str| results.median(&ETHERNET.group(what), name);
    let bar = |(what, name, label, color): (&str, _, &str, _)| Some((label.into(), of(what, name)?, color));
    bars(&upper, "Half round trip of 2 bytes, µs", 1, &half_trips.into_iter().filter_map(bar).collect::<Vec<_>>())?;
    let [none, losses @ ..] = hosts::LOSSES;
    let kept = |loss| Some((format!("{loss} lost"), of(hosts::GOODPUT, loss)? / of(hosts::GOODPUT, none)?, BLUE));
    bars(
        &lower,
        "WRITE of 64 KB: bandwidth with losses / without",
        2,
        &losses.into_iter().filter_map(kept).collect::<Vec<_>>(),
    )
}

fn curves(area: &Area<'_>, caption: &str, results: &Results, sizes: &[u64], all: &[Curve]) -> Outcome {
    let points = |curve: &Curve| -> Vec<(usize, f64)> {
        let point = |(i, &bytes)| Some((i, results.median(&curve.group, &size_name(bytes))? / 1000.0));
        sizes.iter().enumerate().filter_map(point).collect()
    };
    let top = all.iter().flat_map(points).map(|(_, y)| y).fold(1.0, f64::max) * 1.3;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 18))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(48)
        .build_cartesian_2d(0..sizes.len() + ROOM - 1, (0.1..top).log_scale())?;
    let size_of = |i: &usize| sizes.get(*i).map_or_else(String::new, |&b| size_name(b));
    chart.configure_mesh().disable_x_mesh().x_labels(sizes.len() + ROOM).x_label_formatter(&size_of).draw()?;
    for curve in all {
        let points = points(curve);
        if points.is_empty() {
            continue;
        }
        let style = curve.color.stroke_width(curve.width);
        chart.draw_series(points.iter().map(|&p| Circle::new(p, 3, curve.color.filled())))?;
        let line = chart.draw_series(LineSeries::new(points, style))?;
        line.label(&curve.label).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    let mut legend = chart.configure_series_labels();
    legend
        .background_style(WHITE.mix(0.85))
        .label_font((FONT, 12))
        .position(SeriesLabelPosition::MiddleRight)
        .draw()?;
    Ok(())
}

fn bars(area: &Area<'_>, caption: &str, digits: usize, bars: &[Bar]) -> Outcome {
    let top = bars.iter().map(|b| b.1).fold(f64::MIN_POSITIVE, f64::max) * 1.25;
    // A bar, its label above it, and a little air.
    const ROWS: i32 = 3;
    let count = bars.len() as i32;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 18))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(10)
        .build_cartesian_2d(0.0..top, 0..ROWS * count)?;
    chart.configure_mesh().disable_y_mesh().disable_y_axis().draw()?;
    for (i, (label, value, color)) in bars.iter().enumerate() {
        let y = ROWS * (count - 1 - i as i32);
        chart.draw_series([Rectangle::new([(0.0, y), (*value, y + 1)], color.filled())])?;
        chart.draw_series([Text::new(format!("{label}: {value:.digits$}"), (0.0, y + 2), (FONT, 11))])?;
    }
    Ok(())
}
