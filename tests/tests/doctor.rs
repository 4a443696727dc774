//! Diagnosis of common faults by `rdmesh doctor`, with third-party programs.

use rdmesh_tests::{Endpoint, Hosts, Lab, Options, Program, helper, inside, until};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const SERVER: &str = "10.7.0.2";
const PORT: u16 = 18_700;

/// Output of doctor; its exit status does not matter here.
fn doctor(lab: &Lab, arguments: &str) -> String {
    let words: Vec<&str> = std::iter::once("doctor").chain(arguments.split_whitespace()).collect();
    lab.command(&words).text
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn assert_says(text: &str, wanted: &[&str]) {
    let line = text
        .lines()
        .zip(text.lines().skip(1).chain([""]))
        .find(|(line, fix)| wanted.iter().all(|part| line.contains(part) || fix.contains(part)));
    assert!(line.is_some(), "no line with {wanted:?} in:\n{text}");
}

#[test]
fn a_router_without_failed_requests_is_healthy() {
    let lab = Lab::start();
    let text = lab.command(&["doctor"]).ok().text;
    for wanted in [
        "ok    rdma_cm: ",
        "ok    netlink: `rdma link` shows",
        "ok    locked memory: ",
        "ok    mappings: ",
        "ok    descriptors: ",
        "ok    programs: ",
    ] {
        assert!(text.contains(wanted), "no {wanted} in:\n{text}");
    }
}

#[test]
fn a_gid_of_the_wrong_family_is_named() {
    let lab = Lab::start();
    let (a, b) = (Endpoint::at("a", "blue", SERVER), Endpoint::at("b", "blue", "10.7.0.3"));
    let mut server = lab.start_in(&a, &words(&format!("ibv_rc_pingpong -p {PORT} -g 1")));
    server.wait_listening(PORT);
    lab.run_in(&b, LIMIT, &words(&format!("timeout 10 ibv_rc_pingpong -p {PORT} -g 0 {SERVER}")));
    server.kill();
    // The endpoint has gone with its program.
    let wanted = ["endpoint b of blue", "ibv_rc_pingpong", "GID index 0", SERVER, "use GID index 1"];
    assert_says(&doctor(&lab, ""), &wanted);
}

#[test]
fn operations_that_there_are_not_are_named() {
    let lab = Lab::start();
    let raw = "raw_ethernet_bw --client -n 100 -B 02:00:00:00:00:01 -E 02:00:00:00:00:02 --raw_mcast";
    let output = lab.run_in(&Endpoint::new("a"), LIMIT, &words(raw));
    assert!(!output.status.success());
    assert_says(&doctor(&lab, ""), &["raw_ethernet_bw", "type RAW_PACKET is not supported", "RC, UC and UD"]);
}

#[test]
fn limits_that_are_reached_are_named() {
    let lab = Lab::start();
    let mut run = lab.rdmesh();
    run.args(["run", "--name", "small", "--max-qps", "0", "--"]).args(words("ibv_rc_pingpong -g 1"));
    assert!(!Program::start(run).finish(LIMIT).status.success());
    assert_says(&doctor(&lab, ""), &["endpoint small", "no more queue pairs", "raise the quota"]);
}

#[test]
fn paths_that_lead_nowhere_are_named() {
    let lab = Lab::start_with(Options { rootless: true, ..Options::default() });
    // Without the endpoint's address on any interface there is no external path.
    let client = lab.run_in(&Endpoint::new("a"), LIMIT, &words("ib_write_bw -F -R 10.99.0.9"));
    assert!(!client.status.success());
    assert_says(&doctor(&lab, ""), &["no path to 10.99.0.9", "rdmesh peer ls"]);
}

#[test]
fn peers_that_never_answer_are_named() {
    let lab = Lab::start();
    let mut peer =
        lab.start_in(&Endpoint::new("a"), &[helper("peer").into_os_string(), "rc".into(), "10".into(), "1".into()]);
    let local = peer.next_line(LIMIT);
    let [_, gid, _, key, address] = local.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{local}") };
    peer.say(&format!("connect {gid} 77777 {key} {address}"));
    assert_eq!(peer.next_line(LIMIT), "connected");
    peer.say("post write 8");
    assert_eq!(peer.next_line(LIMIT), "posted");
    peer.say("wait");
    assert!(peer.next_line(LIMIT).contains("retry"), "it is given up");
    peer.kill();
    lab.wait_until_empty();
    assert_says(&doctor(&lab, ""), &["endpoint a", "queue pair 77777 of ", "never answered", "of this host"]);
}

#[test]
fn the_way_to_a_peer_is_checked() {
    let hosts = Hosts::start();
    let lab = hosts.lab(0);
    let mut here = lab.start_in(&Hosts::endpoint(0, "blue"), &words("sleep 1000"));
    until(LIMIT, "there is an endpoint", || (lab.status()["endpoints"].as_u64() == Some(1)).then_some(()));
    let to = |address: &str| doctor(lab, &format!("--net blue --endpoint e --to {address}"));
    assert_says(&to(&Hosts::ip(0)), &["is endpoint e, on this host"]);
    let text = to(&Hosts::ip(1));
    assert_says(&text, &["is on host host1", "192.0.2.2", "room for packets of 1"]);
    assert_says(&text, &["ok", "does not refuse UDP port 6081"]);
    assert_says(
        &to("10.7.0.77"),
        &["FAIL", "no endpoint of blue has 10.7.0.77", "no machine outside rdmesh answers", "rdmesh peer endpoint"],
    );
    assert_says(&to("10.8.0.1"), &["FAIL", "no path to machines outside rdmesh"]);
    assert_says(&to("fd00::1"), &["FAIL", "has no address of the family"]);
    // Its network is another one.
    assert_says(&doctor(lab, &format!("--net green --to {}", Hosts::ip(1))), &["warn", "is an endpoint of network"]);
    hosts.lab(1).command(&["down"]).ok();
    assert_says(&to(&Hosts::ip(1)), &["FAIL", "no router runs on host1", "rdmesh up"]);
    // For the end of the test, which takes it down too.
    assert!(hosts.lab(1).command(&["up"]).status.success());
    here.kill();
}

/// The report of `rdmesh trace` from host 0's endpoint to an address, and whether anything gets through.
fn trace(hosts: &Hosts, to: &str) -> (Value, bool) {
    let traced = hosts.lab(0).command(&["trace", "blue/e", to, "--json"]);
    let report = serde_json::from_str(&traced.text).unwrap_or_else(|error| panic!("{error}: {}", traced.text));
    (report, traced.status.success())
}

/// The message of a finding of the level.
fn finding(report: &Value, level: &str, subject: &str) -> String {
    let findings = report["findings"].as_array().expect("findings");
    let found = findings.iter().find(|finding| finding["level"] == level && finding["subject"] == subject);
    found.unwrap_or_else(|| panic!("no {level} {subject} in {report:#}"))["message"]
        .as_str()
        .expect("a message")
        .to_owned()
}

#[test]
fn a_trace_shows_the_hops_between_two_hosts() {
    let hosts = Hosts::start();
    let mut server = hosts.lab(0).start_in(&Hosts::endpoint(0, "blue"), &words("ib_write_bw -F --run_infinitely"));
    server.wait_listening(18_515);
    let client = words(&format!("ib_write_bw -F --run_infinitely {}", Hosts::ip(0)));
    let mut client = hosts.lab(1).start_in(&Hosts::endpoint(1, "blue"), &client);
    let report = until(LIMIT, "the queue pairs are connected", || {
        let (report, is_through) = trace(&hosts, &Hosts::ip(1));
        assert!(is_through, "{report:#}");
        (!report["queue_pairs"].as_array().expect("a list").is_empty()).then_some(report)
    });
    assert!(finding(&report, "ok", "ends").contains("on host host1, whose router is at 192.0.2.2"));
    let hops = report["hops"].as_array().expect("hops");
    let times: Vec<f64> = hops.iter().map(|hop| hop["p50_us"].as_f64().expect("a time")).collect();
    assert_eq!(hops.len(), 6, "{report:#}");
    assert!(times[5] > 0.0 && times[5] < 1e6, "{report:#}");
    let pair = &report["queue_pairs"][0];
    assert_eq!(
        (&pair["command"], &pair["kind"], &pair["path"]),
        (&"ib_write_bw".into(), &"RC".into(), &"host 192.0.2.2".into())
    );
    let text = hosts.lab(0).command(&["trace", "blue/e", &format!("blue/{}", Hosts::ip(1))]).ok().text;
    for wanted in ["HOP", "host1: worker answers", "there and back, in all", "ROUND TRIP", "ib_write_bw"] {
        assert!(text.contains(wanted), "no {wanted} in:\n{text}");
    }
    server.kill();
    client.kill();
}

#[test]
fn a_trace_names_what_lets_nothing_through() {
    let hosts = Hosts::start_with(9000, Options::default());
    let mut ends = [0, 1].map(|n| hosts.lab(n).start_in(&Hosts::endpoint(n, "blue"), &words("sleep 1000")));
    until(LIMIT, "both ends are there", || {
        [0, 1].iter().all(|n| hosts.lab(*n).status()["endpoints"].as_u64() == Some(1)).then_some(())
    });
    let to = Hosts::ip(1);
    let (report, is_through) = trace(&hosts, &to);
    // On a busy machine an answer may come too late.
    assert!(is_through && report.to_string().contains("of 10 of 4096"), "{report:#}");
    // A security group of the other host.
    hosts.lab(1).command(&["group", "set", "db", "--net", "blue", "--member", "e", "--from", "endpoint/other"]).ok();
    let (report, is_through) = trace(&hosts, &to);
    assert!(!is_through && finding(&report, "fail", "groups").contains("lets blue/e begin a connection"), "{report:#}");
    hosts.lab(1).command(&["group", "rm", "db", "--net", "blue"]).ok();
    assert_says(&doctor(hosts.lab(0), ""), &["ok    paths: 1 host answers full packets"]);
    // A network that carries less than its ends believe.
    let link = |mtu: &str| inside(hosts.switch(), &["ip", "link", "set", "port1", "mtu", mtu]);
    link("1500");
    let (report, is_through) = trace(&hosts, &to);
    assert!(!is_through && finding(&report, "fail", "probes").contains("0 of 10 of 4096"), "{report:#}");
    assert_says(
        &doctor(hosts.lab(0), ""),
        &["FAIL", "host host1 at 192.0.2.2 answers short packets, and none with 4096 bytes"],
    );
    link("9000");
    // A blocked port.
    let filter = |rules: &str| inside(hosts.netns(1), &["nft", rules]);
    filter("table inet block { chain arriving { type filter hook input priority 0; udp dport 6081 drop; }; }");
    let (report, is_through) = trace(&hosts, &to);
    assert!(!is_through && finding(&report, "fail", "probes").contains("has answered none"), "{report:#}");
    assert!(report["hops"].as_array().is_some_and(Vec::is_empty));
    assert_says(&doctor(hosts.lab(0), ""), &["warn", "host host1 at 192.0.2.2 does not answer"]);
    filter("delete table inet block");
    // An endpoint that has gone, of which this host was told by hand.
    ends[1].kill();
    until(LIMIT, "the router has removed the endpoint", || {
        (hosts.lab(1).status()["endpoints"].as_u64() == Some(0)).then_some(())
    });
    let (report, is_through) = trace(&hosts, &to);
    assert!(!is_through && finding(&report, "fail", "endpoint").contains("has no endpoint with"), "{report:#}");
    hosts.lab(1).command(&["down"]).ok();
    let (report, is_through) = trace(&hosts, &to);
    assert!(!is_through && finding(&report, "fail", "other router").contains("no router runs on host1"), "{report:#}");
    // For the end of the test, which takes it down too.
    assert!(hosts.lab(1).command(&["up"]).status.success());
    ends[0].kill();
}
