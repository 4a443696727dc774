//! perftest: its unmodified programs between two endpoints.

use crate::copy::size_name;
use crate::device::{READ, SEND, WRITE};
use crate::results::{Results, Unit};
use rdmesh_tests::Pair;

/// Two endpoints, with the options of the programs on them.
pub(crate) struct Perftest<'a> {
    pub(crate) pair: Pair<'a>,
    /// Options of every program.
    pub(crate) options: String,
    pub(crate) effort: f64,
}

impl Perftest<'_> {
    /// Latency of a 2-byte message: with polling, in the first group, and with events, in the second.
    pub(crate) fn latencies(&self, results: &mut Results, [polled, events]: [&str; 2], messages: u64) {
        // perftest halves the round trip of SEND and WRITE; READ and atomics have none to halve.
        for (name, program, options) in [
            (SEND_LATENCY, "ib_send_lat", "-s 2"),
            (WRITE_LATENCY, "ib_write_lat", "-s 2"),
            ("READ", "ib_read_lat", "-s 2"),
            ("FETCH_ADD", "ib_atomic_lat", "-A FETCH_AND_ADD"),
        ] {
            results.add(polled, name, Unit::Microseconds, self.latency(program, messages, options));
        }
        for (name, program) in [(SEND_LATENCY, "ib_send_lat"), ("READ", "ib_read_lat")] {
            results.add(events, name, Unit::Microseconds, self.latency(program, messages / 5, "-e -s 2"));
        }
    }

    /// MB/s by size of the messages, about `total` bytes each, in a group for each operation.
    pub(crate) fn bandwidths(&self, results: &mut Results, sizes: &[u64], total: u64, group: impl Fn(&str) -> String) {
        for (operation, program) in OPERATIONS {
            for &bytes in sizes {
                let messages = (total / bytes).min(2_000_000);
                let megabytes = self.bandwidth(program, messages, &format!("-s {bytes}")).0;
                results.add(&group(operation), &size_name(bytes), Unit::MegabytesPerSecond, megabytes);
            }
        }
    }

    /// Messages of 2 bytes a second.
    pub(crate) fn rates(&self, results: &mut Results, group: &str, messages: u64) {
        for (operation, program) in OPERATIONS {
            let name = operation.trim_start_matches("rdmesh ");
            results.add(group, name, Unit::MillionPerSecond, self.bandwidth(program, messages, "-s 2").1);
        }
    }

    /// MB/s of WRITEs of 8 KB by number of queue pairs, `messages` in all.
    pub(crate) fn queue_pairs(&self, results: &mut Results, group: &str, numbers: &[u64], messages: u64) {
        for pairs in numbers {
            results.add(group, &pairs.to_string(), Unit::MegabytesPerSecond, self.write_at_once(*pairs, messages));
        }
    }

    /// MB/s of WRITEs of 8 KB on so many queue pairs, `messages` in all.
    pub(crate) fn write_at_once(&self, pairs: u64, messages: u64) -> f64 {
        self.bandwidth("ib_write_bw", messages / pairs, &format!("-s 8192 -q {pairs}")).0
    }

    /// MB/s of WRITEs of 1 MB, about `total` bytes.
    pub(crate) fn write(&self, total: u64) -> f64 {
        self.bandwidth("ib_write_bw", total >> 20, "-s 1048576").0
    }

    /// Microseconds of half a round trip of WRITEs of 2 bytes.
    pub(crate) fn write_latency(&self, messages: u64) -> f64 {
        self.latency("ib_write_lat", messages, "-s 2")
    }

    /// MB/s of WRITEs of 64 KB within so many seconds.
    pub(crate) fn goodput(&self, program: &str, seconds: u64) -> f64 {
        self.pair.bandwidth(program, &format!("-s 65536 -D {seconds} {}", self.options))[0].figures[1] * MIB
    }

    /// MB/s and million messages per second.
    fn bandwidth(&self, program: &str, messages: u64, options: &str) -> (f64, f64) {
        let rows = self.pair.bandwidth(program, &self.all_options(messages, &format!("-N {options}")));
        (rows[0].figures[1] * MIB, rows[0].figures[2])
    }

    /// The typical figure in microseconds.
    fn latency(&self, program: &str, messages: u64, options: &str) -> f64 {
        self.pair.latency(program, &self.all_options(messages, options))[0].figures[2]
    }

    /// With about so many `messages`, less in a quick run.
    fn all_options(&self, messages: u64, options: &str) -> String {
        // In whole rounds of 100, after which perftest asks for a completion: with several queue pairs it counts wrongly
        // and may wait for ever when the last round is shorter.
        let messages = ((messages as f64 * self.effort) as u64 / 100).max(1) * 100;
        format!("-n {messages} {options} {}", self.options)
    }
}

/// Names of figures of a group of latencies.
pub(crate) const SEND_LATENCY: &str = "SEND, half round trip";
pub(crate) const WRITE_LATENCY: &str = "WRITE, half round trip";

const OPERATIONS: [(&str, &str); 3] = [(WRITE, "ib_write_bw"), (SEND, "ib_send_bw"), (READ, "ib_read_bw")];
/// Megabytes in one of perftest's (2^20 bytes).
pub(crate) const MIB: f64 = 1.048_576;
