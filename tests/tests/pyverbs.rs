//! rdma-core's own test suite on our device: as root, as an ordinary user, and with all its traffic on the wire.

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

/// Both sides of the suite's tests are one process. This router sends what they exchange through the network all the same.
fn on_the_wire(path: &str) -> Lab {
    let up = ["--underlay", "127.0.0.1", "--local-path", path].map(str::to_owned).to_vec();
    let lab = Lab::start_with(Options { up, ..Options::default() });
    let before = lab.metric("rdmesh_wire_received_total");
    hold_to_the_table(&format!("over the path `{path}`"), &lab);
    let packets = lab.metric("rdmesh_wire_received_total") - before;
    assert!(packets > 1000.0, "only {packets} packets were on the wire");
    lab
}

#[test]
fn the_suite_holds_through_the_tunnel() {
    if !system::is_root() {
        println!("skipped: needs root");
        return;
    }
    on_the_wire("tunnel");
}

#[test]
fn the_suite_holds_as_plain_rocev2() {
    if !system::is_root() {
        println!("skipped: needs root");
        return;
    }
    on_the_wire("plain");
}
