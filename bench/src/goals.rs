//! What the figures should be, as ratios within one run.

use crate::results::Results;
use crate::{copy, device, pingpong};
use serde::Serialize;

/// A goal and what became of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Goal {
    /// What is compared.
    pub(crate) what: &'static str,
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
    let ratio = |a: (&str, &str), b: (&str, &str)| Some(results.median(a.0, a.1)? / results.median(b.0, b.1)?);
    let half_trip = (device::LATENCY, "WRITE, half round trip");
    let memcpy = (copy::SHARED, "1 MB");
    [
        goal("1 MB WRITE bandwidth / memcpy of 1 MB", ratio((device::WRITE, "1 MB"), memcpy), 0.8, true),
        goal("8 KB WRITE bandwidth / memcpy of 1 MB", ratio((device::WRITE, "8 KB"), memcpy), 0.4, true),
        goal(
            "2 B WRITE half round trip / shared memory with a third process between, yielding",
            results.median(half_trip.0, half_trip.1).zip(pingpong::relayed(results)).map(|(ours, raw)| ours / raw),
            1.5,
            false,
        ),
        goal(
            "system calls a message, router, all its life",
            results.median(device::COST, "system calls, router"),
            0.01,
            false,
        ),
        goal(
            "system calls a message, client, all its life",
            results.median(device::COST, "system calls, client"),
            0.01,
            false,
        ),
        goal(
            "processor use with 64 idle contexts, % of a core",
            results.median(device::COST, "router with 64 idle contexts"),
            1.0,
            false,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn goal(what: &'static str, value: Option<f64>, bound: f64, at_least: bool) -> Option<Goal> {
    let value = value?;
    let met = if at_least { value >= bound } else { value <= bound };
    Some(Goal { what, value, bound, at_least, met })
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
        results.add(device::COST, "router with 64 idle contexts", Unit::PercentOfCore, 0.5);
        let goals = judge(&results);
        assert_eq!(goals.iter().map(|g| g.met).collect::<Vec<_>>(), [false, true]);
    }
}
