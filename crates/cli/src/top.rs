//! `rdmesh top`: live traffic rates of programs.

use crate::args::TopOptions;
use crate::failure::Failure;
use crate::held;
use crate::show::{bytes, print_line};
use crate::table::Table;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::{ContextInfo, HeldSeconds};
use std::collections::BTreeMap;
use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

/// A program on an endpoint: network, endpoint, process, command.
type Program = (String, String, i32, String);

/// Traffic of a program since its queue pairs were made.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Traffic {
    qps: usize,
    sent_messages: u64,
    sent_bytes: u64,
    received_messages: u64,
    received_bytes: u64,
    retransmitted: u64,
    /// Time for which rates have held its endpoint, since that was made.
    held: HeldSeconds,
}

/// Shows the rates of every program, busiest first, again and again.
pub(crate) fn top(options: &TopOptions, client: &Client) -> Result<(), Failure> {
    repeat(options, || Ok(traffic(&client.contexts()?)), table)
}

/// Shows a table of what has changed between two counts, and of the seconds between them, again and again.
pub(crate) fn repeat<T>(
    options: &TopOptions,
    count: impl Fn() -> Result<T, Failure>,
    table: impl Fn(&T, &T, f64) -> Table,
) -> Result<(), Failure> {
    let interval = Duration::try_from_secs_f64(options.interval).unwrap_or(Duration::MAX).max(SHORTEST);
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

fn traffic(contexts: &[ContextInfo]) -> BTreeMap<Program, Traffic> {
    let mut programs = BTreeMap::<Program, Traffic>::new();
    for c in contexts {
        let program = (c.network.to_string(), c.endpoint.to_string(), c.pid, c.command.clone());
        let traffic = programs.entry(program).or_default();
        traffic.qps += c.qps.len();
        traffic.held = c.held;
        for qp in &c.qps {
            traffic.sent_messages += qp.sent_messages;
            traffic.sent_bytes += qp.sent_bytes;
            traffic.received_messages += qp.received_messages;
            traffic.received_bytes += qp.received_bytes;
            traffic.retransmitted += qp.retransmitted;
        }
    }
    programs
}

fn table(before: &BTreeMap<Program, Traffic>, now: &BTreeMap<Program, Traffic>, seconds: f64) -> Table {
    let mut rows: Vec<_> = now
        .iter()
        .map(|(program, now)| {
            let before = before.get(program).copied();
            let held = held::share(before.map_or(now.held, |before| before.held), now.held, seconds);
            (program, now.since(before.unwrap_or_default()), held)
        })
        .collect();
    rows.sort_by_key(|(_, traffic, _)| std::cmp::Reverse((traffic.sent_bytes, traffic.sent_messages)));
    let rate = |count: u64| (count as f64 / seconds) as u64;
    let mut table = Table::new(&[
        "NETWORK",
        "ENDPOINT",
        "PID",
        "COMMAND",
        "QPS",
        "SENT/s",
        "",
        "RECEIVED/s",
        "",
        "RETRANSMITTED/s",
        "HELD BY A RATE",
    ]);
    for ((network, endpoint, pid, command), traffic, held) in rows {
        table.row([
            network.clone(),
            endpoint.clone(),
            pid.to_string(),
            command.clone(),
            traffic.qps.to_string(),
            rate(traffic.sent_messages).to_string(),
            bytes(rate(traffic.sent_bytes)),
            rate(traffic.received_messages).to_string(),
            bytes(rate(traffic.received_bytes)),
            rate(traffic.retransmitted).to_string(),
            held.map_or_else(|| "-".to_owned(), |(level, share)| format!("{:.0}% {level}", share * 100.0)),
        ]);
    }
    table
}

impl Traffic {
    /// The traffic since `before`. The counts of destroyed queue pairs are gone, which must not give a negative rate.
    fn since(self, before: Self) -> Self {
        Self {
            qps: self.qps,
            sent_messages: self.sent_messages.saturating_sub(before.sent_messages),
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            received_messages: self.received_messages.saturating_sub(before.received_messages),
            received_bytes: self.received_bytes.saturating_sub(before.received_bytes),
            retransmitted: self.retransmitted.saturating_sub(before.retransmitted),
            held: self.held,
        }
    }
}

const SHORTEST: Duration = Duration::from_millis(50);
/// Cursor home, and everything behind it erased.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[cfg(test)]
mod tests {
    use super::*;

    fn program(pid: i32) -> Program {
        ("default".into(), "a".into(), pid, "ib_write_bw".into())
    }

    #[test]
    fn rates_are_differences_and_the_busiest_comes_first() {
        let quiet = Traffic { qps: 1, ..Traffic::default() };
        let before = BTreeMap::from([(program(1), quiet), (program(2), Traffic { sent_bytes: 1000, ..quiet })]);
        let held = HeldSeconds { endpoint: 1.5, ..quiet.held };
        let later = Traffic { sent_bytes: 1000 + 4096, sent_messages: 20, held, ..quiet };
        let now = BTreeMap::from([(program(1), quiet), (program(2), later)]);
        let shown = table(&before, &now, 2.0).to_string();
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1],
            ["default", "a", "2", "ib_write_bw", "1", "10", "2.0", "KiB", "0", "0", "B", "0", "75%", "endpoint"]
        );
        assert_eq!((lines[2][2], lines[2][12]), ("1", "-"));
    }

    #[test]
    fn a_queue_pair_that_has_gone_is_no_negative_rate() {
        let before = Traffic { sent_bytes: 10, ..Traffic::default() };
        assert_eq!(Traffic::default().since(before), Traffic::default());
    }
}
