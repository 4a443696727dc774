//! Endpoints of two hosts: plain IP, every program, network faults, and rejected senders.

use rdmesh_tests::{Hosts, Options, Pair, Peer, Program, helper, until};
use serde_json::json;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Timeout 2^12 * 4.096 us = 17 ms, three retries: an unreachable peer is noticed soon.
const SHORT: [&str; 3] = ["rc", "12", "3"];
/// Timeout 2^14 * 4.096 us = 67 ms, seven retries: losses are made good.
const MANY_RETRIES: [&str; 3] = ["rc", "14", "7"];

#[test]
fn ip_flows_between_hosts() {
    let hosts = Hosts::start();
    let pair = hosts.pair();
    let port = Pair::PORT.to_string();
    for test in ["tcp_lat", "tcp_bw", "udp_lat"] {
        let text = pair.run_both(
            &["timeout", "60", "sh", "-c", &format!("qperf -lp {port} & wait $!; true")],
            &["qperf", "-lp", &port, &pair.address, "-t", "1", test, "quit"],
        );
        assert!(text.contains(test), "{text}");
    }
}

#[test]
fn ip_of_two_networks_stays_apart() {
    let hosts = Hosts::start();
    let command = ["sh", "-c", "timeout 5 qperf -t 1 10.7.0.2 tcp_lat"];
    // The server is on network red, at the address that the client on network blue asks for.
    let mut server = hosts.lab(0).start_in(&Hosts::endpoint(0, "red"), &["qperf"]);
    server.wait_listening(19765);
    let stranger = hosts.lab(1).run_in(&Hosts::endpoint(1, "blue"), LIMIT, &command);
    assert!(!stranger.status.success(), "{}", stranger.text);
    let friend = hosts.lab(1).run_in(&Hosts::endpoint(1, "red"), LIMIT, &command);
    assert!(friend.status.success(), "{}", friend.text);
}

#[test]
fn an_attached_interface_leads_to_machines_outside() {
    let mut hosts = Hosts::start();
    let machine = hosts.plug_in(0, "nic0", "10.7.0.99");
    assert!(hosts.lab(0).command(&["network", "attach", "blue", "nic0"]).ok().text.contains("nic0"));
    let mut server = Command::new("nsenter");
    server.args([&format!("--net=/run/netns/{machine}"), "--", "qperf"]);
    let mut server = Program::start(server);
    server.wait_listening(19765);
    // From the host with the interface, and from the other one.
    for number in [0, 1] {
        let command = ["timeout", "10", "qperf", "-t", "1", "10.7.0.99", "tcp_bw"];
        let text = hosts.lab(number).run_in(&Hosts::endpoint(number, "blue"), LIMIT, &command).ok().text;
        assert!(text.contains("tcp_bw"), "{text}");
    }
    hosts.lab(0).command(&["network", "detach", "blue", "nic0"]).ok();
    let mut list = Command::new("ip");
    list.args(["-n", hosts.netns(0), "link", "show", "nic0"]);
    Program::start(list).finish(LIMIT).ok();
}

#[test]
fn every_byte_arrives_as_it_was_sent() {
    let hosts = Hosts::start();
    let pair = hosts.pair();
    let exchange = helper("exchange").display().to_string();
    for case in ["rc", "uc", "-l 1024 ud", "soak", "rnr", "errors"] {
        pair.run(&exchange, case);
    }
}

#[test]
fn pingpong_programs_work() {
    let hosts = Hosts::start();
    let pair = hosts.pair();
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        for options in ["", "-e", "-c", "-c -e", "-s 1 -n 5000", "-r 16 -n 300"] {
            // A datagram of the default 4096 bytes does not fit on this wire.
            let size = if program == "ibv_ud_pingpong" && !options.contains("-s") { "-s 1024" } else { "" };
            pair.pingpong(program, &format!("{options} {size}"));
        }
    }
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong"] {
        pair.pingpong(program, "-m 1024 -s 1000000 -n 100 -c");
        pair.pingpong(program, "-m 256 -s 8191 -c");
    }
    pair.pingpong("ibv_rc_pingpong", "-N -c");
    pair.pingpong("ibv_rc_pingpong", "-o -c");
    pair.pingpong("ibv_srq_pingpong", "-q 64 -n 200 -c");
}

