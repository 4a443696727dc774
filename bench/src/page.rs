//! The page `docs/benchmark.md`, generated from the results of the last published run.

use crate::goals::Goal;
use crate::report::number;
use crate::results::Results;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// All that is kept of a run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) results: Results,
    pub(crate) goals: Vec<Goal>,
}

const BEGIN: &str = "<!-- figures: begin; `rdmesh-bench --publish` writes what follows -->\n";
const END: &str = "<!-- figures: end -->\n";
const PAGE: &str = "docs/benchmark.md";
const RESULTS: &str = "docs/benchmark.json";

/// Writes the figures of the published results into the page.
pub(crate) fn update(root: &Path) {
    let page = fs::read_to_string(root.join(PAGE)).expect("the page is there");
    let (before, _, after) = split(&page).expect("the page has its marks");
    let page = format!("{before}{BEGIN}{}{END}{after}", figures(&published(root)));
    fs::write(root.join(PAGE), page).expect("the page can be written");
}

fn published(root: &Path) -> Run {
    let text = fs::read_to_string(root.join(RESULTS)).expect("there are published results");
    serde_json::from_str(&text).expect("they are this program's")
}

/// The page in three parts: the text before the figures, the figures, and the text behind them.
fn split(page: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (figures, after) = rest.split_once(END)?;
    Some((before, figures, after))
}

fn figures(run: &Run) -> String {
    let Run { results, goals } = run;
    let machine: Vec<_> = results.machine.iter().map(|(what, value)| format!("{what} {value}")).collect();
    let mut text = format!(
        "The last published run ([all figures](benchmark.json)): {}, mode {}, {}; version {} of rdmesh.\n",
        machine.join(", "),
        results.mode,
        if results.rounds == 1 { "one round".to_owned() } else { format!("medians of {} rounds", results.rounds) },
        results.version
    );
    let missed: Vec<&Goal> = goals.iter().filter(|goal| !goal.met).collect();
    let _ = writeln!(text, "{} of {} goals were met.", goals.len() - missed.len(), goals.len());
    if !missed.is_empty() {
        text += "\nMissed goals:\n\n";
        missed.iter().for_each(|goal| text += &format!("* {}: {}\n", goal.what, outcome(goal)));
    }
    if !results.failures.is_empty() {
        text += "\nParts that failed, whose figures are missing or of fewer rounds:\n\n";
        results.failures.iter().for_each(|failure| {
            let reason = failure.reason.lines().next().unwrap_or_default();
            let _ = writeln!(text, "* {} (round {}): {reason}", failure.part, failure.round);
        });
    }
    text += "\n| goal | figure | |\n|---|---|---|\n";
    for goal in goals {
        let verdict = if goal.met { "met" } else { "**missed**" };
        let _ = writeln!(text, "| {} | {} | {verdict} |", goal.what, outcome(goal));
    }
    text
}

fn outcome(goal: &Goal) -> String {
    let relation = if goal.at_least { "at least" } else { "at most" };
    format!("{} ({relation} {})", number(goal.value), goal.bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Failure;

    #[test]
    fn the_page_says_what_the_published_results_say() {
        let root = rdmesh_tests::root();
        let page = fs::read_to_string(root.join(PAGE)).unwrap();
        let (before, shown, _) = split(&page).expect("the page has its marks");
        assert_eq!(shown, figures(&published(&root)), "run `rdmesh-bench page`");
        assert!(!before.contains("rounds were"), "rounds are told by the figures");
    }

    #[test]
    fn missed_goals_and_failed_parts_are_named() {
        let mut results = Results::new("adaptive", 3);
        let failure = Failure { part: "two hosts".into(), round: 2, reason: "no header\nin all its length".into() };
        results.failures.push(failure);
        let goal = |what: &str, met| Goal { what: what.into(), value: 2.0, bound: 1.0, at_least: false, met };
        let text = figures(&Run { results, goals: vec![goal("this", true), goal("that", false)] });
        assert!(text.contains("medians of 3 rounds") && text.contains("1 of 2 goals were met."));
        assert!(text.contains("* that: 2.00 (at most 1)\n") && !text.contains("* this"));
        assert!(text.contains("* two hosts (round 2): no header\n"), "{text}");
    }
}
