//! rdma-core's own test suite on our device: as root, and as an ordinary user.

use rdmesh_tests::{Endpoint, HugePages, Lab, Options, suite, system};

const EXPECTED: &str = include_str!("../pyverbs/expected.tsv");

fn hold_to_the_table(who: &str, lab: &Lab) {
    let outcomes = suite::run(lab, &Endpoint::new("suite"));
    let verdict = suite::judge(&outcomes, EXPECTED);
    println!("rdma-core's suite {who}:");
    println!("{} passed, {} failed, {} skipped", verdict.passed, verdict.wrong.len(), verdict.skipped);
    assert!(verdict.wrong.is_empty(), "not as expected:\n{}", verdict.wrong.join("\n"));
    lab.wait_until_empty();
}

#[test]
fn the_suite_holds_as_root() {
    if !system::is_root() {
        println!("skipped: needs root");
        return;
    }
    let _pages = HugePages::reserve(8);
    hold_to_the_table("as root", &Lab::start());
}

#[test]
fn the_suite_holds_as_an_ordinary_user() {
    hold_to_the_table("as an ordinary user", &Lab::start_with(Options::ordinary_user()));
}
