//! Instructions of the paths that matter, counted by valgrind, beside the table in `tests/counts.toml`.

use rdmesh_tests::{Program, root};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use toml::{Table, Value};

/// For one test under valgrind, with the compilation of a crate before it.
const LIMIT: Duration = Duration::from_secs(600);
/// By how much a count may differ, in percent: tables of chance seeds make some difference.
const TOLERANCE: u64 = 5;

/// A row of the table.
struct Path<'a> {
    name: &'a str,
    package: &'a str,
    test: &'a str,
    per: u64,
    instructions: u64,
}

impl<'a> Path<'a> {
    fn of(row: &'a Value) -> Self {
        let text = |key: &str| row[key].as_str().expect("a text");
        let number = |key: &str| row[key].as_integer().and_then(|n| n.try_into().ok()).expect("a number");
        let (name, package, test) = (text("name"), text("crate"), text("test"));
        Self { name, package, test, per: number("per"), instructions: number("instructions") }
    }

    fn is_near(&self, counted: u64) -> bool {
        counted.abs_diff(self.instructions) * 100 <= self.instructions * TOLERANCE
    }
}

/// The unit tests of all crates, as programs, by the crate's folder: those that `./dev test unit` has built. Cargo would build a crate
/// that is asked for alone again, with fewer features of what it depends on.
fn unit_tests() -> HashMap<String, PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args("test --quiet --workspace --exclude rdmesh-tests --exclude rdmesh-sim --lib --no-run".split(' '));
    let built = cargo.arg("--message-format=json").current_dir(root()).output().expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let text = String::from_utf8_lossy(&built.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let program = |message: serde_json::Value| {
        let manifest = PathBuf::from(message["manifest_path"].as_str()?);
        let name = manifest.parent()?.file_name()?.to_str()?.to_owned();
        Some((name, message["executable"].as_str()?.into()))
    };
    messages.filter_map(program).collect()
}

/// Instructions that the functions `counted_…` execute in a test.
fn count(program: &PathBuf, test: &str) -> u64 {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    valgrind.args(["--toggle-collect=*counted_*", "--"]).arg(program).args(["--exact", test, "--test-threads=1"]);
    let output = Program::start(valgrind).finish(LIMIT);
    let collected = output.text.lines().find_map(|line| line.split_once("Collected : "));
    let count = collected.and_then(|(_, count)| count.trim().parse().ok());
    assert!(output.text.contains("1 passed"), "{test}:\n{}", output.text);
    count.filter(|count| *count > 0).unwrap_or_else(|| panic!("{test} counts nothing:\n{}", output.text))
}

#[test]
fn paths_that_matter_have_not_become_longer() {
    let file = root().join("tests/counts.toml");
    let mut text = std::fs::read_to_string(&file).expect("the table is there");
    let table: Table = text.parse().expect("it is TOML");
    let rows: Vec<Path<'_>> = table["path"].as_array().expect("rows").iter().map(Path::of).collect();
    let programs = unit_tests();
    let (mut report, mut differ) = (String::new(), 0);
    for path in &rows {
        let program = programs.get(path.package).unwrap_or_else(|| panic!("no unit tests of {}", path.package));
        let counted = count(program, path.test) / path.per;
        let mark = if path.is_near(counted) { "" } else { "  differs" };
        differ += u32::from(!mark.is_empty());
        writeln!(report, "{:50} {:>10} {counted:>10}{mark}", path.name, path.instructions).expect("a text grows");
        let row = format!("test = \"{}\"\nper = {}\ninstructions = ", path.test, path.per);
        text = text.replace(&format!("{row}{}\n", path.instructions), &format!("{row}{counted}\n"));
    }
    println!("{:50} {:>10} {:>10}\n{report}", "instructions", "the table", "counted");
    if std::env::var_os("RDMESH_COUNTS").is_some_and(|what| what == "write") {
        std::fs::write(file, text).expect("the table can be written");
    } else {
        assert_eq!(differ, 0, "the paths changed: if that is meant, `./dev counts --write`, and say why in the commit");
    }
}
