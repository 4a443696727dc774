//! Performance goals, as ratios within one run.

use crate::contention::{self, Load, Site};
use crate::hosts::{self, ETHERNET, JUMBO, Wire};
use crate::perftest::WRITE_LATENCY;
use crate::results::Results;
use crate::{
    chains, copy, device, endpoints, mpi, neighbours, pingpong, policies, pools, processor, registration, setup,
    sockets,
};
use serde::{Deserialize, Serialize};

/// A goal and what became of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Goal {
    /// The compared figures, in words.
    pub(crate) what: String,
    /// The ratio or value that was measured.
    pub(crate) value: f64,
    /// The bound.
    pub(crate) bound: f64,
    /// Whether the bound is a lower one.
    pub(crate) at_least: bool,
    /// Whether it was met.
    pub(crate) met: bool,
}

/// Holds the figures to the goals. A goal whose figures are missing is left out.
pub(crate) fn judge(results: &Results) -> Vec<Goal> {
    let contended = [Site::One, Site::Two].map(|site| beside_tcp(results, site));
    let whole = one_host(results).into_iter().chain(two_hosts(results)).chain(contended.into_iter().flatten());
    let others = neighbours::judge(results).into_iter().chain(chains::judge(results)).chain(policies::judge(results));
    let others = others.chain(sockets::judge(results)).chain(pools::judge(results)).chain(mpi::judge(results));
    whole.chain(others).flatten().collect()
}

/// Latency when nothing else runs and beside busy loops, and the fraction of the bandwidth that is left, against kernel TCP.
fn beside_tcp(results: &Results, site: Site) -> Vec<Option<Goal>> {
    let of = |load, name: &str| results.median(&contention::group(site, load), name);
    let latency = |load, what, percentile, bound| {
        let figure = |what| of(load, &contention::name(what, percentile));
        let beside = if load == Load::Busy { ", beside busy loops" } else { "" };
        let text = format!("{}{beside}: 2 B {what}, {percentile} / kernel TCP", site.name());
        goal(&text, ratio(figure(what), figure(contention::TCP)), bound, false)
    };
    let kept = |name| ratio(of(Load::Busy, name), of(Load::Idle, name));
    let mut goals = Vec::new();
    for what in [contention::SEND, contention::WRITE] {
        goals.push(latency(Load::Idle, what, contention::P50, 0.5));
        goals.push(latency(Load::Idle, what, contention::P99, 0.5));
        goals.push(latency(Load::Busy, what, contention::P50, 0.5));
        goals.push(latency(Load::Busy, what, contention::P99, 1.0));
    }
    let text =
        format!("{}, beside busy loops: part of the 64 KB WRITE bandwidth that is kept / of kernel TCP's", site.name());
    goals.push(goal(&text, ratio(kept(contention::WRITE_BANDWIDTH), kept(contention::TCP_BANDWIDTH)), 1.0, true));
    goals
}

fn one_host(results: &Results) -> [Option<Goal>; 12] {
    let bandwidth = |bytes| ratio(results.median(device::WRITE, bytes), results.median(copy::SHARED, "1 MB"));
    let half_trip = results.median(device::LATENCY, WRITE_LATENCY);
    let cost = |what| results.median(device::COST, what);
    let latency = |what| results.median(setup::QUEUE_PAIRS, what);
    [
        goal("1 MB WRITE bandwidth / memcpy of 1 MB", bandwidth("1 MB"), 0.8, true),
        goal("8 KB WRITE bandwidth / memcpy of 1 MB", bandwidth("8 KB"), 0.4, true),
        goal(
            "2 B WRITE half round trip / shared memory with a third process between, yielding",
            ratio(half_trip, pingpong::relayed(results)),
            1.5,
            false,
        ),
        goal("system calls a message, router, all its life", cost("system calls, router"), 0.01, false),
        goal("system calls a message, client, all its life", cost("system calls, client"), 0.01, false),
        goal("processor use with 64 idle contexts, % of a core", cost("router with 64 idle contexts"), 1.0, false),
        goal(
            "connections: 20,000 / those a second, or time to connect / 50 µs, whichever is less",
            connecting(results),
            1.0,
            false,
        ),
        goal(
            "SEND half round trip with all of 10000 queue pairs connected / with 2 of them",
            ratio(latency(setup::LATENCY), latency(setup::FIRST_LATENCY)),
            1.5,
            false,
        ),
        goal(
            "an endpoint in registry and session, of 1000, µs",
            results.median(endpoints::GROUP, endpoints::CREATION),
            10.0,
            false,
        ),
        goal("registration of new memory, µs a MB", registration::new(results), 500.0, false),
        goal(
            "registration of known memory, at the worst size / 20 µs and 1 µs a MB",
            registration::known(results),
            1.0,
            false,
        ),
        goal("deregistration at the worst size, µs", registration::end(results), 10.0, false),
    ]
}

