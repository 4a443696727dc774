//! The results as a table, as JSON and as a picture.

use crate::chart;
use crate::goals::Goal;
use crate::results::Results;
use serde_json::json;
use std::fmt::Write;
use std::fs;
use std::path::Path;

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
    let _ = writeln!(text, "\ngoals");
    for goal in goals {
        let verdict = if goal.met { "met" } else { "MISSED" };
        let relation = if goal.at_least { "at least" } else { "at most" };
        let _ =
            writeln!(text, "  {:<6} {:>8}  ({relation} {})  {}", verdict, number(goal.value), goal.bound, goal.what);
    }
    text
}

/// Writes results.json and results.svg under bench/results, and under docs/ when they are to be published.
pub(crate) fn write(results: &Results, goals: &[Goal], publish: bool) {
    let root = rdmesh_tests::root();
    let folder = root.join("bench/results");
    fs::create_dir_all(&folder).expect("the folder can be made");
    let all = json!({ "results": results, "goals": goals });
    let text = serde_json::to_string_pretty(&all).expect("figures are plain data");
    fs::write(folder.join("results.json"), text + "\n").expect("the file can be written");
    chart::draw(&folder.join("results.svg"), results).expect("the picture can be drawn");
    eprintln!("written: bench/results/results.json bench/results/results.svg");
    if publish {
        let copy = |from: &str, to: &str| fs::copy(folder.join(from), root.join(Path::new("docs")).join(to));
        copy("results.json", "benchmark.json")
            .and_then(|_| copy("results.svg", "benchmark.svg"))
            .expect("docs/ is there");
        eprintln!("published: docs/benchmark.json docs/benchmark.svg");
    }
}

/// Three digits that count.
fn number(value: f64) -> String {
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
