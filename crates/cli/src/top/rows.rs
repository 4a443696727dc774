//! Rates of programs: what their queue pairs have counted, and the difference between two counts.

use crate::held;
use crate::show::bytes;
use rdmesh_fabric::api::{ContextInfo, HeldSeconds};
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

/// A program on an endpoint.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Program {
    pub(super) network: String,
    pub(super) endpoint: String,
    pub(super) pid: i32,
    pub(super) command: String,
}

/// Traffic of a program since its queue pairs were made.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Traffic {
    qps: usize,
    sent_messages: u64,
    sent_bytes: u64,
    received_messages: u64,
    received_bytes: u64,
    retransmitted: u64,
    /// Time for which rates have held its endpoint, since that was made.
    held: HeldSeconds,
}

/// Counts of all programs.
pub(super) type Counts = BTreeMap<Program, Traffic>;

/// A program's rates, for each second.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Row {
    pub(super) program: Program,
    rates: Traffic,
    /// The level of the policy that held it most, and for which part of the time.
    held: Option<(&'static str, f64)>,
}

/// A column of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Column {
    Network,
    Endpoint,
    Pid,
    Command,
    Qps,
    SentMessages,
    SentBytes,
    ReceivedMessages,
    ReceivedBytes,
    Retransmitted,
    Held,
}

impl Traffic {
    /// Counts of the programs that have these devices open.
    pub(super) fn of(contexts: &[ContextInfo]) -> Counts {
        let mut programs = Counts::new();
        for c in contexts {
            let program = Program {
                network: c.network.to_string(),
                endpoint: c.endpoint.to_string(),
                pid: c.pid,
                command: c.command.clone(),
            };
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

    /// The traffic of a second since `before`. The counts of destroyed queue pairs are gone, which must not give a negative rate.
    fn rates(self, before: Self, seconds: f64) -> Self {
        let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds) as u64;
        Self {
            qps: self.qps,
            sent_messages: rate(self.sent_messages, before.sent_messages),
            sent_bytes: rate(self.sent_bytes, before.sent_bytes),
            received_messages: rate(self.received_messages, before.received_messages),
            received_bytes: rate(self.received_bytes, before.received_bytes),
            retransmitted: rate(self.retransmitted, before.retransmitted),
            held: self.held,
        }
    }
}

/// The rates of all programs between two counts, the busiest sender first.
pub(super) fn rows(before: &Counts, now: &Counts, seconds: f64) -> Vec<Row> {
    let row = |(program, now): (&Program, &Traffic)| {
        let before = before.get(program).copied();
        let held = held::share(before.map_or(now.held, |before| before.held), now.held, seconds);
        Row { program: program.clone(), rates: now.rates(before.unwrap_or_default(), seconds), held }
    };
    let mut rows: Vec<Row> = now.iter().map(row).collect();
    rows.sort_by_key(|row| Reverse((row.rates.sent_bytes, row.rates.sent_messages)));
    rows
}

impl Row {
    /// Text of a cell.
    pub(super) fn cell(&self, column: Column) -> String {
        let Self { program, rates, held } = self;
        match column {
            Column::Network => program.network.clone(),
            Column::Endpoint => program.endpoint.clone(),
            Column::Pid => program.pid.to_string(),
            Column::Command => program.command.clone(),
            Column::Qps => rates.qps.to_string(),
            Column::SentMessages => rates.sent_messages.to_string(),
            Column::SentBytes => bytes(rates.sent_bytes),
            Column::ReceivedMessages => rates.received_messages.to_string(),
            Column::ReceivedBytes => bytes(rates.received_bytes),
            Column::Retransmitted => rates.retransmitted.to_string(),
            Column::Held => {
                held.map_or_else(|| "-".to_owned(), |(level, share)| format!("{:.0}% {level}", share * 100.0))
            }
        }
    }

