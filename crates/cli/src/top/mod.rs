//! `rdmesh top`: live traffic rates of programs, on a terminal as a view that keys sort and filter.

mod live;
mod rows;
mod view;

use crate::args::TopOptions;
use crate::failure::Failure;
use crate::show::print_line;
use crate::table::Table;
use rdmesh_fabric::Client;
use rows::{Column, Row, Traffic, rows};
use std::io::{IsTerminal, stdin, stdout};
use std::time::{Duration, Instant};

/// Shows the rates of every program, busiest first, again and again.
pub(crate) fn top(options: &TopOptions, client: &Client) -> Result<(), Failure> {
    let is_live = options.count.is_none() && stdout().is_terminal() && stdin().is_terminal();
    if is_live {
        return live::run(interval(options), client);
    }
    repeat(options, || Ok(Traffic::of(&client.contexts()?)), |before, now, seconds| table(&rows(before, now, seconds)))
}

fn interval(options: &TopOptions) -> Duration {
    Duration::try_from_secs_f64(options.interval).unwrap_or(Duration::MAX).clamp(SHORTEST, LONGEST)
}

/// Shows a table of what has changed between two counts, and of the seconds between them, again and again.
pub(crate) fn repeat<T>(
    options: &TopOptions,
    count: impl Fn() -> Result<T, Failure>,
    table: impl Fn(&T, &T, f64) -> Table,
) -> Result<(), Failure> {
    let interval = interval(options);
    let (mut before, mut taken) = (count()?, Instant::now());
    for round in 1.. {
        std::thread::sleep(interval);
        let now = count()?;
        let seconds = taken.elapsed().as_secs_f64();
        taken = Instant::now();
        let screen = if stdout().is_terminal() { CLEAR } else { "" };
        print_line(format!("{screen}{}\n", table(&before, &now, seconds)))?;
        before = now;
        if options.count.is_some_and(|count| round >= count) {
            break;
        }
    }
    Ok(())
}

fn table(rows: &[Row]) -> Table {
    let header: Vec<&str> = Column::ALL.iter().map(|column| column.title()).collect();
    let mut table = Table::new(&header);
    for row in rows {
        table.row(Column::ALL.map(|column| row.cell(column)));
    }
    table
}

const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Cursor home, and everything behind it erased.
const CLEAR: &str = "\x1b[H\x1b[2J";
