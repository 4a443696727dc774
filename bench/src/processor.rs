//! Processor time of the whole machine for each gigabyte that goes from one host to the other: of programs, routers and kernel.

use crate::device::{READ, WRITE};
use crate::hosts::VXLAN;
use crate::perftest::MIB;
use crate::results::{Results, Unit};
use crate::tcp::{self, Tcp};
use rdmesh_tests::Pair;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Group of these figures on a wire, which have the names of groups: what carries the messages.
pub(crate) const GROUP: &str = "processor time by gigabyte, 1 MB messages";

/// Measures TCP, WRITEs and READs between two endpoints. `options` are perftest's.
pub(crate) fn measure(results: &mut Results, group: &str, pair: &Pair<'_>, options: &str, effort: f64) {
    let seconds = (LENGTH * effort).max(3.0);
    let mut add = |name: &str, megabytes: f64, busy: f64| {
        results.add(group, name, Unit::SecondsPerGigabyte, busy / megabytes * 1e3);
    };
    let tcp = Tcp::start(&pair.address, tcp::between(pair));
    let (megabytes, busy) = beside(seconds, || tcp.bandwidth(1 << 20, seconds));
    add(VXLAN, megabytes, busy);
    drop(tcp);
    for (name, program) in [(WRITE, "ib_write_bw"), (READ, "ib_read_bw")] {
        let run = || pair.bandwidth(program, &format!("-s 1048576 -D {} {options}", seconds as u64))[0].figures[1];
        let (mebibytes, busy) = beside(seconds, run);
        add(name, mebibytes * MIB, busy);
    }
}

/// Result of `run`, and the processors that are busy in the middle of its `seconds`.
fn beside(seconds: f64, run: impl FnOnce() -> f64) -> (f64, f64) {
    thread::scope(|scope| {
        let watch = scope.spawn(move || {
            // The programs have started by then.
            thread::sleep(Duration::from_secs_f64(seconds / 2.0));
            let (begin, before) = (Instant::now(), busy_seconds());
            thread::sleep(Duration::from_secs_f64(seconds / 3.0));
            (busy_seconds() - before) / begin.elapsed().as_secs_f64()
        });
        let result = run();
        (result, watch.join().expect("it reads a file"))
    })
}

/// Seconds that all processors together have worked (proc_stat(5)).
fn busy_seconds() -> f64 {
    let text = fs::read_to_string("/proc/stat").expect("a kernel with /proc");
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // Idle, waiting for a disk, and stolen by the hypervisor's other machines are not work; guests' time is in the user's.
    let worked = ticks.iter().take(7).enumerate().filter(|(n, _)| ![3, 4].contains(n)).map(|(_, ticks)| ticks);
    worked.sum::<f64>() / TICKS
}

/// `USER_HZ` (time(7)).
const TICKS: f64 = 100.0;
/// Seconds of a measurement.
const LENGTH: f64 = 6.0;
