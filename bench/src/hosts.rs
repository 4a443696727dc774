//! rdmesh on two hosts: the tunnel between their routers, compared with kernel TCP on the same wire.

use crate::perftest::Perftest;
use crate::results::{Results, Unit};
use crate::tcp::{self, Side};
use crate::{crc, device, processor, setup};
use rdmesh_tests::{Hosts, Options, Program};
use std::process::Command;

/// A wire between two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wire {
    /// Its MTU.
    mtu: u32,
    /// Bytes of payload of the packets in the tunnel, which are as large as fit.
    packet: u64,
}

/// An Ethernet as it is.
pub(crate) const ETHERNET: Wire = Wire { mtu: 1500, packet: 1024 };
/// One for large frames.
pub(crate) const JUMBO: Wire = Wire { mtu: 9000, packet: 4096 };

/// Groups of figures, by wire; those of rdmesh are called as on one host.
pub(crate) const TCP: &str = "kernel TCP between the hosts";
pub(crate) const VXLAN: &str = "kernel TCP over VXLAN";
pub(crate) const AUTHENTICATED_WRITE: &str = "rdmesh WRITE, 1 MB, by authentication";
pub(crate) const AUTHENTICATED_LATENCY: &str = "rdmesh WRITE, 2 B, half round trip, by authentication";
pub(crate) const GOODPUT: &str = "rdmesh WRITE, 64 KB, by lost packets";
pub(crate) const READ_GOODPUT: &str = "rdmesh READ, 64 KB, by lost packets";
pub(crate) const GOODPUT_BACK: &str = "rdmesh WRITE, 64 KB, by lost packets, with go-back-N";

/// Names of their figures.
pub(crate) const WITH: &str = "with";
pub(crate) const WITHOUT: &str = "without";
/// Measurements of each in a round, by turns.
const TURNS: usize = 3;

/// Bytes of the messages whose bandwidth is measured.
pub(crate) const SIZES: [u64; 3] = [8 << 10, 64 << 10, 1 << 20];
/// Packet loss rates, each way.
pub(crate) const LOSSES: [&str; 4] = ["0%", "0.1%", "1%", "5%"];

impl Wire {
    /// Its MTU.
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Options that perftest's programs need.
    pub(crate) fn options(&self) -> String {
        format!("-m {}", self.packet)
    }

    /// Two hosts with this wire between them.
    pub(crate) fn site(&self) -> String {
        format!("two hosts, MTU {}", self.mtu)
    }

    /// Name of a group of figures on this wire.
    pub(crate) fn group(&self, what: &str) -> String {
        format!("{}: {what}", self.site())
    }

    /// The same where it is known that there are two hosts.
    pub(crate) fn label(&self, what: &str) -> String {
        format!("MTU {}: {what}", self.mtu)
    }
}

/// Measures only the set-up of connections, once.
pub(crate) fn measure_setup(results: &mut Results, effort: f64, mode: &str) {
    let hosts = Hosts::start_with(ETHERNET.mtu, Options { up: device::up(mode), ..Options::default() });
    Bench { hosts, wire: ETHERNET, effort }.connections(results);
}

/// Measures only the cost of the tunnel's authentication, once on both wires.
pub(crate) fn measure_authentication(results: &mut Results, effort: f64, mode: &str) {
    for wire in [ETHERNET, JUMBO] {
        authentication(results, wire, effort, mode);
    }
}

/// Measures only what lost packets cost, once.
pub(crate) fn measure_losses(results: &mut Results, effort: f64, mode: &str) {
    let hosts = Hosts::start_with(ETHERNET.mtu, Options { up: device::up(mode), ..Options::default() });
    Bench { hosts, wire: ETHERNET, effort }.losses(results);
    losses_with_go_back_n(results, effort, mode);
}

/// The same WRITEs between routers that go back to the first packet lost.
fn losses_with_go_back_n(results: &mut Results, effort: f64, mode: &str) {
    let up = device::up(mode).into_iter().chain(["--loss-recovery", "go-back-n"].map(str::to_owned)).collect();
    let hosts = Hosts::start_with(ETHERNET.mtu, Options { up, ..Options::default() });
    Bench { hosts, wire: ETHERNET, effort }.goodput(results, GOODPUT_BACK, "ib_write_bw");
}

/// The same WRITEs through a tunnel with and one without authentication, by turns.
fn authentication(results: &mut Results, wire: Wire, effort: f64, mode: &str) {
    let start = |further: &[&str]| {
        let up = device::up(mode).into_iter().chain(further.iter().copied().map(str::to_owned)).collect();
        let hosts = Hosts::start_with(wire.mtu, Options { up, ..Options::default() });
        Bench { hosts, wire, effort }
    };
    let benches = [(WITH, start(&[])), (WITHOUT, start(&["--underlay-security", "none"]))];
    for _ in 0..TURNS {
        for (name, bench) in &benches {
            let perftest = bench.perftest();
            results.add(&wire.group(AUTHENTICATED_WRITE), name, Unit::MegabytesPerSecond, perftest.write(2 << 30));
            results.add(&wire.group(AUTHENTICATED_LATENCY), name, Unit::Microseconds, perftest.write_latency(30_000));
        }
    }
}

