//! Test suites of others, which pass and fail on rings as they do on TCP: CPython's, of Debian's package.

use crate::accelerated;
use rdmesh_tests::{Output, Program};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

/// Limit of one run of a module: the slowest, `test_multiprocessing_fork`, takes 75 s on an idle machine.
const LIMIT: Duration = Duration::from_secs(600);
/// Debian's own: another one need not have its tests.
const PYTHON: &str = "/usr/bin/python3";
/// Modules of CPython's suite that have to do with sockets: some minutes.
const MODULES: [&str; 24] = [
    "test_socket",
    "test_select",
    "test_poll",
    "test_epoll",
    "test_selectors",
    "test_asyncore",
    "test_asynchat",
    "test_ftplib",
    "test_socketserver",
    "test_httpservers",
    "test_httplib",
    "test_urllib2_localnet",
    "test_smtplib",
    "test_poplib",
    "test_imaplib",
    "test_nntplib",
    "test_xmlrpc",
    "test_ssl",
    "test_subprocess",
    "test_asyncio",
    "test_logging",
    "test_wsgiref",
    "test_docxmlrpc",
    "test_multiprocessing_fork",
];
/// Those of them that take a second or two.
const SHORT: [&str; 5] = ["test_epoll", "test_asynchat", "test_httplib", "test_smtplib", "test_xmlrpc"];

/// How a test ended, by its name.
type Verdicts = BTreeMap<String, String>;

/// The lines `test_x (test.test_socket.Y.test_x) ... ok`. What tests print may stand between name and verdict.
fn verdicts(output: &Output) -> Verdicts {
    let mut found = Verdicts::new();
    let mut name = None;
    for line in output.text.lines() {
        let begins = line.split_once(" (test.").and_then(|(test, rest)| Some((test, rest.split_once(')')?.0)));
        if let Some((test, class)) = begins.filter(|(test, _)| !test.contains(' ')) {
            name = Some(format!("{class} {test}"));
        }
        let ends = ["ok", "FAIL", "ERROR", "expected failure"];
        let verdict = line.rsplit("... ").next().unwrap_or(line);
        let is_skipped = verdict.starts_with("skipped ");
        if let Some(name) = name.take_if(|_| is_skipped || ends.contains(&verdict)) {
            found.insert(name, if is_skipped { "skipped".into() } else { verdict.to_owned() });
        }
    }
    found
}

/// Runs a module's tests; on rings after so many calls, where a number is given.
fn python(module: &str, calls: Option<&str>) -> Output {
    // What the machine has beside IP makes some wait for a peer.
    // This one asks for a network, and uses loopback only.
    let resource = if module == "test_socketserver" { "network" } else { "none" };
    let words = [PYTHON, "-m", "test", "-v", "-u", resource, "-i", "*VSOCK*", module];
    let mut command = match calls {
        None => {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            command
        }
        Some(calls) => {
            let mut command = accelerated(&words);
            command.env("RDMESH_UPGRADE", calls);
            command
        }
    };
    let folder = tempfile::tempdir().expect("a folder");
    command.current_dir(folder.path());
    Program::start(command).finish(LIMIT)
}

/// Tests that end in another way.
fn differences(plain: &Verdicts, now: &Verdicts) -> Vec<String> {
    let others = plain.iter().filter(|(name, verdict)| now.get(*name) != Some(verdict));
    others.map(|(name, verdict)| format!("{name}: {verdict}, now {:?}", now.get(name))).collect()
}

#[test]
fn suites_of_cpython_end_as_on_tcp() {
    let there = Command::new(PYTHON).args(["-c", "import test.test_socket"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        let why = format!("{PYTHON} has no module test: `./dev setup sockets` installs it");
        assert!(std::env::var_os("CI").is_none(), "{why}");
        return println!("skipped: {why}");
    }
    let (modules, modes): (&[&str], &[&str]) =
        if rdmesh_tests::all() { (&MODULES, &["never", "0", "3"]) } else { (&SHORT, &["0"]) };
    let mut differ = Vec::new();
    for module in modules {
        let plain = verdicts(&python(module, None));
        assert!(plain.len() > 3, "{module}: {plain:?}");
        for mode in modes {
            let first = differences(&plain, &verdicts(&python(module, Some(mode))));
            // Some of them depend on time: what differs once more counts.
            let again = if first.is_empty() {
                Vec::new()
            } else {
                differences(&verdicts(&python(module, None)), &verdicts(&python(module, Some(mode))))
            };
            differ.extend(again.iter().filter(|test| first.contains(test)).map(|test| format!("{mode} {test}")));
        }
        eprintln!("{module}: {} tests", plain.len());
    }
    assert!(differ.is_empty(), "{} tests end in another way:\n{}", differ.len(), differ.join("\n"));
}
