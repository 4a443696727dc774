//! Death of a peer: the right completion error at the survivor, in time, and reclamation of everything that the dead one held.

use rdmesh_tests::{Endpoint, Lab, Peer, until};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const PYTHON: &str = "/usr/bin/python3";

/// 2^16 * 4.096 us = 268 ms before the first retry, three retries.
const TIMEOUT: [&str; 3] = ["rc", "16", "3"];
const TIMEOUT_MS: u64 = 268;

fn peers(lab: &Lab) -> (Peer, Peer) {
    let mut a = Peer::start(lab, &Endpoint::at("a", "blue", "10.7.0.2"), &TIMEOUT);
    let mut b = Peer::start(lab, &Endpoint::at("b", "blue", "10.7.0.3"), &TIMEOUT);
    Peer::connect(&mut a, &mut b);
    (a, b)
}

#[test]
fn a_killed_peer_is_a_retry_error_at_the_writer() {
    for operation in ["write", "read"] {
        let lab = Lab::start();
        let (mut survivor, mut victim) = peers(&lab);
        assert_eq!(survivor.ask(&format!("flood {operation} 65536")), "flooding");
        victim.kill();
        let (status, milliseconds) = survivor.end_of_flood();
        assert_eq!(status, "transport retry counter exceeded", "{operation}");
        // IBA 11.6.6: a time-out is at least the value and at most four times it; the first try and three more.
        assert!(milliseconds < 4 * TIMEOUT_MS * 4 + 500, "{operation}: noticed after {milliseconds} ms");
        survivor.quit();
        lab.wait_until_empty();
    }
}

#[test]
fn a_killed_receiver_is_a_retry_error_at_the_sender() {
    let lab = Lab::start();
    let (mut survivor, mut victim) = peers(&lab);
    // No receive is posted: the sender waits for the receiver to get ready, and the receiver dies meanwhile.
    survivor.ask("post send 64");
    victim.kill();
    assert_eq!(survivor.completion().0, "transport retry counter exceeded");
    survivor.quit();
    lab.wait_until_empty();
}

#[test]
fn the_survivor_can_work_with_another_peer() {
    let lab = Lab::start();
    let (survivor, mut victim) = peers(&lab);
    victim.kill();
    drop((survivor, victim));
    let (mut a, b) = peers(&lab);
    assert_eq!(a.ask("trickle write 4096 1000"), "done");
    a.quit();
    b.quit();
    lab.wait_until_empty();
}

#[test]
fn what_a_dead_process_held_is_counted_back() {
    let lab = Lab::start();
    let before = lab.metric("rdmesh_objects_reclaimed_total");
    let (mut survivor, mut victim) = peers(&lab);
    assert_eq!(survivor.ask("flood write 4096"), "flooding");
    victim.kill();
    survivor.end_of_flood();
    survivor.quit();
    lab.wait_until_empty();
    // PD, CQ, MR and QP of the victim; the survivor destroyed its own.
    assert_eq!(lab.metric("rdmesh_objects_reclaimed_total") - before, 4.0);
}

#[test]
fn a_killed_router_is_an_error_and_not_a_hang() {
    let lab = Lab::start();
    let (mut a, b) = peers(&lab);
    rdmesh_tests::system::kill(lab.router_pid());
    // The program gets an answer in any case; a command over the lost session fails.
    a.ask("fill 1 64");
    drop((a, b));
    let up = lab.command(&["up"]);
    assert!(up.status.success(), "after a crash `rdmesh up` starts over:\n{}", up.text);
}

/// Bytes that TCP has still to send when a program ends go from its endpoint's namespace, which ends with it.
#[test]
fn what_an_ended_program_has_sent_by_tcp_arrives() {
    let lab = Lab::start();
    let giver = "import socket\n\
        listener = socket.create_server(('0.0.0.0', 7000))\n\
        stream = listener.accept()[0]\n\
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400000)\n\
        stream.sendall(b'x' * 200000)";
    // With little room, and none of it free before the other end's program has ended.
    let taker = "import socket, time\n\
        stream = socket.socket()\n\
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)\n\
        stream.connect(('10.7.0.2', 7000))\n\
        time.sleep(0.4)\n\
        stream.settimeout(20)\n\
        taken = 0\n\
        while piece := stream.recv(65536): taken += len(piece)\n\
        print(taken, 'bytes and an end')";
    let mut server = lab.start_in(&Endpoint::at("giver", "blue", "10.7.0.2"), &[PYTHON, "-c", giver]);
    server.wait_listening(7000);
    let client = lab.start_in(&Endpoint::at("taker", "blue", "10.7.0.3"), &[PYTHON, "-c", taker]);
    let output = client.finish(LIMIT).ok();
    assert!(output.text.contains("200000 bytes and an end"), "{}", output.text);
    server.finish(LIMIT).ok();
    until(LIMIT, "both endpoints are gone", || lab.api("/v1/endpoints").as_array()?.is_empty().then_some(()));
}