/// Measures everything once on both wires, with fresh routers.
pub(crate) fn measure(results: &mut Results, effort: f64, mode: &str) {
    for wire in [ETHERNET, JUMBO] {
        let hosts = Hosts::start_with(wire.mtu, Options { up: device::up(mode), ..Options::default() });
        let bench = Bench { hosts, wire, effort };
        bench.tcp(results);
        bench.bandwidths(results);
        processor::measure(results, &wire.group(processor::GROUP), &bench.hosts.pair(), &wire.options(), effort);
        if bench.is_whole() {
            bench.messages(results);
        }
        if bench.wire == ETHERNET {
            bench.connections(results);
            bench.losses(results);
            if effort >= 1.0 {
                losses_with_go_back_n(results, effort, mode);
            }
        }
        let Bench { wire, .. } = bench;
        authentication(results, wire, effort, mode);
    }
}

struct Bench {
    hosts: Hosts,
    wire: Wire,
    effort: f64,
}

impl Bench {
    fn perftest(&self) -> Perftest<'_> {
        Perftest { pair: self.hosts.pair(), options: self.wire.options(), effort: self.effort }
    }

    /// Whether all is measured. A quick run is to see that everything runs, which one wire shows.
    fn is_whole(&self) -> bool {
        self.effort >= 1.0 || self.wire == ETHERNET
    }

    fn sizes(&self) -> &'static [u64] {
        if self.is_whole() { &SIZES } else { &SIZES[SIZES.len() - 1..] }
    }

    fn tcp(&self, results: &mut Results) {
        let description = Hosts::description(SERVER);
        let address = description["address"].as_str().expect("hosts have addresses");
        tcp::measure(results, &self.wire.group(TCP), self.sizes(), self.effort, address, |side, words| {
            let host = if side == Side::Server { SERVER } else { CLIENT };
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/run/netns/{}", self.hosts.netns(host))).arg("--").args(words);
            Program::start(command)
        });
        let pair = self.hosts.pair();
        tcp::measure(results, &self.wire.group(VXLAN), self.sizes(), self.effort, &pair.address, tcp::between(&pair));
    }

    /// Bandwidth by size, and the fraction of a packet's time that each router spends on its CRC.
    fn bandwidths(&self, results: &mut Results) {
        let packet = self.wire.packet;
        self.perftest().bandwidths(results, self.sizes(), 2 << 30, |what| self.wire.group(what));
        let bandwidth = results.last(&self.wire.group(device::WRITE), "1 MB");
        if let Some((megabytes, cost)) = bandwidth.zip(results.last(crc::GROUP, &crc::name(packet))) {
            let nanoseconds = packet as f64 / megabytes * 1e3;
            let name = format!("{packet} B, of a packet's time in 1 MB WRITEs");
            results.add(crc::GROUP, &name, Unit::Percent, cost / nanoseconds * 100.0);
        }
    }

    fn messages(&self, results: &mut Results) {
        let (perftest, group) = (self.perftest(), |what: &str| self.wire.group(what));
        let latencies = [device::LATENCY, device::EVENTS].map(group);
        perftest.latencies(results, latencies.each_ref().map(String::as_str), 30_000);
        perftest.rates(results, &group(device::RATE), 500_000);
        perftest.queue_pairs(results, &group(device::PAIRS), &[8, 64], 128_000);
    }

    fn connections(&self, results: &mut Results) {
        let connections = (5_000.0 * self.effort) as u64;
        setup::connections(results, &self.wire.group(setup::CONNECTIONS), &self.hosts.pair(), connections);
    }

    fn losses(&self, results: &mut Results) {
        self.goodput(results, GOODPUT, "ib_write_bw");
        self.goodput(results, READ_GOODPUT, "ib_read_bw");
    }

    fn goodput(&self, results: &mut Results, group: &str, program: &str) {
        let (perftest, group) = (self.perftest(), self.wire.group(group));
        for loss in LOSSES {
            self.hosts.set_faults(&format!("loss={loss},seed=1"));
            // perftest counts whole seconds.
            let seconds = (3.0 * self.effort).max(1.0) as u64;
            results.add(&group, loss, Unit::MegabytesPerSecond, perftest.goodput(program, seconds));
        }
        self.hosts.set_faults("off");
    }
}

/// The hosts of [`Hosts::pair`].
const SERVER: usize = 0;
const CLIENT: usize = 1;
