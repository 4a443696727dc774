//! The tunnel between hosts: forged, repeated and foreign packets, and key changes.

use rdmesh_tests::forge::{self, Look, Tap, Target};
use rdmesh_tests::{Hosts, Lab, Options, Peer, until};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
/// Timeout 2^14 * 4.096 us = 67 ms, seven retries.
const MANY_RETRIES: [&str; 3] = ["rc", "14", "7"];
/// That of the `peer` program.
const QKEY: u32 = 0x1111_1111;
/// Reasons for which a packet from a host's address is refused.
const REASONS: [&str; 5] = ["unsealed", "unknown_session", "wrong_tag", "replayed", "other_key"];
const OTHER_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// The router's report on the tunnel to the only other host.
fn other_host(lab: &Lab) -> Value {
    lab.api("/v1/tunnel")["hosts"][0].clone()
}

fn count(lab: &Lab, reason: &str) -> u64 {
    number(&other_host(lab)[reason])
}

fn refused(lab: &Lab) -> u64 {
    let host = other_host(lab);
    REASONS.iter().map(|reason| number(&host[reason])).sum()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The only queue pair on a host.
fn queue_pair(lab: &Lab) -> Value {
    lab.api("/v1/contexts")[0]["qps"][0].clone()
}

/// A forger's knowledge of a victim: everything.
fn target(lab: &Lab, victim: &Peer) -> Target {
    let [_, qpn, rkey, addr] = victim.local().split(' ').collect::<Vec<_>>()[..] else { panic!("four words") };
    let psn = number(&queue_pair(lab)["expected_psn"]) as u32;
    Target { qpn: parse(qpn) as u32, psn, rkey: parse(rkey) as u32, addr: parse(addr) }
}

fn parse(word: &str) -> u64 {
    word.parse().expect("a number")
}

fn start(hosts: &Hosts, number: usize, arguments: &[&str]) -> Peer {
    Peer::start(hosts.lab(number), &Hosts::endpoint(number, "blue"), arguments)
}

/// A queue pair for datagrams on host 0, with a receive request.
fn datagram_receiver(hosts: &Hosts) -> Peer {
    let mut receiver = start(hosts, 0, &["ud"]);
    let own = receiver.local().to_owned();
    receiver.connect_to(&own);
    receiver.ask("recv");
    receiver
}

/// Two ends of a connection, one on each host, over which something was sent.
fn connection(hosts: &Hosts) -> (Peer, Peer) {
    let (mut victim, mut friend) = (start(hosts, 0, &MANY_RETRIES), start(hosts, 1, &MANY_RETRIES));
    Peer::connect(&mut victim, &mut friend);
    friend.ask("post write 64");
    assert_eq!(friend.completion().0, "success");
    victim.ask("fill 1 4096");
    (victim, friend)
}

/// Without authentication an ordinary user of another host writes into a tenant's memory: what the tests below prevent.
#[test]
fn an_insecure_tunnel_believes_anybody() {
    let options = Options { up: ["--underlay-security", "none"].map(str::to_owned).into(), ..Options::default() };
    let hosts = Hosts::start_with(1500, options);
    let (lab, from) = (hosts.lab(0), Hosts::address(1));
    let (mut victim, friend) = connection(&hosts);
    let at = target(lab, &victim);
    let forged = [forge::notification(&at, Look::Plain), forge::mad(Look::Plain), forge::write(&at, Look::Plain)];
    forge::send(&hosts, &from, &forged);
    until(LIMIT, "the forged packets arrive", || {
        let has_written = number(&queue_pair(lab)["expected_psn"]) != u64::from(at.psn);
        (has_written && lab.metric("rdmesh_worker_mads_total") > 0.0).then_some(())
    });
    assert_eq!(victim.ask("check 1 4096"), "differ");
    assert_eq!(number(&queue_pair(lab)["cnps_received"]), 1);
    drop((victim, friend));
    lab.wait_until_empty();
    let mut victim = datagram_receiver(&hosts);
    forge::send(&hosts, &from, &[forge::datagram(&target(lab, &victim), QKEY, Look::Plain)]);
    assert_eq!(victim.completion().0, "success");
}

#[test]
fn forged_packets_reach_no_tenant_and_are_counted() {
    let hosts = Hosts::start();
    let (lab, from) = (hosts.lab(0), Hosts::address(1));
    let mut tap = Tap::start(&hosts);
    let (mut victim, mut friend) = connection(&hosts);
    let session = tap.session();
    let looks = [Look::Plain, Look::Sealed(1, 1), Look::Sealed(session, 1 << 20), Look::Sealed(session, u64::MAX)];
    let mads = lab.metric("rdmesh_worker_mads_total");
    let before = refused(lab);
    let at = target(lab, &victim);
    let forged = looks.map(|look| [forge::write(&at, look), forge::notification(&at, look), forge::mad(look)]);
    forge::send(&hosts, &from, forged.as_flattened());
    until(LIMIT, "all are refused", || (refused(lab) == before + 12).then_some(()));
    assert_eq!(victim.ask("check 1 4096"), "match");
    assert_eq!(number(&queue_pair(lab)["cnps_received"]), 0);
    assert_eq!(lab.metric("rdmesh_worker_mads_total"), mads);
    let host = other_host(lab);
    assert_eq!(["unsealed", "unknown_session", "wrong_tag"].map(|reason| number(&host[reason])), [3, 3, 6]);
    // The connection has noticed nothing.
    friend.ask("post read 4096");
    assert_eq!(friend.completion().0, "success");
    assert_eq!(friend.ask("check 1 4096"), "match");
    drop((victim, friend));
    lab.wait_until_empty();
    let victim = datagram_receiver(&hosts);
    let at = target(lab, &victim);
    forge::send(&hosts, &from, &looks.map(|look| forge::datagram(&at, QKEY, look)));
    until(LIMIT, "all are refused", || (refused(lab) == before + 16).then_some(()));
    assert_eq!(number(&queue_pair(lab)["received_messages"]), 0);
    // The refusals show in the metrics and in `rdmesh doctor`.
    assert!(lab.metric("rdmesh_tunnel_refused_total") >= 16.0);
    let text = lab.command(&["doctor"]).text;
    assert!(text.contains("from the address of host1 (192.0.2.2)"), "{text}");
    assert!(text.contains("`rdmesh up --firewall` on host1 lets only the router there send"), "{text}");
    let text = lab.command(&["ps", "--wide"]).ok().text;
    for count in ["4 refused, without a tag", "4 refused, in no session", "8 refused, with a wrong tag"] {
        assert!(text.contains(count), "{count} in {text}");
    }
    assert!(text.contains("  open  ") && !text.contains("0 refused") && !text.contains("not sent"), "{text}");
    let told: Value = serde_json::from_str(&lab.command(&["ps", "--wide", "--json"]).ok().text).expect("JSON");
    assert_eq!(told["tunnel"]["hosts"][0], other_host(lab));
    assert_eq!(lab.metric("rdmesh_tunnel_open"), 2.0, "to it, and from it");
}

#[test]
fn who_is_no_host_is_not_heard() {
    let hosts = Hosts::start();
    let lab = hosts.lab(0);
    let mut address = Command::new("ip");
    address.args(["-n", hosts.netns(1), "address", "add", "192.0.2.77/24", "dev", "eth0"]);
    rdmesh_tests::Program::start(address).finish(LIMIT).ok();
    forge::send(&hosts, "192.0.2.77", &[forge::mad(Look::Plain), forge::mad(Look::Sealed(1, 1))]);
    let tunnel = until(LIMIT, "they are counted", || {
        Some(lab.api("/v1/tunnel")).filter(|tunnel| tunnel["stranger_packets"] == 2)
    });
    assert_eq!(tunnel["last_stranger"], "192.0.2.77");
    assert!(lab.command(&["ps", "--wide"]).ok().text.contains("2 packets, the last from 192.0.2.77"));
    assert_eq!(lab.metric("rdmesh_worker_mads_total"), 0.0);
}

#[test]
fn what_was_recorded_is_taken_no_second_time_not_even_after_a_restart() {
    let hosts = Hosts::start();
    let lab = hosts.lab(0);
    let mut tap = Tap::start(&hosts);
    let (mut victim, mut friend) = connection(&hosts);
    let mut recorded = Vec::new();
    for _ in 0..20 {
        friend.ask("post write 64");
        assert_eq!(friend.completion().0, "success");
        recorded.push(tap.packet());
    }
    let seen = |qp: Value| [qp["expected_psn"].clone(), qp["duplicates"].clone()];
    let (before, replayed) = (seen(queue_pair(lab)), count(lab, "replayed"));
    victim.ask("fill 1 4096");
    forge::send(&hosts, &Hosts::address(1), &recorded);
    until(LIMIT, "all are refused", || (count(lab, "replayed") == replayed + 20).then_some(()));
    assert_eq!(victim.ask("check 1 4096"), "match");
    assert_eq!(seen(queue_pair(lab)), before);
    drop((victim, friend));
    // A router that knows nothing of what was before.
    rdmesh_tests::system::kill(lab.router_pid());
    lab.up_again();
    hosts.wait_for_sessions();
    forge::send(&hosts, &Hosts::address(1), &recorded);
    until(LIMIT, "all are refused", || (count(lab, "unknown_session") == 20).then_some(()));
    assert_eq!(lab.metric("rdmesh_wire_received_total"), 0.0, "the engine has seen none");
}

#[test]
fn a_key_is_replaced_while_packets_flow_and_none_is_lost() {
    let mut hosts = Hosts::start();
    let new = hosts.key_file(OTHER_KEY);
    let (mut a, mut b) = connection(&hosts);
    for (number, says) in [(0, &mut a), (1, &mut b)] {
        assert_eq!(says.ask("trickle write 4096 200"), "done");
        let text = hosts.lab(number).command(&["peer", "rotate", "--key", &new]).ok().text;
        assert!(text.contains("as soon as"), "{text}");
        if number == 0 {
            assert!(hosts.lab(0).command(&["peer", "ls"]).ok().text.contains("new key waits"));
        }
        assert_eq!(says.ask("trickle write 4096 200"), "done");
    }
    for number in 0..2 {
        until(LIMIT, "the new key is used", || {
            (other_host(hosts.lab(number))["is_changing_key"] == false).then_some(())
        });
    }
    assert_eq!(a.ask("trickle write 4096 200"), "done");
    assert_eq!(b.ask("trickle write 4096 200"), "done");
    for lab in [hosts.lab(0), hosts.lab(1)] {
        let host = other_host(lab);
        for reason in ["unsealed", "unknown_session", "wrong_tag", "unsent"] {
            assert_eq!(host[reason], 0, "{reason}");
        }
        assert!(lab.command(&["peer", "ls"]).ok().text.contains("authenticated"));
    }
}

#[test]
fn a_wrong_key_is_named_on_both_hosts() {
    let hosts = Hosts::start_with_keys(1500, Options::default(), [Hosts::KEY, OTHER_KEY]);
    for (number, other) in [(0, "host1"), (1, "host0")] {
        let lab = hosts.lab(number);
        until(LIMIT, "the other one has asked", || (count(lab, "other_key") > 0).then_some(()));
        let text = lab.command(&["doctor"]).text;
        let line = text.lines().find(|line| line.starts_with("FAIL") && line.contains(other));
        assert!(line.is_some_and(|line| line.contains("another key")), "{text}");
    }
    // Nothing is sent to a host without a session, nor accepted from it.
    let (mut victim, mut friend) = (start(&hosts, 0, &["rc", "10", "1"]), start(&hosts, 1, &["rc", "10", "1"]));
    Peer::connect(&mut victim, &mut friend);
    friend.ask("post write 64");
    assert_eq!(friend.completion().0, "transport retry counter exceeded");
    assert!(count(hosts.lab(1), "unsent") > 0);
    assert_eq!(hosts.lab(0).metric("rdmesh_wire_received_total"), 0.0);
}

#[test]
fn a_host_without_a_key_is_refused_with_a_remedy() {
    let mut hosts = Hosts::start();
    let lab = hosts.lab(0);
    let public = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(public.path(), OTHER_KEY).expect("the file is ours");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(public.path(), mode).expect("the file is ours");
    let path = public.path().display().to_string();
    let output = lab.command(&["peer", "add", "host7", "192.0.2.7", "--key", &path]);
    assert!(!output.status.success() && output.text.contains("chmod 600"), "{}", output.text);
    let alone = tempfile::tempdir().expect("a temporary folder");
    hosts.add(&serde_json::json!({ "hosts": [] }));
    let lab = hosts.lab(2);
    let mut up = lab.rdmesh();
    up.args(["--state-dir", &alone.path().display().to_string(), "up", "--underlay", &Hosts::address(2)]);
    lab.command(&["down"]).ok();
    rdmesh_tests::Program::start(up).finish(LIMIT).ok();
    let run = |arguments: &[&str]| {
        let mut command = lab.rdmesh();
        command.args(["--state-dir", &alone.path().display().to_string()]).args(arguments);
        rdmesh_tests::Program::start(command).finish(LIMIT)
    };
    let output = run(&["peer", "add", "host0", "192.0.2.1"]);
    assert!(!output.status.success() && output.text.contains("rdmesh peer key > FILE"), "{}", output.text);
    run(&["down"]).ok();
    lab.up_again();
}

/// Packets that the rules of a chain on a host have dropped.
fn dropped(hosts: &Hosts, host: usize, chain: &str) -> Option<u64> {
    let mut list = Command::new("nsenter");
    list.arg(format!("--net=/run/netns/{}", hosts.netns(host)))
        .args(["--", "nft", "list", "chain", "inet", "rdmesh", chain]);
    let output = rdmesh_tests::Program::start(list).finish(LIMIT);
    output.status.success().then(|| parse(between(&output.text, "counter packets ", " ")))
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    text.split_once(before)
        .and_then(|(_, rest)| rest.split_once(after))
        .map_or_else(|| panic!("{text}"), |(found, _)| found)
}

fn run(words: &str) -> rdmesh_tests::Output {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    rdmesh_tests::Program::start(command).finish(LIMIT)
}

#[test]
fn with_a_firewall_only_the_router_sends() {
    let options = Options { up: vec!["--firewall".to_owned()], ..Options::default() };
    let mut hosts = Hosts::start_with(1500, options);
    // A machine behind host 1, as a container is.
    let machine = hosts.plug_in(1, "nic0", "10.9.0.2");
    let host = hosts.netns(1).to_owned();
    for command in [
        format!("ip -n {host} address add 10.9.0.1/24 dev nic0"),
        format!("ip -n {host} link set nic0 up"),
        format!("ip -n {machine} route add default via 10.9.0.1"),
        format!("nsenter --net=/run/netns/{host} -- sysctl -qw net.ipv4.ip_forward=1"),
    ] {
        run(&command).ok();
    }
    let packet = [forge::mad(Look::Plain)];
    assert!(!forge::try_send(&hosts, &Hosts::address(1), &packet).status.success(), "a user's packet is not sent");
    let script = "import socket\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        for a in ('192.0.2.1', '192.0.2.2'):\n    for p in (4789, 6081): s.sendto(b'x', (a, p))\n";
    let mut python = Command::new("nsenter");
    python.arg(format!("--net=/run/netns/{machine}")).args(["--", "/usr/bin/python3", "-c", script]);
    rdmesh_tests::Program::start(python).finish(LIMIT).ok();
    for (chain, count) in [("output", 1), ("forward", 2), ("input", 2)] {
        until(LIMIT, "all are dropped", || (dropped(&hosts, 1, chain) == Some(count)).then_some(()));
    }
    assert_eq!((refused(hosts.lab(0)), hosts.lab(0).api("/v1/tunnel")["stranger_packets"].clone()), (0, 0.into()));
    assert!(hosts.lab(1).command(&["doctor"]).text.contains("ok    firewall: "));
    // RDMA and plain IP go on.
    drop(connection(&hosts));
    hosts.lab(0).wait_until_empty();
    hosts.lab(1).wait_until_empty();
    let mut server = hosts.lab(0).start_in(&Hosts::endpoint(0, "blue"), &["qperf"]);
    server.wait_listening(19765);
    let test = ["timeout", "20", "qperf", "-t", "1", &Hosts::ip(0), "tcp_lat"];
    hosts.lab(1).run_in(&Hosts::endpoint(1, "blue"), LIMIT, &test).ok();
    hosts.lab(1).command(&["down"]).ok();
    assert_eq!(dropped(&hosts, 1, "output"), None, "the rules have gone with the router");
    hosts.lab(1).up_again();
}
