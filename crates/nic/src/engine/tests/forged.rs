//! Tests of intact packets that no honest peer sends.

use super::world::*;
use crate::path::{Envelope, Transmits, flow};
use crate::timer::Time;
use crate::wire::{Aeth, Header, Op, Part, Reth, Service, Syndrome};
use rdmesh_verbs::*;
use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;

/// Number of the first packet of a connection.
const FIRST: Psn = Psn::new(0xff_fffe);

fn header(to: &Node, op: Op, psn: Psn) -> Header {
    Header { ack_request: true, ..Header::new(Service::Rc, op, to.qpn, psn) }
}

/// A packet between the hosts of two nodes.
fn packet(from: &Node, to: &Node, header: &Header, payload: &[u8]) -> Vec<u8> {
    let av = AddressVector { dgid: to.gid, ..AddressVector::default() };
    let peer = Envelope::on_host(World::host(to.engine), Vni(1), from.gid, &av, flow(from.qpn, to.qpn));
    let mut transmits = Transmits::new();
    let Ok(()) = peer.emit(&mut transmits, header, payload.len(), |bytes| {
        bytes.copy_from_slice(payload);
        Ok::<_, Infallible>(())
    });
    transmits.bytes(&transmits.trains()[0]).to_vec()
}

fn receive(world: &mut World, from: &Node, to: &Node, header: &Header, payload: &[u8]) {
    world.receive(to.engine, from.engine, &packet(from, to, header, payload));
}

fn write(b: &Node, part: Part, len: u32) -> Op {
    Op::Write { part, reth: Some(Reth { addr: BASE, rkey: b.key, len }), imm: None }
}

fn read(b: &Node, at: u64, len: u32) -> Op {
    Op::ReadRequest(Reth { addr: BASE + at, rkey: b.key, len })
}

/// Loses all datagrams to host 0 and counts them.
fn count_answers(world: &mut World) -> Rc<Cell<usize>> {
    let answers = Rc::new(Cell::new(0));
    let count = answers.clone();
    world.lose = Box::new(move |to, _| {
        count.set(count.get() + usize::from(to == 0));
        to == 0
    });
    answers
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_is_ignored() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    world.lose = Box::new(|_, _| true);
    let op = SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None };
    world.post(&a, wr(1, op, &[a.sge(0, 8)]));
    world.settle();
    let ack = Op::Acknowledge(Aeth { syndrome: Syndrome::ACK, msn: 1 });
    for ahead in [1, 2, 1000] {
        receive(&mut world, &b, &a, &header(&a, ack, FIRST.add(ahead)), &[]);
        world.settle();
        assert_eq!(a.done(), None, "{ahead} ahead");
    }
    receive(&mut world, &b, &a, &header(&a, ack, FIRST), &[]);
    world.settle();
    assert_eq!(a.done(), Some((1, WcStatus::Success)));
}

#[test]
fn a_read_response_of_the_wrong_length_ends_the_read() {
    for len in [0, 7, 9, 1024] {
        let mut world = World::two_hosts();
        let (a, b) = world.pair(Setup::default());
        world.lose = Box::new(|_, _| true);
        world.post(&a, wr(1, SendOp::Read { remote_addr: BASE, rkey: b.key }, &[a.sge(0, 8)]));
        world.settle();
        let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 1 });
        let response = Op::ReadResponse { part: Part::Only, aeth };
        receive(&mut world, &b, &a, &header(&a, response, FIRST), &vec![9; len]);
        world.settle();
        assert_eq!(a.done(), Some((1, WcStatus::BadResponse)), "{len} bytes");
        assert_eq!(a.memory.get(0, 16), [0; 16]);
    }
}

#[test]
fn a_part_of_the_wrong_length_is_refused() {
    for (part, len) in [(Part::Only, 1028), (Part::First, 1020), (Part::First, 1028)] {
        let mut world = World::two_hosts();
        let (a, b) = world.pair(Setup::default());
        b.post_recv(1, &[b.sge(0, 4096)]);
        let op = Op::Send { part, imm: None, invalidate: None };
        receive(&mut world, &a, &b, &header(&b, op, FIRST), &vec![9; len]);
        world.settle();
        assert_eq!((world.state(&b), b.memory.get(0, 1)), (QpState::Error, vec![0]), "{part:?} of {len} bytes");
    }
}

#[test]
fn a_write_of_another_length_than_it_says_is_refused() {
    for (says, has) in [(16, 8), (4, 8), (0, 8)] {
        let mut world = World::two_hosts();
        let (a, b) = world.pair(Setup::default());
        receive(&mut world, &a, &b, &header(&b, write(&b, Part::Only, says), FIRST), &vec![9; has]);
        world.settle();
        assert_eq!((world.state(&b), b.memory.get(0, 8)), (QpState::Error, vec![0; 8]), "says {says}, has {has}");
    }
}

