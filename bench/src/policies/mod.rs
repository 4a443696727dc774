//! Policies: rates that are kept, what keeping them costs, shares, and what a higher priority has.
//!
//! The program `flow` of the tests sends, and sleeps on completion events: on a machine with few processors a program that polls
//! would take the router's time.

mod shares;
mod verdict;

use crate::device;
use crate::hosts::JUMBO;
use crate::results::{Results, Unit};
use rdmesh_tests::{Endpoint, Flow, FlowOptions, Hosts, Lab, Options, Poured, system};
pub(crate) use verdict::{flows, judge, page, rates};

/// Groups of figures.
pub(crate) const ONE_HOST: &str = "policies, one host";
pub(crate) const TWO_HOSTS: &str = "policies, two hosts";
/// Names of figures.
const UNLIMITED: &str = "WRITE, 64 KB, no limit";
const LIMITED: &str = "limited by a policy";
const PACED: &str = "by a program that paces itself";

/// Kind of traffic, and its limit in Gb/s.
const LIMITS: [(Op, f64); 8] = [
    (WRITE, 0.1),
    (WRITE, 1.0),
    (WRITE, 5.0),
    (WRITE, 10.0),
    (READ, 0.1),
    (READ, 1.0),
    (DATAGRAM, 0.1),
    (DATAGRAM, 1.0),
];
/// Rates at which the router's processor time is compared.
const COSTS: [f64; 3] = [0.1, 1.0, 5.0];
/// Flows with limits at once: each one's number times this many Gb/s.
const FLOWS: u32 = 10;
const FLOW_UNIT: f64 = 1.0;

/// An operation by the name of its figures, the program's, and its queue pairs.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Op {
    name: &'static str,
    op: &'static str,
    kind: &'static str,
    len: u64,
}

const WRITE: Op = Op { name: "WRITE, 64 KB", op: "write", kind: "rc", len: 64 << 10 };
const READ: Op = Op { name: "READ, 16 KB", op: "read", kind: "rc", len: 16 << 10 };
const DATAGRAM: Op = Op { name: "datagrams, 1 KB", op: "send", kind: "ud", len: 1 << 10 };

