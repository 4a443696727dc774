//! Policies: rates of endpoints, tenants and queue pairs, for stock programs, and their changes.

use rdmesh_tests::{Hosts, Lab, Pair};

/// Sets the policy of a scope.
fn set(lab: &Lab, scope: &str, options: &[&str]) {
    let output = lab.command(&[&["policy", "set", scope], options].concat());
    assert!(output.status.success(), "{}", output.text);
}

/// Bits of payload in a second that a program reports which sends so many bytes.
fn bits(pair: &Pair<'_>, program: &str, bytes: u64, options: &str) -> f64 {
    let size: u64 =
        options.split_whitespace().nth(1).and_then(|size| size.parse().ok()).expect("-s and a size come first");
    // On a busy machine perftest may fail to find out the processor's clock, and writes zeros.
    // It counts completions in hundreds, and waits for ever where queue pairs end at different times and the last hundred of one
    // is not full.
    let count = (bytes / size).next_multiple_of(100);
    let average = || pair.bandwidth(program, &format!("-n {count} {options}"))[0].figures[1];
    let found = (0..5).map(|_| average()).find(|average| *average > 0.0);
    found.expect("a clock") * 1024.0 * 1024.0 * 8.0
}

/// A rate is never exceeded; a machine that is busy may give less, but not a fraction of it.
fn assert_rate(found: f64, rate: f64) {
    assert!(found <= rate * 1.03 && found >= rate * 0.5, "{found} bits in a second, the limit is {rate}");
}

fn rates_hold(pair: &Pair<'_>) {
    let (lab, endpoint) = (pair.client.0, "endpoint/blue/client");
    set(lab, endpoint, &["--rate", "100M"]);
    assert_rate(bits(pair, "ib_write_bw", 20 << 20, "-s 65536"), 100e6);
    assert_rate(bits(pair, "ib_send_bw", 5 << 20, "-s 1000 -q 4"), 100e6);
    // The reader pays.
    assert_rate(bits(pair, "ib_read_bw", 20 << 20, "-s 8192"), 100e6);
    assert_rate(bits(pair, "ib_send_bw", 20 << 20, "-s 1024 -c UD"), 100e6);
    set(lab, endpoint, &["--messages", "5k"]);
    assert_rate(bits(pair, "ib_write_bw", 10 << 20, "-s 1024"), 5e3 * 1024.0 * 8.0);
    set(lab, endpoint, &["--qp-rate", "30M"]);
    assert_rate(bits(pair, "ib_write_bw", 6 << 20, "-s 4096 -q 3"), 90e6);
    set(lab, endpoint, &["--rate", "500M"]);
    set(lab, "tenant/default", &["--rate", "50M"]);
    assert_rate(bits(pair, "ib_write_bw", 10 << 20, "-s 16384"), 50e6);
    for scope in [endpoint, "tenant/default"] {
        assert!(lab.command(&["policy", "rm", scope]).status.success());
    }
    let free = bits(pair, "ib_write_bw", 200 << 20, "-s 65536");
    assert!(free > 500e6, "{free} bits in a second without a limit");
}

#[test]
fn rates_hold_within_a_host() {
    let lab = Lab::start();
    rates_hold(&Pair::of(&lab));
    lab.wait_until_empty();
}

#[test]
fn rates_hold_between_hosts() {
    let hosts = Hosts::start();
    let pair = hosts.pair();
    set(hosts.lab(1), "endpoint/blue/e", &["--rate", "50M"]);
    assert_rate(bits(&pair, "ib_write_bw", 10 << 20, "-s 65536"), 50e6);
    assert_rate(bits(&pair, "ib_read_bw", 10 << 20, "-s 65536"), 50e6);
}

#[test]
fn policies_are_listed_checked_and_kept() {
    let lab = Lab::start();
    set(&lab, "endpoint/blue/a", &["--rate", "2.5G", "--qp-messages", "7", "--priority", "high"]);
    set(&lab, "host/elsewhere", &["--weight", "300"]);
    let list = lab.command(&["policy", "ls"]).text;
    for text in ["2500 Mbit/s", "7 messages/s", "high", "host/elsewhere", "300"] {
        assert!(list.contains(text), "{text} is not in {list}");
    }
    let refused = |arguments: &[&str], reason: &str| {
        let output = lab.command(&[&["policy"], arguments].concat());
        assert!(!output.status.success() && output.text.contains(reason), "{}", output.text);
    };
    refused(&["set", "endpoint/blue/a", "--weight", "0"], "weight");
    refused(&["set", "somewhere", "--rate", "1G"], "host/NAME");
    refused(&["set", "host/a", "--rate", "1X"], "not a unit");
    refused(&["rm", "host/b"], "there is no policy");
    assert_eq!(lab.api("/v1/policies").as_array().map(Vec::len), Some(2));
}
