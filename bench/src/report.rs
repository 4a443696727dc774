//! Report of the results: a table, JSON and a chart.

use crate::chart;
use crate::goals::Goal;
use crate::page::Page;
use crate::results::Results;
use serde_json::json;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// The table for the terminal.
pub(crate) fn table(results: &Results, goals: &[Goal]) -> String {
    let mut text = String::from("\n");
    let machine: Vec<_> = results.machine.iter().map(|(what, value)| format!("{what} {value}")).collect();
    let _ = writeln!(text, "{}; mode {}; medians of {} rounds", machine.join(", "), results.mode, results.rounds);
    let mut groups: Vec<&str> = Vec::new();
    for figure in &results.figures {
        if !groups.contains(&figure.group.as_str()) {
            groups.push(&figure.group);
        }
    }
    for group in groups {
        let _ = writeln!(text, "\n{group}");
        for figure in results.figures.iter().filter(|f| f.group == group) {
            let _ = writeln!(text, "  {:<42}{:>12} {}", figure.name, number(figure.median), figure.unit.name());
        }
    }
    for failure in &results.failures {
        let _ = writeln!(text, "\nFAILED in round {}: {}\n{}", failure.round, failure.part, failure.reason);
    }
    let _ = writeln!(text, "\ngoals");
    for goal in goals {
        let verdict = if goal.met { "met" } else { "MISSED" };
        let relation = if goal.at_least { "at least" } else { "at most" };
        let _ =
            writeln!(text, "  {:<6} {:>8}  ({relation} {})  {}", verdict, number(goal.value), goal.bound, goal.what);
    }
    text
}

/// Destination of the results of a run of the whole benchmark, or of one part of it.
pub(crate) struct Files {
    folder: PathBuf,
    name: &'static str,
}

impl Files {
    /// In bench/results.
    pub(crate) fn new(name: &'static str) -> Self {
        let folder = rdmesh_tests::root().join("bench/results");
        fs::create_dir_all(&folder).expect("the folder can be made");
        Self { folder, name }
    }

    /// Writes what there is.
    pub(crate) fn write(&self, results: &Results, goals: &[Goal]) {
        let text = serde_json::to_string_pretty(&json!({ "results": results, "goals": goals })).expect("plain data");
        fs::write(self.path("json"), text + "\n").expect("the file can be written");
    }

    /// Says where the results are.
    pub(crate) fn announce(&self) {
        eprintln!("written: {}", self.path("json").display());
    }

    /// Draws a picture.
    pub(crate) fn draw(&self, draw: impl FnOnce(&Path, &Results) -> chart::Outcome, results: &Results) {
        if let Err(error) = draw(&self.path("svg"), results) {
            eprintln!("no picture: {error}");
        }
    }

    /// Copies all that there is to docs/, and writes the figures into the page there.
    pub(crate) fn publish(&self, page: &Page) {
        let root = rdmesh_tests::root();
        for kind in ["json", "svg"].into_iter().filter(|kind| self.path(kind).exists()) {
            let to = root.join("docs").join(page.name).with_extension(kind);
            fs::copy(self.path(kind), to).expect("docs/ is there");
        }
        page.update(&root);
        eprintln!("published: docs/{}.md and what belongs to it", page.name);
    }

    fn path(&self, kind: &str) -> PathBuf {
        self.folder.join(self.name).with_extension(kind)
    }
}

/// Three digits that count.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.5}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_first_digits() {
        assert_eq!([12345.6, 99.96, 1.234, 0.00123, 0.0].map(number), ["12346", "100.0", "1.23", "0.00123", "0.00"]);
    }
}