/// Two endpoints, by their routers.
struct Site<'a> {
    group: &'static str,
    server: (&'a Lab, Endpoint),
    client: (&'a Lab, Endpoint),
    seconds: f64,
}

/// Measures on one host, with fresh routers.
pub(crate) fn measure_one_host(results: &mut Results, effort: f64, mode: &str) {
    let lab = Lab::start_with(Options { up: device::up(mode), ..Options::default() });
    let endpoint = |name, ip| (&lab, Endpoint::at(name, NET, ip));
    let (server, client) = (endpoint("server", "10.7.0.2"), endpoint("client", "10.7.0.3"));
    let site = Site { group: ONE_HOST, server, client, seconds: seconds(effort) };
    site.measure(results);
    site.pour_many(results);
    shares::measure(results, effort, mode);
}

/// Measures between two hosts.
pub(crate) fn measure_two_hosts(results: &mut Results, effort: f64, mode: &str) {
    let hosts = Hosts::start_with(JUMBO.mtu(), Options { up: device::up(mode), ..Options::default() });
    let pair = hosts.pair();
    let (server, client) = (pair.server, pair.client);
    let site = Site { group: TWO_HOSTS, server, client, seconds: seconds(effort) };
    site.measure(results);
}

impl Site<'_> {
    fn measure(&self, results: &mut Results) {
        let free = self.pour(WRITE, DEPTH, None).bits() / GIGA;
        results.add(self.group, UNLIMITED, Unit::GigabitsPerSecond, free);
        for (op, limit) in LIMITS {
            self.limit(Some(limit));
            let found = self.pour(op, DEPTH, None).bits() / GIGA;
            results.add(self.group, &limited(op, limit), Unit::GigabitsPerSecond, found);
        }
        for rate in COSTS {
            self.compare_cost(results, rate);
        }
        self.limit(None);
    }

    /// Sets the rate of the client's endpoint, in Gb/s.
    fn limit(&self, rate: Option<f64>) {
        let (lab, client) = &self.client;
        set_rate(lab, &client.scope(), rate);
    }

    /// Sends from the client to the server.
    fn pour(&self, op: Op, depth: u32, bytes: Option<f64>) -> Poured {
        let options = FlowOptions { kind: op.kind, pairs: 1, depth, len: op.len };
        let (mut from, mut to) = self.connect(options, &self.client.1, &self.server.1);
        if op == DATAGRAM {
            to.sink();
        }
        from.begin(op.op, self.seconds, bytes);
        let poured = from.end();
        if op == DATAGRAM {
            to.stop();
        }
        poured
    }

    fn connect(&self, options: FlowOptions, client: &Endpoint, server: &Endpoint) -> (Flow, Flow) {
        let mut from = Flow::start(self.client.0, client, options);
        let mut to = Flow::start(self.server.0, server, options);
        Flow::connect(&mut from, &mut to);
        (from, to)
    }

    /// Processor time of all routers for a rate that a policy keeps, and for the same one that a program keeps to by itself; by
    /// turns, in both orders.
    fn compare_cost(&self, results: &mut Results, rate: f64) {
        let mut sums = [(0.0, 0.0); 2];
        for way in [0, 1, 1, 0] {
            self.limit((way == 0).then_some(rate));
            let before = self.processor_time();
            let poured = self.pour(WRITE, DEPTH, (way == 1).then_some(rate * GIGA / 8.0));
            sums[way].0 += self.processor_time() - before;
            sums[way].1 += poured.all;
        }
        for (way, (time, bytes)) in [LIMITED, PACED].into_iter().zip(sums) {
            results.add(self.group, &cost(rate, way), Unit::Nanoseconds, time * 1e9 / (bytes / 1024.0));
        }
    }

    fn processor_time(&self) -> f64 {
        let [server, client] = [self.server.0, self.client.0].map(Lab::router_pid);
        system::cpu_seconds(client) + if server == client { 0.0 } else { system::cpu_seconds(server) }
    }

    /// Endpoints with a limit each, all at once.
    fn pour_many(&self, results: &mut Results) {
        let options = FlowOptions { kind: "rc", pairs: 1, depth: DEPTH, len: WRITE.len };
        let begin = |number: u32| {
            let [client, server] = [("flow", 100), ("sink", 200)].map(|(name, first)| {
                Endpoint::at(&format!("{name}{number}"), NET, &format!("10.7.0.{}", first + number))
            });
            set_rate(self.client.0, &client.scope(), Some(f64::from(number) * FLOW_UNIT));
            self.connect(options, &client, &server)
        };
        let mut flows: Vec<_> = (1..=FLOWS).map(begin).collect();
        flows.iter_mut().for_each(|(from, _)| from.begin("write", self.seconds, None));
        for (number, (from, _)) in (1..).zip(&mut flows) {
            results.add(self.group, &flow(number), Unit::GigabitsPerSecond, from.end().bits() / GIGA);
        }
    }
}

/// Sets the rate of a scope, in Gb/s, or takes its policy away.
fn set_rate(lab: &Lab, scope: &str, rate: Option<f64>) {
    match rate {
        Some(rate) => set(lab, scope, &["--rate", &format!("{rate}G")]),
        // There may be none.
        None => drop(lab.command(&["policy", "rm", scope])),
    }
}

/// Sets the policy of a scope.
fn set(lab: &Lab, scope: &str, options: &[&str]) {
    lab.command(&[&["policy", "set", scope], options].concat()).ok();
}

fn limited(op: Op, limit: f64) -> String {
    format!("{}, limit {limit} Gb/s", op.name)
}

fn cost(rate: f64, way: &str) -> String {
    format!("router's time for a KB at {rate} Gb/s, {way}")
}

fn flow(number: u32) -> String {
    format!("flow {number} of {FLOWS}, limit {} Gb/s", f64::from(number) * FLOW_UNIT)
}

fn seconds(effort: f64) -> f64 {
    SECONDS * effort.max(0.1)
}

const NET: &str = "bench";
/// Of one measurement.
const SECONDS: f64 = 2.0;
const DEPTH: u32 = 32;
const GIGA: f64 = 1e9;