    /// Order of two rows by a column: names from A on, the largest numbers first.
    pub(super) fn compare(&self, other: &Self, column: Column) -> Ordering {
        let (a, b) = (self, other);
        let number = |of: fn(&Traffic) -> u64| of(&b.rates).cmp(&of(&a.rates));
        match column {
            Column::Network => a.program.network.cmp(&b.program.network),
            Column::Endpoint => a.program.endpoint.cmp(&b.program.endpoint),
            Column::Pid => a.program.pid.cmp(&b.program.pid),
            Column::Command => a.program.command.cmp(&b.program.command),
            Column::Qps => b.rates.qps.cmp(&a.rates.qps),
            Column::SentMessages => number(|rates| rates.sent_messages),
            Column::SentBytes => number(|rates| rates.sent_bytes),
            Column::ReceivedMessages => number(|rates| rates.received_messages),
            Column::ReceivedBytes => number(|rates| rates.received_bytes),
            Column::Retransmitted => number(|rates| rates.retransmitted),
            Column::Held => {
                let share = |row: &Self| row.held.map_or(0.0, |(_, share)| share);
                share(b).total_cmp(&share(a))
            }
        }
    }

    /// Bytes sent in a second.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.rates.sent_bytes
    }
}

impl Column {
    /// All, from left to right.
    pub(super) const ALL: [Self; 11] = [
        Self::Network,
        Self::Endpoint,
        Self::Pid,
        Self::Command,
        Self::Qps,
        Self::SentMessages,
        Self::SentBytes,
        Self::ReceivedMessages,
        Self::ReceivedBytes,
        Self::Retransmitted,
        Self::Held,
    ];

    /// Its heading; that of messages holds for the bytes beside them too.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Network => "NETWORK",
            Self::Endpoint => "ENDPOINT",
            Self::Pid => "PID",
            Self::Command => "COMMAND",
            Self::Qps => "QPS",
            Self::SentMessages => "SENT/s",
            Self::ReceivedMessages => "RECEIVED/s",
            Self::SentBytes | Self::ReceivedBytes => "",
            Self::Retransmitted => "RETRANSMITTED/s",
            Self::Held => "HELD BY A RATE",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(pid: i32) -> Program {
        Program { network: "default".into(), endpoint: "a".into(), pid, command: "ib_write_bw".into() }
    }

    fn cells(row: &Row) -> Vec<String> {
        Column::ALL.map(|column| row.cell(column)).to_vec()
    }

    #[test]
    fn rates_are_differences_and_the_busiest_comes_first() {
        let quiet = Traffic { qps: 1, ..Traffic::default() };
        let before = Counts::from([(program(1), quiet), (program(2), Traffic { sent_bytes: 1000, ..quiet })]);
        let held = HeldSeconds { endpoint: 1.5, ..quiet.held };
        let later = Traffic { sent_bytes: 1000 + 4096, sent_messages: 20, held, ..quiet };
        let now = Counts::from([(program(1), quiet), (program(2), later)]);
        let rows = rows(&before, &now, 2.0);
        let busy = ["default", "a", "2", "ib_write_bw", "1", "10", "2.0 KiB", "0", "0 B", "0", "75% endpoint"];
        assert_eq!(cells(&rows[0]), busy);
        assert_eq!((rows[1].program.pid, cells(&rows[1])[10].as_str()), (1, "-"));
    }

    #[test]
    fn a_queue_pair_that_has_gone_is_no_negative_rate() {
        let before = Traffic { sent_bytes: 10, ..Traffic::default() };
        assert_eq!(Traffic::default().rates(before, 1.0), Traffic::default());
    }

    #[test]
    fn names_are_sorted_upwards_and_numbers_downwards() {
        let row = |pid, sent_bytes, share| Row {
            program: program(pid),
            rates: Traffic { sent_bytes, ..Traffic::default() },
            held: Some(("host", share)),
        };
        let (one, two) = (row(1, 5, 0.9), row(2, 50, 0.1));
        assert_eq!(one.compare(&two, Column::Pid), Ordering::Less);
        assert_eq!(one.compare(&two, Column::SentBytes), Ordering::Greater);
        assert_eq!(one.compare(&two, Column::Held), Ordering::Less);
        assert_eq!(one.compare(&two, Column::Network), Ordering::Equal);
    }
}
