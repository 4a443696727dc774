//! rdma-core's own Python test suite, on an endpoint's device; with some tests of a newer version.

use crate::lab::{Endpoint, Lab};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Directory of the distribution's suite.
pub const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// A file of the suite takes seconds; one that needs longer than this hangs.
const LIMIT: Duration = Duration::from_secs(180);

/// Time-out of the whole of the newest suite. It takes two minutes where nothing else runs.
const WHOLE_LIMIT: Duration = Duration::from_secs(900);

/// Result of a test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It passed.
    Pass,
    /// It skipped, for this reason.
    Skip(String),
    /// It failed, with this message.
    Fail(String),
}

/// Counts of outcomes, and what is not as it should be.
#[derive(Default, Debug)]
pub struct Verdict {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that did not do what the table says, with what they did.
    pub wrong: Vec<String>,
    /// Tests that skipped for an allowed reason.
    pub skipped: usize,
}

/// Runs every file of the suite, and the newer tests beside them, in `endpoint`, each in a process of its own.
pub fn run(lab: &Lab, endpoint: &Endpoint) -> BTreeMap<String, Outcome> {
    let suite = unpack(lab);
    let results = suite.join("results.tsv");
    for file in test_files(&suite) {
        let module = format!("tests.{file}");
        let arguments =
            ["-X", "faulthandler", "results.py", "results.tsv", "run_tests.py", "--dev", "rxe0", "-v", &module];
        let mut command =
            vec!["env".to_owned(), "-C".to_owned(), suite.display().to_string(), "/usr/bin/python3".to_owned()];
        command.extend(arguments.map(str::to_owned));
        let ended = lab.start_in(endpoint, &command).finish_or_kill(LIMIT);
        let complaint = match ended {
            None => format!("tests.{file}.(hang)\tfail\tdid not end within {LIMIT:?}\n"),
            Some(output) if !output.status.success() && !output.text.contains("FAILED (") => {
                format!("tests.{file}.(crash)\tfail\t{}: {}\n", output.status, tail(&output.text))
            }
            Some(_) => continue,
        };
        let so_far = fs::read_to_string(&results).unwrap_or_default();
        fs::write(&results, so_far + &complaint).expect("the results can be written");
    }
    parse_results(&fs::read_to_string(&results).unwrap_or_default())
}

/// Runs the whole suite of the rdma-core that was built in `build`, as it is and with its own pyverbs, in one process.
pub fn run_newest(lab: &Lab, endpoint: &Endpoint, build: &Path) -> BTreeMap<String, Outcome> {
    let folder = lab.shared().join("newest");
    let script = "mkdir -p $2 && cp $1/*.py $3/*.py $2 && chmod -R a+rwX $2";
    let helpers = crate::root().join("tests/pyverbs");
    let copied =
        Command::new("sh").args(["-ec", script, "sh"]).args([&build.join("suite"), &folder, &helpers]).status();
    assert!(copied.is_ok_and(|status| status.success()), "no suite in {}", build.display());
    let modules = format!("PYTHONPATH={}", build.join("python").display());
    let folder_name = folder.display().to_string();
    let python = ["/usr/bin/python3", "-X", "faulthandler", "results.py", "results.tsv", "run_tests.py"];
    let mut command = vec!["env", "-C", &folder_name, &modules];
    command.extend(python.iter().chain(&["--dev", "rxe0", "-v"]));
    let output = lab.start_in(endpoint, &command).finish_or_kill(WHOLE_LIMIT);
    let text = output.as_ref().map_or("", |output| &output.text);
    let has_ended = text.contains("\nRan ");
    assert!(has_ended, "the suite did not end; the last that it said:\n{}", tail(text));
    parse_results(&fs::read_to_string(folder.join("results.tsv")).unwrap_or_default())
}