/// The better of the two ways to tell how quickly connections by rdma_cm are made.
fn connecting(results: &Results) -> Option<f64> {
    let of = |name| results.median(setup::CONNECTIONS, name);
    Some((20_000.0 / of(setup::RATE)?).min(of(setup::ESTABLISHED)? / 50.0))
}

fn two_hosts(results: &Results) -> Vec<Option<Goal>> {
    let mut goals: Vec<_> = [ETHERNET, JUMBO].iter().flat_map(|wire| on_wire(results, wire)).collect();
    let goodput = |loss| results.median(&ETHERNET.group(hosts::GOODPUT), loss);
    for (loss, bound) in [("0.1%", 0.99), ("1%", 0.96), ("5%", 0.88)] {
        let text = format!("two hosts: goodput with {loss} of the packets lost / without loss");
        goals.push(goal(&text, ratio(goodput(loss), goodput("0%")), bound, true));
    }
    goals
}

/// Bandwidth, processor time and the cost of authentication on a wire between two hosts.
fn on_wire(results: &Results, wire: &Wire) -> Vec<Option<Goal>> {
    let median = |what, name| results.median(&wire.group(what), name);
    let site = wire.site();
    let mut goals = Vec::new();
    for (what, group) in [("WRITE", device::WRITE), ("READ", device::READ)] {
        let against = |tcp, size| ratio(median(group, size), median(tcp, size));
        let text = |size, tcp| format!("{site}: {size} {what} bandwidth / {tcp}");
        goals.push(goal(&text("1 MB", hosts::TCP), against(hosts::TCP, "1 MB"), 1.0, true));
        goals.push(goal(&text("1 MB", hosts::VXLAN), against(hosts::VXLAN, "1 MB"), 1.2, true));
        goals.push(goal(&text("8 KB", hosts::TCP), against(hosts::TCP, "8 KB"), 1.5, true));
        let of = |name| median(processor::GROUP, name);
        let text = format!("{site}: processor time by gigabyte, {what} / {}", hosts::VXLAN);
        goals.push(goal(&text, ratio(of(group), of(hosts::VXLAN)), 1.0, false));
    }
    let [with, without] = [hosts::WITH, hosts::WITHOUT].map(|name| median(hosts::AUTHENTICATED_WRITE, name));
    let text = format!("{site}: 1 MB WRITE bandwidth with authentication / without");
    goals.push(goal(&text, ratio(with, without), 0.95, true));
    let [with, without] = [hosts::WITH, hosts::WITHOUT].map(|name| median(hosts::AUTHENTICATED_LATENCY, name));
    let text = format!("{site}: 2 B WRITE half round trip, what authentication adds, µs");
    goals.push(goal(&text, with.zip(without).map(|(with, without)| with - without), 0.5, false));
    goals
}

fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a? / b?)
}

pub(crate) fn goal(what: &str, value: Option<f64>, bound: f64, at_least: bool) -> Option<Goal> {
    let value = value?;
    let met = if at_least { value >= bound } else { value <= bound };
    Some(Goal { what: what.to_owned(), value, bound, at_least, met })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Unit;

    #[test]
    fn a_goal_is_met_on_its_own_side_of_the_bound() {
        let mut results = Results::new("spin", 1);
        results.add(device::WRITE, "1 MB", Unit::MegabytesPerSecond, 79.0);
        results.add(copy::SHARED, "1 MB", Unit::MegabytesPerSecond, 100.0);
        results.add(device::COST, "router with 64 idle contexts", Unit::Percent, 0.5);
        let goals = judge(&results);
        assert_eq!(goals.iter().map(|g| g.met).collect::<Vec<_>>(), [false, true]);
    }
}
