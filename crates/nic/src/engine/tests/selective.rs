//! Tests of selective retransmission between two engines: what is sent again, and what a peer cannot make of it.

use super::world::*;
use crate::path::{Envelope, Transmits, flow};
use crate::timer::Time;
use crate::wire::{Header, Op, SelectiveAck, Service, geneve, ip};
use rdmesh_verbs::*;
use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

const FIRST: Psn = Psn::new(0xff_fffe);

/// Requests to host 1, by PSN behind the first; those for which `loses` is true of PSN and count so far are lost.
fn record(world: &mut World, loses: impl Fn(u32, usize) -> bool + 'static) -> Rc<RefCell<Vec<u32>>> {
    let log = Rc::new(RefCell::new(Vec::new()));
    let seen = log.clone();
    world.lose = Box::new(move |to, bytes| {
        let (_, inner) = geneve::decode(bytes).expect("the tunnel's header");
        let (_, udp) = ip::IpUdp::decode(inner).expect("an IP header");
        let (header, _) = Header::decode(udp).expect("a packet");
        if to != 1 {
            return false;
        }
        let psn = header.psn.after(FIRST);
        let before = seen.borrow().iter().filter(|at| **at == psn).count();
        seen.borrow_mut().push(psn);
        loses(psn, before)
    });
    log
}

fn retransmitted(world: &mut World, node: &Node) -> u64 {
    world.engines[node.engine].device(node.context).unwrap().query_qp(node.qp).unwrap().counters.retransmitted
}

fn receive_ack(world: &mut World, from: &Node, to: &Node, psn: Psn, payload: &[u8]) {
    let header = Header { takes_selective: true, ..Header::new(Service::Rc, Op::SelectiveAcknowledge, to.qpn, psn) };
    let av = AddressVector { dgid: to.gid, ..AddressVector::default() };
    let peer = Envelope::on_host(World::host(to.engine), Vni(1), from.gid, &av, flow(from.qpn, to.qpn));
    let mut transmits = Transmits::new();
    let Ok(()) = peer.emit(&mut transmits, &header, payload.len(), |bytes| {
        bytes.copy_from_slice(payload);
        Ok::<_, Infallible>(())
    });
    let bytes = transmits.bytes(&transmits.trains()[0]).to_vec();
    world.receive(to.engine, from.engine, &bytes);
}

fn ack(marks: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut ack = SelectiveAck::new(0, 0);
    marks.into_iter().for_each(|mark| ack.mark(mark));
    let mut bytes = vec![0; ack.len()];
    ack.encode(&mut bytes);
    bytes
}

fn write(b: &Node, a: &Node, len: u32) -> SendWr {
    wr(1, SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None }, &[a.sge(0, len)])
}

#[test]
fn of_a_long_write_the_lost_packets_alone_are_sent_again() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    // Packet 5 twice: its retransmission is lost too.
    let log = record(&mut world, |psn, before| matches!((psn, before), (3, 0) | (5, 0 | 1) | (40, 0)));
    let data: Vec<u8> = (0..60 * 1024).map(|i| (i / 7) as u8).collect();
    a.memory.put(0, &data);
    world.post(&a, write(&b, &a, 60 * 1024));
    world.run_until(Time(50_000_000));
    assert_eq!((a.done(), b.memory.get(0, data.len())), (Some((1, WcStatus::Success)), data));
    let log = log.borrow();
    let often: Vec<_> = (0..60).map(|psn| (psn, log.iter().filter(|at| **at == psn).count())).collect();
    let again: Vec<_> = often.iter().filter(|(_, count)| *count != 1).collect();
    assert_eq!(again, [&(3, 2), &(5, 3), &(40, 2)]);
    assert_eq!(retransmitted(&mut world, &a), 4);
}

#[test]
fn of_a_long_read_the_missing_packets_alone_are_asked_for_again() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    let lost = Rc::new(RefCell::new(vec![4u32, 5, 17]));
    let answers = Rc::new(RefCell::new(0));
    let count = answers.clone();
    world.lose = Box::new(move |to, bytes| {
        let (_, inner) = geneve::decode(bytes).expect("the tunnel's header");
        let (header, _) = Header::decode(ip::IpUdp::decode(inner).expect("an IP header").1).expect("a packet");
        if to != 0 || !matches!(header.op, Op::ReadResponse { .. }) {
            return false;
        }
        *count.borrow_mut() += 1;
        let psn = header.psn.after(FIRST);
        let found = lost.borrow().iter().position(|at| *at == psn);
        found.map(|at| lost.borrow_mut().remove(at)).is_some()
    });
    let data: Vec<u8> = (0..30 * 1024).map(|i| (i / 5) as u8).collect();
    b.memory.put(0, &data);
    world.post(&a, wr(1, SendOp::Read { remote_addr: BASE, rkey: b.key }, &[a.sge(0, 30 * 1024)]));
    world.run_until(Time(50_000_000));
    assert_eq!((a.done(), a.memory.get(0, data.len())), (Some((1, WcStatus::Success)), data));
    assert_eq!(*answers.borrow(), 33, "30 packets, and three again");
}

#[test]
fn a_message_waits_for_a_receive_request_without_an_rnr_nak() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    world.post(&a, wr(1, SendOp::Send { imm: None }, &[a.sge(0, 8)]));
    world.run_until(Time(300_000));
    assert_eq!((a.done(), b.done()), (None, None));
    b.post_recv(1, &[b.sge(0, 8)]);
    world.run_until(Time(500_000));
    assert_eq!((a.done(), b.done()), (Some((1, WcStatus::Success)), Some((1, WcStatus::Success))));
    let info = world.engines[b.engine].device(b.context).unwrap().query_qp(b.qp).unwrap();
    assert_eq!(info.counters.rnr_naks, 0);
}

#[test]
fn a_selective_acknowledgement_of_what_was_not_sent_is_ignored() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    world.lose = Box::new(|_, _| true);
    world.post(&a, write(&b, &a, 2048));
    world.settle();
    for ahead in [3, 1000, 0x7f_ffff] {
        receive_ack(&mut world, &b, &a, FIRST.add(ahead), &ack([]));
    }
    // What is marked behind the newest packet does no harm.
    receive_ack(&mut world, &b, &a, FIRST, &ack([2, 3, 500, 1023]));
    receive_ack(&mut world, &b, &a, FIRST, &[0; 7]);
    receive_ack(&mut world, &b, &a, FIRST, &[0xff; 400]);
    world.settle();
    assert_eq!((a.poll(), world.state(&a)), (None, QpState::Rts));
    receive_ack(&mut world, &b, &a, FIRST.add(2), &ack([]));
    world.settle();
    assert_eq!(a.done(), Some((1, WcStatus::Success)));
}

#[test]
fn a_peer_that_takes_back_what_it_has_acknowledged_is_given_up() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    world.lose = Box::new(|_, _| true);
    world.post(&a, write(&b, &a, 10 * 1024));
    world.settle();
    // All but the first, which never comes: no more is sent than a packet a probe, until the retries are used up.
    receive_ack(&mut world, &b, &a, FIRST, &ack(1..10));
    world.run_until(Time(10_000_000_000));
    assert_eq!(a.done(), Some((1, WcStatus::RetryExceeded)));
    assert!(retransmitted(&mut world, &a) < 60, "{}", retransmitted(&mut world, &a));
}
