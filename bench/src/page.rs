//! The pages `docs/benchmark.md`, `docs/neighbours.md` and so on, generated from the results of the last published runs.

use crate::goals::Goal;
use crate::report::number;
use crate::results::Results;
use crate::{chains, mpi, neighbours, policies, pools, sockets};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// All that is kept of a run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) results: Results,
    pub(crate) goals: Vec<Goal>,
}

const BEGIN: &str = "<!-- figures: begin; `rdmesh-bench --publish` writes what follows -->\n";
const END: &str = "<!-- figures: end -->\n";

/// A page, and the results beside it.
pub(crate) struct Page {
    /// Name of their files.
    pub(crate) name: &'static str,
    /// Text behind the goals.
    further: fn(&Results) -> String,
}

/// That of the whole benchmark.
pub(crate) const BENCHMARK: Page = Page { name: "benchmark", further: |_| String::new() };
/// That of attacks.
pub(crate) const NEIGHBOURS: Page = Page { name: "neighbours", further: neighbours::page };
/// That of chains.
pub(crate) const CHAINS: Page = Page { name: "chains", further: chains::page };
/// That of policies.
pub(crate) const POLICIES: Page = Page { name: "policies", further: policies::page };
/// That of accelerated sockets.
pub(crate) const SOCKETS: Page = Page { name: "sockets", further: sockets::page };
/// That of pools.
pub(crate) const ENDPOINTS: Page = Page { name: "endpoints", further: pools::page };
/// That of MPI.
pub(crate) const MPI: Page = Page { name: "mpi", further: mpi::page };
/// All pages.
pub(crate) const PAGES: [Page; 7] = [BENCHMARK, NEIGHBOURS, CHAINS, POLICIES, SOCKETS, ENDPOINTS, MPI];

impl Page {
    /// Writes the figures of the published results into the page.
    pub(crate) fn update(&self, root: &Path) {
        let page = fs::read_to_string(self.path(root, "md")).expect("the page is there");
        let (before, _, after) = split(&page).expect("the page has its marks");
        let page = format!("{before}{BEGIN}{}{END}{after}", self.figures(&self.published(root)));
        fs::write(self.path(root, "md"), page).expect("the page can be written");
    }

    fn published(&self, root: &Path) -> Run {
        let text = fs::read_to_string(self.path(root, "json")).expect("there are published results");
        serde_json::from_str(&text).expect("they are this program's")
    }

    fn figures(&self, run: &Run) -> String {
        figures(self.name, run) + &(self.further)(&run.results)
    }

    fn path(&self, root: &Path, kind: &str) -> PathBuf {
        root.join("docs").join(self.name).with_extension(kind)
    }
}

/// The page in three parts: the text before the figures, the figures, and the text behind them.
fn split(page: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (figures, after) = rest.split_once(END)?;
    Some((before, figures, after))
}

fn figures(name: &str, run: &Run) -> String {
    let Run { results, goals } = run;
    let machine: Vec<_> = results.machine.iter().map(|(what, value)| format!("{what} {value}")).collect();
    let mut text = format!(
        "The last published run ([all figures]({name}.json)): {}, mode {}, {}; version {} of rdmesh.\n",
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
        for page in PAGES {
            let text = fs::read_to_string(page.path(&root, "md")).unwrap();
            let (before, shown, _) = split(&text).expect("the page has its marks");
            assert_eq!(shown, page.figures(&page.published(&root)), "run `rdmesh-bench page`");
            assert!(!before.contains("rounds were"), "rounds are told by the figures");
        }
    }

    #[test]
    fn missed_goals_and_failed_parts_are_named() {
        let mut results = Results::new("adaptive", 3);
        let failure = Failure { part: "two hosts".into(), round: 2, reason: "no header\nin all its length".into() };
        results.failures.push(failure);
        let goal = |what: &str, met| Goal { what: what.into(), value: 2.0, bound: 1.0, at_least: false, met };
        let text = figures("benchmark", &Run { results, goals: vec![goal("this", true), goal("that", false)] });
        assert!(text.contains("medians of 3 rounds") && text.contains("1 of 2 goals were met."));
        assert!(text.contains("* that: 2.00 (at most 1)\n") && !text.contains("* this"));
        assert!(text.contains("* two hosts (round 2): no header\n"), "{text}");
    }
}
