//! rdma-core's Python test suite on our device: as root, as an ordinary user, and with all its traffic on the wire.

use rdmesh_tests::guest::Lan;
use rdmesh_tests::{Endpoint, HugePages, Lab, Options, suite, system};

const EXPECTED: &str = include_str!("../pyverbs/expected.tsv");

fn hold_to_the_table(who: &str, lab: &Lab) {
    hold_to(EXPECTED, who, lab, &Endpoint::new("suite"));
}

fn hold_to(expected: &str, who: &str, lab: &Lab, endpoint: &Endpoint) {
    let outcomes = suite::run(lab, endpoint);
    let verdict = suite::judge(&outcomes, expected);
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

/// The suite has its tests of rdma_cm skip where the device has no interface: so the network has one with the address.
fn as_an_ordinary_user_on_a_network() {
    let lan = Lan::start();
    lan.enter();
    let endpoint = Endpoint::at("suite", "default", &Lan::ipv4(1).to_string());
    hold_to(EXPECTED, "as an ordinary user", &Lab::start_with(Options::ordinary_user()), &endpoint);
}

#[test]
fn the_suite_holds_as_an_ordinary_user() {
    if system::is_root() {
        // Namespaces are threads' own.
        let thread = std::thread::spawn(as_an_ordinary_user_on_a_network);
        return thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
    let lines = EXPECTED.lines().filter(|line| !line.starts_with("test_rdmacm."));
    let expected: Vec<_> = lines.collect();
    let lab = Lab::start_with(Options::ordinary_user());
    hold_to(&expected.join("\n"), "as an ordinary user", &lab, &Endpoint::new("suite"));
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