#[test]
fn what_was_posted_before_the_end_of_a_connection_arrives() {
    for workers in ["1", "2"] {
        let up = ["--workers", workers].map(str::to_owned).into();
        let hosts = Hosts::start_with(1500, Options { up, ..Options::default() });
        hosts.pair().end_at_once(&helper("ending").display().to_string(), 200);
    }
}

#[test]
fn perftest_works_in_all_sizes() {
    let hosts = Hosts::start();
    let pair = hosts.pair();
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        let sizes: Vec<_> = pair.bandwidth(program, "-a -n 200").iter().map(|r| r.bytes).collect();
        assert_eq!(sizes, (1..=23).map(|i| 1 << i).collect::<Vec<u64>>(), "{program} -a");
    }
    for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat"] {
        assert_eq!(pair.latency(program, "-a -n 100").len(), 23, "{program} -a");
    }
    assert_eq!(pair.bandwidth("ib_atomic_bw", "-n 2000")[0].bytes, 8);
    assert_eq!(pair.latency("ib_atomic_lat", "-n 2000")[0].bytes, 8);
}

#[test]
fn perftest_works_with_large_packets() {
    let hosts = Hosts::start_with(9000, Options::default());
    let pair = hosts.pair();
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        pair.bandwidth(program, "-m 4096 -s 1048576 -n 200");
    }
    pair.bandwidth("ib_send_bw", "-c UD -s 4096 -n 1000");
}

#[test]
fn perftest_works_with_several_workers() {
    let options = Options { up: ["--workers", "2"].map(str::to_owned).into(), ..Options::default() };
    let hosts = Hosts::start_with(1500, options);
    let pair = hosts.pair();
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        assert_eq!(pair.bandwidth(program, "-q 8 -n 500")[0].iterations, 4000, "{program}");
        pair.bandwidth(program, "-q 4 -b -n 500");
    }
    pair.latency("ib_send_lat", "-n 1000");
}

#[test]
fn perftest_works_with_events_many_queue_pairs_and_in_both_directions() {
    let hosts = Hosts::start();
    let pair = hosts.pair();
    for program in ["ib_send_bw", "ib_read_bw", "ib_atomic_bw"] {
        pair.bandwidth(program, "-e -n 1000");
    }
    for program in ["ib_send_lat", "ib_read_lat", "ib_atomic_lat"] {
        pair.latency(program, "-e -n 1000");
    }
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
        assert_eq!(pair.bandwidth(program, "-q 8 -n 500")[0].iterations, 4000, "{program}");
        pair.bandwidth(program, "-b -n 1000");
    }
    pair.bandwidth("ib_write_bw", "-q 64 -n 20 -s 4096");
    pair.bandwidth("ib_send_bw", "-q 8 -n 500 -r 64 --use-srq");
}

#[test]
fn perftest_works_unconnected_and_unreliable() {
    let hosts = Hosts::start();
    let pair = hosts.pair();
    // perftest waits for every message, so that they must be few enough for the receiver's socket: nothing else holds the
    // sender of an unreliable transport back.
    for options in
        ["-c UC -s 1024 -n 500", "-c UD -s 1024 -n 500", "-c UD -s 1024 -e -n 500", "-c UC -s 1024 -b -n 500"]
    {
        pair.bandwidth("ib_send_bw", options);
    }
    pair.bandwidth("ib_write_bw", "-c UC -n 1000");
    for options in ["-c UC -n 1000", "-c UD -n 1000", "-c UD -s 64 -e -n 500"] {
        pair.latency("ib_send_lat", options);
    }
    pair.latency("ib_write_lat", "-c UC -n 1000");
}

#[test]
fn ucx_works_over_both_transports() {
    let hosts = Hosts::start();
    let pair = hosts.pair();
    for transports in ["UCX_TLS=rc_verbs,ud_verbs,self", "UCX_TLS=ud_verbs,self"] {
        let program = ["env", transports, "UCX_NET_DEVICES=rxe0:1", "ucx_perftest"];
        for test in ["tag_lat -s 8", "tag_lat -s 100000", "stream_lat", "ucp_am_lat", "ucp_put_lat", "ucp_get"] {
            let text = pair.run_command(&program, &format!("-n 1000 -t {test}"));
            assert!(text.contains("Final:"), "no result of {test} with {transports}:\n{text}");
        }
    }
}

