//! Performance goals, as ratios within one run.

use crate::contention::{self, Load, Site};
use crate::hosts::{self, ETHERNET, JUMBO, Wire};
use crate::perftest::WRITE_LATENCY;
use crate::results::Results;
use crate::{
    chains, copy, device, endpoints, mpi, neighbours, pingpong, policies, pools, registration, setup, sockets, tcp,
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
    let contended = [Site::One, Site::Two].map(|site| beside_load(results, site));
    let whole = one_host(results).into_iter().chain(two_hosts(results)).chain(contended.into_iter().flatten());
    let others = neighbours::judge(results).into_iter().chain(chains::judge(results)).chain(policies::judge(results));
    let others = others.chain(sockets::judge(results)).chain(pools::judge(results)).chain(mpi::judge(results));
    whole.chain(others).flatten().collect()
}

/// Latency under contention, and the fraction of the bandwidth that is left, against kernel TCP.
fn beside_load(results: &Results, site: Site) -> Vec<Option<Goal>> {
    let of = |load, name: &str| results.median(&contention::group(site, load), name);
    let latency = |what, percentile| {
        let figure = |what| of(Load::Busy, &contention::name(what, percentile));
        let text = format!("{}, beside busy loops: 2 B {what}, {percentile} / kernel TCP", site.name());
        goal(&text, ratio(figure(what), figure(contention::TCP)), 3.0, false)
    };
    let kept = |name| ratio(of(Load::Busy, name), of(Load::Idle, name));
    let mut goals = Vec::new();
    for what in [contention::SEND, contention::WRITE] {
        goals.extend([contention::P50, contention::P99].map(|percentile| latency(what, percentile)));
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
            "connections made, used and ended a second",
            results.median(setup::CONNECTIONS, setup::RATE),
            1000.0,
            true,
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

fn two_hosts(results: &Results) -> [Option<Goal>; 12] {
    let median = |wire: &Wire, what, name| results.median(&wire.group(what), name);
    let bandwidth = |wire, what| median(wire, what, "1 MB");
    let against_tcp = |wire| ratio(bandwidth(wire, device::WRITE), bandwidth(wire, hosts::VXLAN));
    let half_trip =
        |tcp| ratio(median(&ETHERNET, device::LATENCY, WRITE_LATENCY), median(&ETHERNET, tcp, tcp::LATENCY));
    let goodput = |loss| median(&ETHERNET, hosts::GOODPUT, loss);
    let kept = |loss| ratio(goodput(loss), goodput("0%"));
    let by_authentication = |wire, what| [hosts::WITH, hosts::WITHOUT].map(|name| median(wire, what, name));
    let authenticated = |wire| {
        let [with, without] = by_authentication(wire, hosts::AUTHENTICATED_WRITE);
        ratio(with, without)
    };
    let later = |wire| {
        let [with, without] = by_authentication(wire, hosts::AUTHENTICATED_LATENCY);
        Some(with? - without?)
    };
    [
        goal("two hosts, MTU 1500: 1 MB WRITE bandwidth / kernel TCP over VXLAN", against_tcp(&ETHERNET), 1.0, true),
        goal("two hosts, MTU 1500: 1 MB WRITE bandwidth, MB/s", bandwidth(&ETHERNET, device::WRITE), 1250.0, true),
        goal("two hosts, MTU 9000: 1 MB WRITE bandwidth / kernel TCP over VXLAN", against_tcp(&JUMBO), 1.0, true),
        goal("two hosts: 2 B WRITE half round trip / kernel TCP between the hosts", half_trip(hosts::TCP), 0.7, false),
        goal("two hosts: 2 B WRITE half round trip / kernel TCP over VXLAN", half_trip(hosts::VXLAN), 0.7, false),
        goal(
            "two hosts, MTU 1500: 1 MB WRITE bandwidth with authentication / without",
            authenticated(&ETHERNET),
            0.95,
            true,
        ),
        goal(
            "two hosts, MTU 9000: 1 MB WRITE bandwidth with authentication / without",
            authenticated(&JUMBO),
            0.95,
            true,
        ),
        goal(
            "two hosts, MTU 1500: 2 B WRITE half round trip, what authentication adds, µs",
            later(&ETHERNET),
            0.5,
            false,
        ),
        goal("two hosts, MTU 9000: 2 B WRITE half round trip, what authentication adds, µs", later(&JUMBO), 0.5, false),
        goal("two hosts: goodput with 0.1% of the packets lost / without loss", kept("0.1%"), 0.99, true),
        goal("two hosts: goodput with 1% of the packets lost / without loss", kept("1%"), 0.96, true),
        goal("two hosts: goodput with 5% of the packets lost / without loss", kept("5%"), 0.88, true),
    ]
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
