//! Latency and bandwidth under processor contention: every processor also runs a program that computes without end.

use crate::perftest::MIB;
use crate::results::{Results, Unit};
use crate::tcp::{self, Tcp};
use crate::{device, hosts};
use rdmesh_tests::{Endpoint, Hosts, Lab, Options, Pair, Program, root};
use std::process::Command;

/// Whether anything else runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Load {
    Idle,
    Busy,
}

/// Number of hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Site {
    One,
    Two,
}

/// Names of figures; those of latencies with [`P50`] and [`P99`] behind them.
pub(crate) const TCP: &str = "kernel TCP";
pub(crate) const SEND: &str = "SEND";
pub(crate) const WRITE: &str = "WRITE";
pub(crate) const EVENTS: &str = "SEND with events";
pub(crate) const P50: &str = "p50";
pub(crate) const P99: &str = "p99";
/// Names of figures of bandwidth.
pub(crate) const TCP_BANDWIDTH: &str = "kernel TCP, 64 KB";
pub(crate) const WRITE_BANDWIDTH: &str = "WRITE, 64 KB";

/// Programs of perftest, and what is asked of them.
const PROGRAMS: [(&str, &str, &str); 3] =
    [(SEND, "ib_send_lat", "-s 2"), (WRITE, "ib_write_lat", "-s 2"), (EVENTS, "ib_send_lat", "-s 2 -e")];
const MESSAGES: f64 = 10_000.0;
const BANDWIDTH: u64 = 64 << 10;
/// Columns of perftest's table.
const TYPICAL: usize = 2;
const NINETY_NINTH: usize = 5;

/// The group of figures of a site under a load.
pub(crate) fn group(site: Site, load: Load) -> String {
    let load = match load {
        Load::Idle => "nothing else runs",
        Load::Busy => "a busy loop on every processor",
    };
    format!("contention, {}, {load}", site.name())
}

impl Site {
    /// As in names of groups and goals.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one host",
            Self::Two => "two hosts",
        }
    }
}

/// The name of a latency figure.
pub(crate) fn name(what: &str, percentile: &str) -> String {
    format!("{what}, {percentile}")
}

/// Computes until its parent goes.
pub(crate) fn compute() {
    let parent = rustix::process::getppid();
    while rustix::process::getppid() == parent {
        for i in 0..1_000_000_000u64 {
            std::hint::black_box(i);
        }
    }
}

/// Measures on one host.
pub(crate) fn measure_one_host(results: &mut Results, effort: f64, mode: &str) {
    let lab = Lab::start_with(Options { up: device::up(mode), ..Options::default() });
    let endpoint = |name, ip| (&lab, Endpoint::at(name, "bench", ip));
    let pair =
        Pair { server: endpoint("server", SERVER), client: endpoint("client", CLIENT), address: SERVER.to_owned() };
    measure(results, effort, Site::One, &pair, "");
}

/// Measures between two hosts.
pub(crate) fn measure_two_hosts(results: &mut Results, effort: f64, mode: &str) {
    let wire = hosts::ETHERNET;
    let hosts = Hosts::start_with(wire.mtu(), Options { up: device::up(mode), ..Options::default() });
    measure(results, effort, Site::Two, &hosts.pair(), &wire.options());
}

fn measure(results: &mut Results, effort: f64, site: Site, pair: &Pair<'_>, options: &str) {
    // Each time with a server of its own: it has the endpoint to itself.
    let tcp = || Tcp::start(&pair.address, tcp::between(pair));
    for load in [Load::Idle, Load::Busy] {
        let _loops = if load == Load::Busy { busy_loops() } else { Vec::new() };
        let group = group(site, load);
        let mut latency = |what, p50, p99| {
            results.add(&group, &name(what, P50), Unit::Microseconds, p50);
            results.add(&group, &name(what, P99), Unit::Microseconds, p99);
        };
        let ping = tcp().ping(effort);
        latency(TCP, ping[1], ping[2]);
        for (what, program, more) in PROGRAMS {
            let messages = (MESSAGES * effort) as u64;
            let row = pair.latency(program, &format!("-n {messages} {more} {options}")).swap_remove(0);
            latency(what, row.figures[TYPICAL], row.figures[NINETY_NINTH]);
        }
        results.add(&group, TCP_BANDWIDTH, Unit::MegabytesPerSecond, tcp().bandwidth(BANDWIDTH, effort));
        // perftest counts whole seconds.
        let seconds = effort.ceil() as u64;
        let rows = pair.bandwidth("ib_write_bw", &format!("-s {BANDWIDTH} -D {seconds} {options}"));
        results.add(&group, WRITE_BANDWIDTH, Unit::MegabytesPerSecond, rows[0].figures[1] * MIB);
    }
}

/// One on every processor, as long as they are held.
fn busy_loops() -> Vec<Program> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::iter::repeat_with(busy_loop).take(processors).collect()
}

/// One, as long as it is held.
pub(crate) fn busy_loop() -> Program {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.arg("busy-loop").current_dir(root());
    Program::start(command)
}

const SERVER: &str = "10.7.0.2";
const CLIENT: &str = "10.7.0.3";