#[test]
fn faults_of_the_network_are_made_good() {
    let hosts = Hosts::start();
    let pair = hosts.pair();
    for faults in ["loss=1%,seed=1", "loss=5%,seed=2", "duplicate=2%,reorder=2%,corrupt=1%,ce=5%,seed=3"] {
        hosts.set_faults(faults);
        // The time that a lost packet costs is the program's own: 67 ms a loss with `-u 14`.
        for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
            pair.bandwidth(program, "-u 14 -s 65536 -n 200");
        }
        pair.bandwidth("ib_atomic_bw", "-u 14 -n 500");
        pair.pingpong("ibv_rc_pingpong", "-c -s 10000 -n 300");
        pair.run(&helper("exchange").display().to_string(), "rc");
        let (mut a, mut b) = peers(&hosts, &MANY_RETRIES);
        Peer::connect(&mut a, &mut b);
        exchange(&mut a, &mut b);
        a.quit();
        b.quit();
    }
    hosts.set_faults("off");
    pair.pingpong("ibv_rc_pingpong", "-c");
}

/// One end on each host, on network `blue`.
fn peers(hosts: &Hosts, arguments: &[&str]) -> (Peer, Peer) {
    let start = |number| Peer::start(hosts.lab(number), &Hosts::endpoint(number, "blue"), arguments);
    (start(0), start(1))
}

/// Writes, reads and sends with the data checked.
fn exchange(a: &mut Peer, b: &mut Peer) {
    for (seed, len) in [1, 100, 1024, 1025, 40_000, 65_536].into_iter().enumerate() {
        a.ask(&format!("fill {seed} {len}"));
        a.ask(&format!("post write {len}"));
        assert_eq!(a.completion().0, "success");
        assert_eq!(b.ask(&format!("check {seed} {len}")), "match");
        a.ask(&format!("fill 99 {len}"));
        a.ask(&format!("post read {len}"));
        assert_eq!(a.completion().0, "success");
        assert_eq!(a.ask(&format!("check {seed} {len}")), "match");
        b.ask("recv");
        a.ask(&format!("fill {} {len}", seed + 50));
        a.ask(&format!("post send {len}"));
        assert_eq!(a.completion().0, "success");
        assert_eq!(b.completion().0, "success");
        assert_eq!(b.ask(&format!("check {} {len}", seed + 50)), "match");
    }
}

#[test]
fn ps_tells_the_path_and_the_counters_what_was_sent() {
    let hosts = Hosts::start();
    let (mut a, mut b) = peers(&hosts, &MANY_RETRIES);
    Peer::connect(&mut a, &mut b);
    exchange(&mut a, &mut b);
    let contexts = hosts.lab(0).api("/v1/contexts");
    assert_eq!(contexts[0]["qps"][0]["path"], "host 192.0.2.2");
    assert!(hosts.lab(0).command(&["ps"]).ok().text.contains("192.0.2.2"));
    assert!(hosts.lab(0).command(&["ps", "--wide"]).ok().text.contains("UNACKED"));
    for name in ["rdmesh_wire_sent_total", "rdmesh_wire_received_total", "rdmesh_endpoint_qps_host"] {
        assert!(hosts.metric(name) > 0.0, "{name}");
    }
    a.quit();
    b.quit();
}

#[test]
fn a_peer_that_is_killed_is_noticed() {
    let hosts = Hosts::start();
    let (mut a, mut b) = peers(&hosts, &SHORT);
    Peer::connect(&mut a, &mut b);
    exchange(&mut a, &mut b);
    b.kill();
    hosts.lab(1).wait_until_empty();
    a.ask("post write 64");
    assert_eq!(a.completion().0, "transport retry counter exceeded");
}