#[test]
fn more_reads_than_were_agreed_on_are_refused() {
    for (reads, state) in [(4, QpState::Rts), (5, QpState::Error)] {
        let mut world = World::two_hosts();
        let (a, b) = world.pair(Setup::default());
        for i in 0..reads {
            receive(&mut world, &a, &b, &header(&b, read(&b, 0, 8), FIRST.add(i)), &[]);
        }
        assert_eq!(world.state(&b), state, "{reads} READs");
    }
}

#[test]
fn reads_and_atomics_are_refused_where_none_were_agreed_on() {
    let add = |b: &Node| Op::FetchAdd { addr: BASE, rkey: b.key, add: 1 };
    for op in [|b: &Node| read(b, 0, 8), add] {
        let mut world = World::two_hosts();
        let (a, b) = (world.node(0, 1, Setup::default()), world.node(1, 2, Setup::default()));
        world.connect_with(&b, &a, |attr| attr.max_dest_rd_atomic = 0);
        receive(&mut world, &a, &b, &header(&b, op(&b), FIRST), &[]);
        assert_eq!((world.state(&b), b.memory.get(0, 8)), (QpState::Error, vec![0; 8]));
    }
}

#[test]
fn a_repeated_read_of_another_range_is_not_answered() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    let answers = count_answers(&mut world);
    let mut ask = |psn, op| {
        let before = answers.get();
        receive(&mut world, &a, &b, &header(&b, op, psn), &[]);
        world.settle();
        answers.get() - before
    };
    assert_eq!(ask(FIRST, read(&b, 0, 2000)), 2);
    assert_eq!(ask(FIRST, read(&b, 0, 2000)), 2);
    assert_eq!(ask(FIRST.add(1), read(&b, 1024, 976)), 1);
    assert_eq!(ask(FIRST, read(&b, 0, 2001)), 0, "longer");
    assert_eq!(ask(FIRST, read(&b, 8, 8)), 0, "elsewhere");
    assert_eq!(ask(FIRST, Op::ReadRequest(Reth { addr: BASE, rkey: Key(1), len: 8 })), 0, "by another key");
    assert_eq!(ask(FIRST, Op::FetchAdd { addr: BASE, rkey: b.key, add: 1 }), 0, "another operation");
    assert_eq!(b.memory.get(0, 8), [0; 8]);
}

#[test]
fn a_gap_is_reported_at_once_and_once() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    let answers = count_answers(&mut world);
    for ahead in 1..4 {
        receive(&mut world, &a, &b, &header(&b, write(&b, Part::Only, 4), FIRST.add(ahead)), &[9; 4]);
        world.settle();
        assert_eq!(answers.get(), 1);
    }
    assert_eq!((world.state(&b), b.memory.get(0, 4)), (QpState::Rts, vec![0; 4]));
}

#[test]
fn a_number_without_a_queue_pair_acknowledges_only_what_was_executed() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    receive(&mut world, &a, &b, &header(&b, write(&b, Part::Only, 4), FIRST), &[9; 4]);
    world.settle();
    world.engines[1].device(b.context).unwrap().destroy_qp(b.qp).unwrap();
    for (ahead, is_answered) in [(1, false), (0, true)] {
        receive(&mut world, &a, &b, &header(&b, write(&b, Part::Only, 4), FIRST.add(ahead)), &[9; 4]);
        assert_eq!(world.engines[1].has_final_packets(), is_answered, "{ahead} ahead");
    }
}

#[test]
fn another_partition_is_not_heard() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    for (pkey, written) in [(0x8001, 0), (0x7ffe, 0), (0x7fff, 9)] {
        let header = Header { pkey, ..header(&b, write(&b, Part::Only, 4), FIRST) };
        receive(&mut world, &a, &b, &header, &[9; 4]);
        world.settle();
        assert_eq!(b.memory.get(0, 4), [written; 4], "{pkey:#x}");
    }
}

#[test]
fn a_key_that_was_given_back_opens_nothing_of_its_successor() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    let memory = Bytes::new(LEN);
    let engine = &mut world.engines[1];
    engine.device(b.context).unwrap().context_mut().dereg_mr(b.mr).unwrap();
    let (_, key) =
        engine.device(b.context).unwrap().context_mut().reg_mr(b.pd, BASE, LEN as u64, ALL, memory.clone()).unwrap();
    assert_eq!(key.index(), b.key.index(), "its place is used again");
    receive(&mut world, &a, &b, &header(&b, write(&b, Part::Only, 4), FIRST), &[9; 4]);
    world.run_until(Time(1_000_000));
    assert_eq!((world.state(&b), memory.get(0, 4)), (QpState::Error, vec![0; 4]));
}
