//! Shares of busy endpoints and tenants, many queue pairs beside one, and a high priority beside a bulk of data.

use super::{DEPTH, GIGA, NET, WRITE, seconds, set};
use crate::device;
use crate::perftest::Perftest;
use crate::results::{Results, Unit};
use rdmesh_tests::{Endpoint, Flow, FlowOptions, Lab, Options, Pair, Peer};

/// Groups of figures.
pub(super) const SHARES: &str = "policies, shares";
pub(super) const PAIRS: &str = "policies, WRITEs of 8 KB, by queue pairs";
pub(super) const PRIORITY: &str = "policies, WRITE of 8 B by priority";
/// Names of figures.
pub(super) const ONE: [&str; 2] = ["perftest, 1", "one buffer, 1"];
pub(super) const ALL: [&str; 2] = ["perftest, 512", "one buffer, 512"];
pub(super) const MOMENTS: [&str; 3] =
    ["nothing else sends", "beside a bulk, usual priority", "beside a bulk, high priority"];
pub(super) const P99: &str = ", p99";

/// Ways in which two senders compete, by the name of their figures.
pub(super) const CONTESTS: [Contest; 5] = [
    Contest { name: "two tenants", nets: ["few", "many"], weights: [100, 100], limit: None },
    Contest { name: "two endpoints, weights 1 and 3", nets: [NET, NET], weights: [100, 300], limit: None },
    Contest { name: "two endpoints, weights 3 and 1", nets: [NET, NET], weights: [300, 100], limit: None },
    Contest { name: "two endpoints under 1 Gb/s", nets: [NET, NET], weights: [100, 100], limit: Some("1G") },
    Contest {
        name: "two endpoints under 1 Gb/s, weights 1 and 3",
        nets: [NET, NET],
        weights: [100, 300],
        limit: Some("1G"),
    },
];

/// Two senders: one with a single queue pair, and one with many.
pub(super) struct Contest {
    pub(super) name: &'static str,
    nets: [&'static str; 2],
    pub(super) weights: [u32; 2],
    /// Rate of both together.
    limit: Option<&'static str>,
}

/// Measures on one host, with fresh routers.
pub(super) fn measure(results: &mut Results, effort: f64, mode: &str) {
    for contest in &CONTESTS {
        let lab = start(mode);
        let bits = contest.hold(&lab, seconds(effort));
        for (place, bits) in bits.into_iter().enumerate() {
            results.add(SHARES, &contest.figure(place), Unit::GigabitsPerSecond, bits / GIGA);
        }
    }
    measure_pairs(results, effort, mode);
    measure_priority(results, effort, mode);
}

impl Contest {
    /// Lets both send at once; returns the bits of each in a second.
    fn hold(&self, lab: &Lab, seconds: f64) -> [f64; 2] {
        let mut flows = [0, 1].map(|place| {
            let endpoint = Endpoint::at(&format!("sender{place}"), self.nets[place], &format!("10.7.0.{}", 2 + place));
            set(lab, &endpoint.scope(), &["--weight", &self.weights[place].to_string()]);
            // As many bytes under way, whatever number of queue pairs.
            let (pairs, depth) = [(1, MANY * 2), (MANY, 2)][place];
            join(lab, &endpoint, place, FlowOptions { kind: "rc", pairs, depth, len: WRITE.len })
        });
        if let Some(limit) = self.limit {
            set(lab, "tenant/default", &["--rate", limit]);
        }
        flows.iter_mut().for_each(|(from, _)| from.begin("write", seconds, None));
        flows.each_mut().map(|(from, _)| from.end().bits())
    }

    pub(super) fn figure(&self, place: usize) -> String {
        format!("{}: {}", self.name, ["1 queue pair", "100 queue pairs"][place])
    }

    /// Jain's index of the two, by their weights.
    pub(super) fn jain(&self, results: &Results) -> Option<f64> {
        let share = |place: usize| Some(results.median(SHARES, &self.figure(place))? / f64::from(self.weights[place]));
        let (a, b) = (share(0)?, share(1)?);
        Some((a + b).powi(2) / (2.0 * (a * a + b * b)))
    }
}

/// All queue pairs at once against a single one: perftest has a buffer for each, which is more than a cache holds; `flow` has
/// one buffer for all.
fn measure_pairs(results: &mut Results, effort: f64, mode: &str) {
    let lab = start(mode);
    let (server, client) = (Endpoint::at("server", NET, "10.7.0.2"), Endpoint::at("client", NET, "10.7.0.3"));
    let pair = Pair { server: (&lab, server), client: (&lab, client.clone()), address: "10.7.0.2".to_owned() };
    let perftest = Perftest { pair, options: String::new(), effort };
    for (place, pairs) in [(0, 1), (1, 512_u32)] {
        let name = [ONE, ALL][place];
        let found = perftest.write_at_once(pairs.into(), 1_024_000);
        results.add(PAIRS, name[0], Unit::MegabytesPerSecond, found);
        let options = FlowOptions { kind: "rc", pairs, depth: 1024 / pairs, len: 8 << 10 };
        let (mut from, _to) = join(&lab, &client, 2, options);
        from.begin("write", seconds(effort), None);
        results.add(PAIRS, name[1], Unit::MegabytesPerSecond, from.end().bits() / 8e6);
    }
}

/// One small WRITE after the other, beside a tenant that sends as much as it can.
fn measure_priority(results: &mut Results, effort: f64, mode: &str) {
    let lab = start(mode);
    let endpoint = |number: u8| Endpoint::at(&format!("urgent{number}"), "urgent", &format!("10.8.0.{number}"));
    let [mut a, mut b] = [2, 3].map(|number| Peer::start(&lab, &endpoint(number), &[]));
    Peer::connect(&mut a, &mut b);
    let options = FlowOptions { kind: "rc", pairs: 4, depth: DEPTH, len: WRITE.len };
    for moment in MOMENTS {
        let seconds = seconds(effort);
        let mut bulk = (moment != MOMENTS[0]).then(|| join(&lab, &Endpoint::at("bulk", NET, "10.7.0.2"), 0, options));
        if moment == MOMENTS[2] {
            set(&lab, &endpoint(2).scope(), &["--priority", "high"]);
        }
        if let Some((from, _)) = &mut bulk {
            from.begin("write", 2.0 * seconds, None);
        }
        let answer = a.ask(&format!("sample write {seconds}"));
        let figures: Vec<f64> = answer.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
        let [_, median, p99, _] = figures[..] else { panic!("four figures: {answer}") };
        results.add(PRIORITY, moment, Unit::Microseconds, median);
        results.add(PRIORITY, &format!("{moment}{P99}"), Unit::Microseconds, p99);
        if let Some((from, _)) = &mut bulk {
            let bits = from.end().bits();
            results.add(PRIORITY, &format!("{moment}: the bulk"), Unit::GigabitsPerSecond, bits / GIGA);
        }
    }
}

/// A sender at an endpoint, and a receiver on another one of its network.
fn join(lab: &Lab, endpoint: &Endpoint, number: usize, options: FlowOptions) -> (Flow, Flow) {
    let receiver = Endpoint::at(&format!("receiver{number}"), endpoint.network(), &format!("10.7.0.{}", 200 + number));
    let mut from = Flow::start(lab, endpoint, options);
    let mut to = Flow::start(lab, &receiver, options);
    Flow::connect(&mut from, &mut to);
    (from, to)
}

fn start(mode: &str) -> Lab {
    Lab::start_with(Options { up: device::up(mode), ..Options::default() })
}

/// Queue pairs of the sender that has many.
const MANY: u32 = 100;