#[test]
fn another_network_is_out_of_reach() {
    let hosts = Hosts::start();
    let mut victim = Peer::start(hosts.lab(0), &Hosts::endpoint(0, "red"), &SHORT);
    let mut friend = Peer::start(hosts.lab(1), &Hosts::endpoint(1, "red"), &SHORT);
    let mut intruder = Peer::start(hosts.lab(1), &Hosts::endpoint(1, "blue"), &SHORT);
    Peer::connect(&mut victim, &mut friend);
    victim.ask("fill 1 4096");
    // The intruder has the friend's address, knows QPN and rkey, and gets no answer.
    let secret = victim.local().to_owned();
    intruder.connect_to(&secret);
    intruder.ask("fill 2 4096");
    intruder.ask("post write 4096");
    assert_eq!(intruder.completion().0, "transport retry counter exceeded");
    assert!(hosts.lab(0).metric("rdmesh_wire_wrong_source_total") > 0.0, "it was tried");
    assert_eq!(victim.ask("check 1 4096"), "match");
    assert_eq!(victim.ask("events"), "end", "the victim notices nothing");
    friend.ask("post read 4096");
    assert_eq!(friend.completion().0, "success");
    assert_eq!(friend.ask("check 1 4096"), "match");
}

#[test]
fn a_host_that_claims_anothers_endpoint_is_not_believed() {
    let mut hosts = Hosts::start();
    let mut victim = Peer::start(hosts.lab(0), &Hosts::endpoint(0, "blue"), &SHORT);
    let mut friend = Peer::start(hosts.lab(1), &Hosts::endpoint(1, "blue"), &SHORT);
    Peer::connect(&mut victim, &mut friend);
    victim.ask("fill 1 4096");
    // A third host whose operator says that the friend's address is there.
    hosts.add(&json!({ "hosts": [Hosts::description(0)] }));
    let mut impostor = Peer::start(hosts.lab(2), &Hosts::endpoint(1, "blue"), &SHORT);
    let secret = victim.local().to_owned();
    impostor.connect_to(&secret);
    impostor.ask("fill 2 4096");
    impostor.ask("post write 4096");
    assert_eq!(impostor.completion().0, "transport retry counter exceeded");
    assert_eq!(victim.ask("check 1 4096"), "match");
    // It knows the mesh's secret, but the victim's host does not know it.
    assert!(hosts.lab(2).metric("rdmesh_tunnel_unsent_total") > 0.0, "it was tried");
    assert!(hosts.lab(0).metric("rdmesh_tunnel_stranger_packets_total") > 0.0);
    friend.ask("post read 4096");
    assert_eq!(friend.completion().0, "success");
}

#[test]
fn a_capture_shows_requests_and_answers() {
    let hosts = Hosts::start();
    let program = |address: &str| format!("exec ib_write_bw -F -p 18640 -s 8192 -D 4 {address}");
    let (server, client) = (program(""), program(&Hosts::ip(0)));
    let mut server = hosts.lab(0).start_in(&Hosts::endpoint(0, "blue"), &["sh", "-c", &server]);
    server.wait_listening(18640);
    let client = hosts.lab(1).start_in(&Hosts::endpoint(1, "blue"), &["sh", "-c", &client]);
    until(LIMIT, "the client sends", || (hosts.lab(1).messages() > 0).then_some(()));
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = file.path().display().to_string();
    hosts.lab(1).command(&["capture", "e", "--net", "blue", "--seconds", "0.5", "-w", &path]).ok();
    let opcodes = opcodes(&std::fs::read(file.path()).expect("the file is ours"));
    const WRITE_MIDDLE: u8 = 7;
    const SELECTIVE_ACKNOWLEDGE: u8 = 0xdc;
    assert!(opcodes.contains(&WRITE_MIDDLE) && opcodes.contains(&SELECTIVE_ACKNOWLEDGE), "{opcodes:x?}");
    client.finish(LIMIT).ok();
    server.finish(LIMIT).ok();
}

/// The opcodes in a pcap file of IPv4 packets, each of which must be RoCEv2.
fn opcodes(file: &[u8]) -> std::collections::BTreeSet<u8> {
    let (head, mut rest) = file.split_at(24);
    assert_eq!(
        (&head[..4], &head[20..]),
        (&[0x4d, 0x3c, 0xb2, 0xa1][..], &[101, 0, 0, 0][..]),
        "pcap of raw IP packets"
    );
    let mut opcodes = std::collections::BTreeSet::new();
    while let Some((record, bytes)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(record[8..12].try_into().expect("four bytes")) as usize;
        let (packet, after) = bytes.split_at(len);
        assert_eq!((packet[0], packet[9], &packet[22..24]), (0x45, 17, &4791u16.to_be_bytes()[..]));
        opcodes.insert(packet[28]);
        rest = after;
    }
    opcodes
}
