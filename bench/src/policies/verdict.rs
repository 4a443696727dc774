//! Goals of policies, and what their page shows.

use super::shares::{ALL, CONTESTS, MOMENTS, ONE, P99, PAIRS, PRIORITY};
use super::{
    COSTS, FLOW_UNIT, FLOWS, LIMITED, LIMITS, ONE_HOST, PACED, TWO_HOSTS, UNLIMITED, WRITE, cost, flow, limited, shares,
};
use crate::goals::{Goal, goal};
use crate::report::number;
use crate::results::Results;
use std::fmt::Write;

/// Figures against their bounds.
pub(crate) fn judge(results: &Results) -> Vec<Option<Goal>> {
    let mut goals = Vec::new();
    for group in [ONE_HOST, TWO_HOSTS] {
        let found = |name: &str| results.median(group, name);
        let free = found(UNLIMITED).unwrap_or(0.0);
        // What the machine does not reach tells nothing about a limit.
        for (op, limit) in LIMITS.into_iter().filter(|(_, limit)| *limit < REACHED * free) {
            let text = format!("{group}: {} Gb/s, deviation of {}, %", limit, op.name);
            goals.push(goal(&text, found(&limited(op, limit)).map(|found| deviation(found, limit)), 1.0, false));
        }
        for rate in COSTS.into_iter().filter(|rate| *rate < REACHED * free) {
            let [with, without] = [LIMITED, PACED].map(|way| found(&cost(rate, way)));
            let text = format!("{group}: router's time at {rate} Gb/s, limited / by a program that paces itself");
            goals.push(goal(&text, ratio(with, without), 1.05, false));
        }
    }
    let worst = flows(results).into_iter().map(|(limit, found)| deviation(found, limit)).reduce(f64::max);
    goals.push(goal("10 flows with limits of 1 to 10 Gb/s at once: largest deviation, %", worst, 1.0, false));
    for contest in &CONTESTS {
        let text = format!("Jain's index of 1 queue pair beside 100, {}", contest.name);
        goals.push(goal(&text, contest.jain(results), 0.98, true));
    }
    for place in [0, 1] {
        let text = format!("WRITEs of 8 KB: {} queue pairs / 1", ALL[place]);
        let [all, one] = [ALL, ONE].map(|names| results.median(PAIRS, names[place]));
        goals.push(goal(&text, ratio(all, one), 0.95, true));
    }
    let p99 = |moment: usize| results.median(PRIORITY, &format!("{}{P99}", MOMENTS[moment]));
    let text = "WRITE of 8 B with high priority: p99 beside a bulk / when nothing else sends";
    goals.push(goal(text, ratio(p99(2), p99(0)), 2.0, false));
    goals
}

/// Limits of flows that send at once, and what they had, in Gb/s.
pub(crate) fn flows(results: &Results) -> Vec<(f64, f64)> {
    let flow = |number| Some((f64::from(number) * FLOW_UNIT, results.median(ONE_HOST, &flow(number))?));
    (1..=FLOWS).filter_map(flow).collect()
}

/// Limits of WRITEs of a group, and what they had, in Gb/s.
pub(crate) fn rates(results: &Results, group: &str) -> Vec<(f64, f64)> {
    let writes = LIMITS.into_iter().filter(|(op, _)| *op == WRITE);
    writes.filter_map(|(op, limit)| Some((limit, results.median(group, &limited(op, limit))?))).collect()
}

/// Tables for the page.
pub(crate) fn page(results: &Results) -> String {
    let mut text = String::from("\n![Rates by limit](policies.svg)\n");
    let groups = [ONE_HOST, TWO_HOSTS, shares::SHARES, PAIRS, PRIORITY];
    for group in groups {
        let figures: Vec<_> = results.figures.iter().filter(|figure| figure.group == group).collect();
        if !figures.is_empty() {
            let _ = writeln!(text, "\n| {group} | |\n|---|---|");
        }
        for figure in figures {
            let _ = writeln!(text, "| {} | {} {} |", figure.name, number(figure.median), figure.unit.name());
        }
    }
    text
}

/// Deviation from a limit, in per cent of it.
fn deviation(found: f64, limit: f64) -> f64 {
    (found / limit - 1.0).abs() * 100.0
}

fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a? / b?)
}

/// Part of what can be sent without a limit up to which a limit is tried.
const REACHED: f64 = 0.8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Unit;

    #[test]
    fn a_limit_beyond_the_machine_is_no_goal() {
        let mut results = Results::new("adaptive", 1);
        results.add(ONE_HOST, UNLIMITED, Unit::GigabitsPerSecond, 6.0);
        for (_, limit) in LIMITS.into_iter().filter(|(op, _)| *op == WRITE) {
            results.add(ONE_HOST, &limited(WRITE, limit), Unit::GigabitsPerSecond, f64::min(limit * 1.02, 6.0));
        }
        let goals: Vec<_> = judge(&results).into_iter().flatten().collect();
        assert_eq!(goals.len(), 2, "0.1 and 1 Gb/s");
        assert!(goals.iter().all(|goal| !goal.met && (1.9..2.1).contains(&goal.value)));
    }

    #[test]
    fn shares_are_compared_by_weight() {
        let mut results = Results::new("adaptive", 1);
        let contest = CONTESTS.iter().find(|contest| contest.weights == [100, 300]).expect("there is one");
        for (place, bits) in [1.0, 3.0].into_iter().enumerate() {
            results.add(shares::SHARES, &contest.figure(place), Unit::GigabitsPerSecond, bits);
        }
        assert_eq!(contest.jain(&results), Some(1.0));
    }
}