/// Compares outcomes with the table `expected`.
pub fn judge(outcomes: &BTreeMap<String, Outcome>, expected: &str) -> Verdict {
    let mut verdict = Verdict::default();
    let mut rules: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for line in expected.lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
        let mut fields = line.split('\t');
        let (name, what, why) = (fields.next(), fields.next(), fields.next());
        rules.insert(name.unwrap_or_default(), (what.unwrap_or_default(), why.unwrap_or_default()));
    }
    for missing in rules.keys().filter(|name| !outcomes.contains_key(**name)) {
        verdict.wrong.push(format!("{missing}: did not run"));
    }
    for (name, outcome) in outcomes {
        // Tests that the table does not name are for other vendors' devices.
        let (what, why) = rules.get(name.as_str()).copied().unwrap_or(("skip", ""));
        let allowed = |reason: &str| why.split(" | ").any(|part| reason.contains(part));
        match outcome {
            Outcome::Pass if what == "pass" => verdict.passed += 1,
            Outcome::Skip(reason) if (what == "skip" || !why.is_empty()) && allowed(reason) => verdict.skipped += 1,
            other => verdict.wrong.push(format!("{name}: should {what}, but {other:?}")),
        }
    }
    verdict
}

/// Directory in which `scripts/rdma-core.sh` left a build of rdma-core, as the environment's `variable` says; none, with the reason printed,
/// where there is none. Where CI runs the tests, that is a failure.
pub fn build_of(variable: &str) -> Option<PathBuf> {
    let build = std::env::var_os(variable).map(PathBuf::from);
    if build.is_none() {
        let why = format!("{variable} names no build of rdma-core: run this with `./dev test newest`");
        assert!(std::env::var_os("CI").is_none(), "{why}");
        println!("skipped: {why}");
    }
    build
}

/// Directory in which `scripts/rdma-core.sh` left tests of a newer rdma-core than the distribution's.
fn newer_tests() -> PathBuf {
    let build = std::env::var_os("RDMESH_RDMA_CORE").map(PathBuf::from);
    build.expect("a newer rdma-core has been prepared: run this with `./dev test pyverbs`").join("tests")
}

fn unpack(lab: &Lab) -> PathBuf {
    let folder = lab.shared().join("tests");
    let script = "mkdir -p $2 && cp $3/*.py $1/* $2 && gunzip -f $2/*.gz && cp $4/*.py $2 && chmod -R a+rwX $2";
    let helpers = crate::root().join("tests/pyverbs");
    let mut sh = Command::new("sh");
    sh.args(["-ec", script, "sh", SUITE]).args([&folder, &newer_tests(), &helpers]);
    let done = sh.status();
    assert!(done.is_ok_and(|s| s.success()), "the suite of package python3-pyverbs/rdma-core is not in {SUITE}");
    folder
}

fn test_files(suite: &Path) -> Vec<String> {
    let names =
        fs::read_dir(suite).expect("the suite was unpacked").flatten().filter_map(|e| e.file_name().into_string().ok());
    let mut files: Vec<_> =
        names.filter_map(|n| n.strip_suffix(".py").filter(|n| n.starts_with("test_")).map(str::to_owned)).collect();
    files.sort();
    files
}

fn parse_results(text: &str) -> BTreeMap<String, Outcome> {
    let parse = |line: &str| {
        let mut fields = line.splitn(3, '\t');
        let name = fields.next()?.strip_prefix("tests.")?.to_owned();
        let (what, reason) = (fields.next()?, fields.next()?.to_owned());
        let outcome = match what {
            "pass" => Outcome::Pass,
            "skip" => Outcome::Skip(reason),
            _ => Outcome::Fail(reason),
        };
        Some((name, outcome))
    };
    text.lines().filter_map(parse).collect()
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deviation_from_the_table_is_reported() {
        let expected =
            "# comment\na.ok\tpass\nb.skips\tskip\tno XRC | no CUDA\nc.missing\tpass\nd.maybe\tpass\tno huge pages\n";
        let outcomes = parse_results(
            "tests.a.ok\tpass\t\ntests.b.skips\tskip\tthere is no CUDA here\ntests.d.maybe\tskip\tno huge pages of 2M\n\
             tests.vendor.x\tskip\tnot an mlx5\n",
        );
        let verdict = judge(&outcomes, expected);
        assert_eq!((verdict.passed, verdict.skipped), (1, 3));
        assert_eq!(verdict.wrong, ["c.missing: did not run"]);
        let outcomes = parse_results(
            "tests.a.ok\tskip\t\ntests.b.skips\tskip\tother\ntests.c.missing\tfail\tx\ntests.d.maybe\tskip\tother\n\
             tests.vendor.x\tpass\t\n",
        );
        assert_eq!(judge(&outcomes, expected).wrong.len(), 5);
    }
}
