//! Selective retransmission between the routers of two hosts: what a loss costs, and routers that cannot do it.

use rdmesh_tests::{Hosts, Options, Peer};
use serde_json::Value;

/// Timeout 2^14 * 4.096 us = 67 ms, seven retries: losses are made good.
const MANY_RETRIES: [&str; 3] = ["rc", "14", "7"];
/// Bytes of a message: 64 packets on an Ethernet.
const MESSAGE: u64 = 65_536;
const MESSAGES: u64 = 40;

/// One end on each host, on network `blue`.
fn connected(hosts: &Hosts) -> (Peer, Peer) {
    let start = |number| Peer::start(hosts.lab(number), &Hosts::endpoint(number, "blue"), &MANY_RETRIES);
    let (mut a, mut b) = (start(0), start(1));
    Peer::connect(&mut a, &mut b);
    (a, b)
}

/// The queue pair of the endpoint on network `blue` of a host.
fn queue_pair(hosts: &Hosts, number: usize) -> Value {
    let contexts = hosts.lab(number).api("/v1/contexts");
    contexts[0]["qps"][0].clone()
}

fn count(qp: &Value, name: &str) -> u64 {
    qp[name].as_u64().unwrap_or_else(|| panic!("no {name} in {qp}"))
}

/// Messages of each kind, with their data checked.
fn exchange(a: &mut Peer, b: &mut Peer, kind: &str) {
    for seed in 0..MESSAGES {
        let (from, to) = if kind == "read" { (&mut *b, &mut *a) } else { (&mut *a, &mut *b) };
        from.ask(&format!("fill {seed} {MESSAGE}"));
        if kind == "send" {
            to.ask("recv");
        }
        a.ask(&format!("post {kind} {MESSAGE}"));
        assert_eq!(a.completion().0, "success", "{kind} {seed}");
        if kind == "send" {
            assert_eq!(b.completion().0, "success", "receive {seed}");
        }
        let to = if kind == "read" { &mut *a } else { &mut *b };
        assert_eq!(to.ask(&format!("check {seed} {MESSAGE}")), "match", "{kind} {seed}");
    }
}

#[test]
fn of_a_lossy_network_only_what_is_lost_is_sent_again() {
    let hosts = Hosts::start();
    for (loss, most) in [(0, 0.01), (1, 0.05), (5, 0.15)] {
        hosts.set_faults(&format!("loss={loss}%,seed=4"));
        for kind in ["write", "send", "read"] {
            let (mut a, mut b) = connected(&hosts);
            exchange(&mut a, &mut b, kind);
            let (asking, answering) = (queue_pair(&hosts, 0), queue_pair(&hosts, 1));
            let packets = MESSAGES * MESSAGE / 1024;
            let again = count(&asking, "retransmitted") as f64 / packets as f64;
            eprintln!(
                "{loss} % loss, {kind}: {:.3} of the packets sent again; at the responder {} behind a gap, {} duplicates",
                again,
                count(&answering, "out_of_order"),
                count(&answering, "duplicates")
            );
            assert!(again <= most, "{loss} % loss, {kind}: {again} of {packets} packets are sent again: {asking}");
            assert!(loss == 0 || again > 0.0 || kind == "read", "nothing was lost: {asking}");
            a.quit();
            b.quit();
            (0..2).for_each(|number| hosts.lab(number).wait_until_empty());
        }
    }
}

#[test]
fn a_router_that_goes_back_works_with_one_that_does_not() {
    let older = Options { up: ["--loss-recovery", "go-back-n"].map(str::to_owned).to_vec(), ..Options::default() };
    for older_host in [0, 1] {
        let mut options = [Options::default(), Options::default()];
        options[older_host] = older.clone();
        let hosts = Hosts::start_each(options);
        hosts.set_faults("loss=2%,reorder=1%,duplicate=1%,seed=5");
        for kind in ["write", "send", "read"] {
            let (mut a, mut b) = connected(&hosts);
            exchange(&mut a, &mut b, kind);
            let again = count(&queue_pair(&hosts, 0), "retransmitted");
            assert!(kind != "write" || again > MESSAGES * MESSAGE / 1024 / 10, "only {again} packets sent again");
            a.quit();
            b.quit();
            (0..2).for_each(|number| hosts.lab(number).wait_until_empty());
        }
    }
}
