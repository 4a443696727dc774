//! Verification of every operation with its data, every kind of memory, every error and event: the cases of the `verify`
//! program.

use rdmesh_tests::{Endpoint, HugePages, Lab, helper};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const SKIP: i32 = 77;

/// Every case that the program knows, each in a process of its own on one router.
#[test]
fn all_cases_hold() {
    let lab = Lab::start();
    let endpoint = Endpoint::at("a", "blue", "10.7.0.2");
    let verify = helper("verify").into_os_string().into_string().expect("a plain path");
    let list = Command::new(&verify).arg("--list").output().expect("verify can be started").stdout;
    let cases = String::from_utf8(list).expect("names");
    let _pages = HugePages::reserve(8);
    let mut failed = Vec::new();
    for case in cases.lines() {
        let output = lab.run_in(&endpoint, LIMIT, &[verify.as_str(), case]);
        match output.status.code() {
            Some(0) => println!("{case}: holds"),
            Some(SKIP) => println!("{case}: {}", output.text.trim()),
            _ => failed.push(format!("{case}: {}: {}", output.status, output.text.trim())),
        }
    }
    assert!(cases.lines().count() > 40, "the list of cases:\n{cases}");
    assert!(failed.is_empty(), "{} cases do not hold:\n{}", failed.len(), failed.join("\n"));
    lab.wait_until_empty();
}
