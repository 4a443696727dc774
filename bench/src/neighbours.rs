//! Attacks of an unprivileged program on its neighbours: what a neighbour has alone, beside a program that only computes, and
//! beside the attack.
//!
//! A neighbour is a pair of programs on two endpoints of one tenant network; the attacker is on an endpoint of another one, with
//! default quotas. A program that computes takes its part of the processors, which the router cannot prevent: an attack is
//! compared with it.

use crate::contention;
use crate::goals::{Goal, goal};
use crate::report::number;
use crate::results::{Results, Unit};
use crate::{device, hosts, setup};
use rdmesh_tests::{Endpoint, Hosts, Lab, Options, Peer, Program, helper};
use std::ffi::OsString;
use std::fmt::Write;
use std::time::Duration;

/// An attack, and what it must leave to a neighbour.
struct Attack {
    name: &'static str,
    /// The case of the program `attack`, with its numbers; those of a quick run behind it.
    case: [&'static str; 2],
    bounds: Bounds,
}

/// Bounds of the ratios of figures during the attack to those beside a program that computes.
#[derive(Clone, Copy)]
struct Bounds {
    /// Of the rate of WRITEs, from below.
    rate: f64,
    /// Of the worst WRITE and the worst set-up, from above.
    worst: f64,
}

/// The attacker's share is half of what there is.
const HALF: Bounds = Bounds { rate: 0.5, worst: 3.0 };
/// The attack costs the neighbour nothing but processor time.
const NOTHING: Bounds = Bounds { rate: 0.8, worst: 3.0 };

const ATTACKS: [Attack; 10] = [
    Attack { name: "memory that answers in 450 ms", case: ["slow 8", "slow 8"], bounds: NOTHING },
    Attack {
        name: "empty datagrams to 1,024 members, 64 queue pairs",
        case: ["multicast 64 1024", "multicast 64 1024"],
        bounds: HALF,
    },
    Attack { name: "20 connections that register and deregister", case: ["churn 20", "churn 20"], bounds: HALF },
    Attack { name: "programs that end with 2 GiB registered", case: ["pinned 2048", "pinned 512"], bounds: HALF },
    Attack { name: "memory of 2 GiB with refused messages", case: ["memfd 2048", "memfd 512"], bounds: HALF },
    Attack { name: "256 busy queue pairs of 1 MiB", case: ["writes 256 1048576", "writes 256 1048576"], bounds: HALF },
    Attack { name: "1,024 busy queue pairs of 8 B", case: ["writes 1024 8", "writes 1024 8"], bounds: HALF },
    Attack { name: "16,000 queue pairs in error closed at once", case: ["errors 16000", "errors 4000"], bounds: HALF },
    Attack { name: "DEALLOC_PD with 524,000 keys", case: ["dealloc 524000", "dealloc 60000"], bounds: HALF },
    Attack { name: "1,000 idle contexts", case: ["idle 1000", "idle 1000"], bounds: NOTHING },
];
/// Of two hosts.
const FLOOD: &str = "datagrams to the own plain socket";

/// Names of figures; those of an attack have [`DURING`] behind them.
const WRITE: &str = "WRITE, 8 B, median";
const WRITE_WORST: &str = "WRITE, 8 B, worst";
const RATE: &str = "WRITEs, 8 B, 48 under way";
const SETUP: &str = "set-up, median";
const SETUP_WORST: &str = "set-up, worst";
const CONNECTION: &str = "rdma_cm connection to another host";
const BEFORE: &str = "before";
const COMPUTING: &str = "beside a program that computes";
const DURING: &str = "during";
const MOMENTS: [&str; 3] = [BEFORE, COMPUTING, DURING];

/// Measures attacks on one host, each at a router of its own.
pub(crate) fn measure_one_host(results: &mut Results, effort: f64, mode: &str) {
    for attack in &ATTACKS {
        let lab = Lab::start_with(Options { up: device::up(mode), ..Options::default() });
        let endpoint = |number: u8| Endpoint::at(&format!("n{number}"), NET, &format!("10.7.0.{number}"));
        let [mut a, mut b] = [2, 3].map(|number| Peer::start(&lab, &endpoint(number), &[]));
        Peer::connect(&mut a, &mut b);
        sample(results, attack.name, BEFORE, &mut a, effort);
        let computing = contention::busy_loop();
        sample(results, attack.name, COMPUTING, &mut a, effort);
        drop(computing);
        let attacker =
            begin(&lab, &Endpoint::at("attacker", "other", "10.9.0.2"), attack.case[usize::from(effort < 1.0)]);
        sample(results, attack.name, DURING, &mut a, effort);
        drop(attacker);
    }
}

/// Measures the attack on connections to another host.
pub(crate) fn measure_two_hosts(results: &mut Results, effort: f64, mode: &str) {
    let wire = hosts::ETHERNET;
    let hosts = Hosts::start_with(wire.mtu(), Options { up: device::up(mode), ..Options::default() });
    // `red` is the attacker's network: it floods the client's host.
    let lab = hosts.lab(1);
    for moment in MOMENTS {
        let _attacker = match moment {
            BEFORE => None,
            COMPUTING => Some(contention::busy_loop()),
            _ => Some(begin(lab, &Hosts::endpoint(1, "red"), "flood")),
        };
        let time = setup::established(&hosts.pair(), (200.0 * effort) as u64);
        results.add(&group(FLOOD), &name(CONNECTION, moment), Unit::Microseconds, time);
    }
}

/// Ratios of all attacks against their bounds.
pub(crate) fn judge(results: &Results) -> Vec<Option<Goal>> {
    let mut goals = Vec::new();
    for attack in &ATTACKS {
        let text = |what: &str| format!("beside {}: {what}, during / beside a program that computes", attack.name);
        goals.push(goal(&text("rate of WRITEs"), ratio(results, attack.name, RATE), attack.bounds.rate, true));
        for (what, figure) in [("worst WRITE", WRITE_WORST), ("worst set-up", SETUP_WORST)] {
            goals.push(goal(&text(what), ratio(results, attack.name, figure), attack.bounds.worst, false));
        }
    }
    let text = format!("beside {FLOOD}: {CONNECTION}, during / beside a program that computes");
    goals.push(goal(&text, ratio(results, FLOOD, CONNECTION), 2.0, false));
    goals
}

/// A table of all attacks, for the page.
pub(crate) fn page(results: &Results) -> String {
    let mut text = String::from(
        "\n| attack | figure | alone | beside a program that computes | beside the attack | ratio of these two |\n|---|---|---|---|---|---|\n",
    );
    for attack in ATTACKS.iter().map(|attack| attack.name).chain([FLOOD]) {
        for (what, unit) in
            [(WRITE, "µs"), (WRITE_WORST, "µs"), (RATE, "/s"), (SETUP, "µs"), (SETUP_WORST, "µs"), (CONNECTION, "µs")]
        {
            let figures = MOMENTS.map(|moment| results.median(&group(attack), &name(what, moment)));
            if let [Some(before), Some(computing), Some(during)] = figures {
                let [b, c, d, ratio] = [before, computing, during, during / computing].map(number);
                let _ = writeln!(text, "| {attack} | {what}, {unit} | {b} | {c} | {d} | {ratio} |");
            }
        }
    }
    text
}

fn begin(lab: &Lab, endpoint: &Endpoint, case: &str) -> Program {
    let words = std::iter::once(helper("attack").into_os_string()).chain(case.split(' ').map(OsString::from));
    let mut program = lab.start_in(endpoint, &words.collect::<Vec<_>>());
    assert_eq!(program.next_line(LIMIT), "ready");
    program
}

/// Takes the neighbour's figures.
fn sample(results: &mut Results, attack: &str, moment: &str, peer: &mut Peer, effort: f64) {
    let seconds = SECONDS * effort.max(0.25);
    let mut take = |what| {
        let answer = peer.ask(&format!("sample {what} {seconds}"));
        let figures: Vec<f64> = answer.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
        <[f64; 4]>::try_from(figures).expect("four figures")
    };
    let [_, median, _, worst] = take("write");
    let mut add = |what, unit, value| results.add(&group(attack), &name(what, moment), unit, value);
    add(WRITE, Unit::Microseconds, median);
    add(WRITE_WORST, Unit::Microseconds, worst);
    let [count, ..] = take("stream");
    add(RATE, Unit::PerSecond, count / seconds);
    let [_, median, _, worst] = take("setup");
    add(SETUP, Unit::Microseconds, median);
    add(SETUP_WORST, Unit::Microseconds, worst);
}

fn ratio(results: &Results, attack: &str, what: &str) -> Option<f64> {
    let [computing, during] = [COMPUTING, DURING].map(|moment| results.median(&group(attack), &name(what, moment)));
    Some(during? / computing?)
}

fn group(attack: &str) -> String {
    format!("neighbours, beside {attack}")
}

fn name(what: &str, moment: &str) -> String {
    format!("{what}, {moment}")
}

const NET: &str = "neighbours";
/// Of one kind of sample.
const SECONDS: f64 = 1.5;
const LIMIT: Duration = Duration::from_secs(120);
