//! Tests between two hosts: lost, repeated, forged and malformed packets.

use super::world::*;
use crate::CaptureFilter;
use crate::path::Path;
use crate::path::{Datagram, Origin};
use crate::timer::Time;
use crate::wire::{Header, IpUdp, Op, Service, Syndrome, geneve, icrc};
use proptest::prelude::*;
use rdmesh_verbs::*;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

type Log = Rc<RefCell<Vec<(usize, Vec<u8>)>>>;

/// Keeps a copy of every datagram, with where it went.
fn record(world: &mut World) -> Log {
    let log = Log::default();
    let copy = log.clone();
    world.lose = Box::new(move |to, bytes| {
        copy.borrow_mut().push((to, bytes.to_vec()));
        false
    });
    log
}

fn open(bytes: &[u8]) -> (Vni, IpUdp, Header, Vec<u8>) {
    let (vni, inner) = geneve::decode(bytes).unwrap();
    let (ip, udp) = IpUdp::decode(inner).unwrap();
    assert!(icrc::check(&ip, udp));
    let (header, payload) = Header::decode(udp).unwrap();
    (vni, ip, header, payload.to_vec())
}

fn write(b: &Node, at: u64) -> SendOp {
    SendOp::Write { remote_addr: BASE + at, rkey: b.key, imm: None }
}

fn counters(world: &mut World, node: &Node) -> crate::QpCounters {
    world.engines[node.engine].device(node.context).unwrap().query_qp(node.qp).unwrap().counters
}

#[test]
fn a_long_write_is_packets_of_the_path_mtu() {
    let mut world = World::two_hosts();
    let log = record(&mut world);
    let (a, b) = world.pair(Setup::default());
    world.post(&a, wr(1, write(&b, 0), &[a.sge(0, 2500)]));
    world.settle();
    assert_eq!(a.done(), Some((1, WcStatus::Success)));
    let log = log.borrow();
    let sent: Vec<_> = log.iter().map(|(_, bytes)| open(bytes)).collect();
    assert!(sent.iter().all(|(vni, ..)| *vni == Vni(1)));
    assert!(sent.iter().all(|(_, ip, ..)| [ip.source, ip.dest].contains(&a.gid)));
    let lens: Vec<_> = sent.iter().map(|(.., header, payload)| (header.psn.value(), payload.len())).collect();
    assert_eq!(lens, [(0xff_fffe, 1024), (0xff_ffff, 1024), (0, 452), (1, 8)]);
    assert_eq!(sent[3].2.op, Op::SelectiveAcknowledge);
    let info = world.engines[0].device(a.context).unwrap().query_qp(a.qp).unwrap();
    assert_eq!((info.path, info.unacked_psn), (Some(Path::Host(World::host(1))), Psn::new(1)));
}

#[test]
fn one_acknowledgement_stands_for_a_batch() {
    let mut world = World::two_hosts();
    let log = record(&mut world);
    let (a, b) = world.pair(Setup::default());
    for i in 0..20 {
        world.post(&a, wr(i, write(&b, i * 8), &[a.sge(0, 8)]));
    }
    world.settle();
    assert_eq!(std::iter::from_fn(|| a.done()).count(), 20);
    assert_eq!(log.borrow().iter().filter(|(to, _)| *to == 0).count(), 1);
}

#[test]
fn what_is_only_late_is_not_sent_again() {
    const LEN: u32 = 400_000;
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    let waiting = Rc::new(RefCell::new(VecDeque::new()));
    let queue = waiting.clone();
    world.lose = Box::new(move |to, bytes| {
        queue.borrow_mut().extend((to == 1).then(|| bytes.to_vec()));
        to == 1
    });
    world.post(&a, wr(1, write(&b, 0), &[a.sge(0, LEN)]));
    // Longer than the first probe waits, and shorter than the second.
    world.run_until(Time(8_000_000));
    let mut sent = 0;
    loop {
        let Some(bytes) = waiting.borrow_mut().pop_front() else { break };
        sent += 1;
        world.receive(1, 0, &bytes);
        world.settle();
    }
    assert_eq!(a.done(), Some((1, WcStatus::Success)));
    assert_eq!(sent, LEN.div_ceil(1024) + 1, "each once, but for the probe");
}

#[test]
fn any_one_loss_is_made_good() {
    for lost in 0..16 {
        let mut world = World::two_hosts();
        let (a, b) = world.pair(Setup::default());
        let mut n = 0;
        world.lose = Box::new(move |_, _| {
            n += 1;
            n == lost + 1
        });
        b.memory.put(8, &7u64.to_ne_bytes());
        b.post_recv(9, &[b.sge(3000, 3000)]);
        a.memory.put(0, &[1; 2500]);
        let add = SendOp::FetchAdd { remote_addr: BASE + 8, rkey: b.key, add: 5 };
        let read = SendOp::Read { remote_addr: BASE, rkey: b.key };
        world.post(&a, wr(1, SendOp::Send { imm: Some(1) }, &[a.sge(0, 2500)]));
        world.post(&a, wr(2, add, &[a.sge(5000, 8)]));
        world.post(&a, wr(3, read, &[a.sge(6000, 3000)]));
        world.post(&a, wr(4, write(&b, 6000), &[a.sge(0, 2500)]));
        world.run_until(Time(1_000_000_000));
        let done: Vec<_> = std::iter::from_fn(|| a.done()).collect();
        assert_eq!(done, (1..5).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>(), "datagram {lost} lost");
        assert_eq!(b.poll().map(|wc| (wc.wr_id, wc.byte_len)), Some((9, 2500)));
        assert!(b.poll().is_none());
        assert_eq!(
            (a.memory.get(5000, 8), b.memory.get(8, 8)),
            (7u64.to_ne_bytes().into(), 12u64.to_ne_bytes().into())
        );
        assert_eq!(a.memory.get(6008, 8), 12u64.to_ne_bytes());
        assert_eq!([b.memory.get(3000, 2500), b.memory.get(6000, 2500)], [vec![1; 2500], vec![1; 2500]]);
    }
}

/// The ways in which a queue pair may end.
const ENDS: [fn(&mut World, &Node); 3] = [
    |world, b| drop(world.engines[b.engine].device(b.context).unwrap().destroy_qp(b.qp).unwrap()),
    |world, b| drop(world.engines[b.engine].close(b.context)),
    |world, b| world.modify_state(b, QpState::Error),
];

#[test]
fn what_had_arrived_is_acknowledged_even_when_its_receiver_has_gone() {
    for end in ENDS {
        let mut world = World::two_hosts();
        let (a, b) = world.pair(Setup::default());
        // Nothing that the receiver says arrives.
        world.lose = Box::new(|to, _| to == 0);
        b.post_recv(9, &[b.sge(3000, 3000)]);
        world.post(&a, wr(1, SendOp::Send { imm: None }, &[a.sge(0, 2500)]));
        world.settle();
        assert_eq!((a.done(), b.done()), (None, Some((9, WcStatus::Success))));
        end(&mut world, &b);
        world.lose = Box::new(|_, _| false);
        world.run_until(Time(world.now.0 + 1_000_000_000));
        assert_eq!(a.done(), Some((1, WcStatus::Success)));
        // A later message is neither executed nor answered.
        world.post(&a, wr(2, SendOp::Send { imm: None }, &[]));
        world.run_until(Time(world.now.0 + 2_000_000_000));
        assert_eq!(a.done(), Some((2, WcStatus::RetryExceeded)));
    }
}

#[test]
fn an_acknowledgement_that_is_due_leaves_after_its_queue_pair() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    b.post_recv(9, &[]);
    let packet = only_packet(&mut world, &a);
    world.receive(1, 0, &packet);
    world.engines[1].device(b.context).unwrap().destroy_qp(b.qp).unwrap();
    assert!(world.engines[1].has_final_packets());
    world.settle();
    assert_eq!(a.done(), Some((1, WcStatus::Success)));
    assert!(!world.engines[1].has_final_packets());
}

#[test]
fn a_number_without_a_queue_pair_answers_its_peer_alone() {
    let mut world = World::hosts(3, 1);
    let (a, b) = (world.node(0, 1, Setup::default()), world.node(1, 2, Setup::default()));
    world.connect(&a, &b);
    world.connect(&b, &a);
    b.post_recv(9, &[]);
    let packet = only_packet(&mut world, &a);
    world.receive(1, 0, &packet);
    world.settle();
    world.engines[1].device(b.context).unwrap().destroy_qp(b.qp).unwrap();
    let mut broken = packet.clone();
    *broken.last_mut().unwrap() ^= 1;
    let is_answered = |world: &mut World, from, bytes: &[u8]| {
        world.receive(1, from, bytes);
        let is_answered = world.engines[1].has_final_packets();
        world.settle();
        is_answered
    };
    assert!(!is_answered(&mut world, 2, &packet), "from another host");
    assert!(!is_answered(&mut world, 0, &broken), "broken on the way");
    assert!(is_answered(&mut world, 0, &packet));
    // Numbers rest; then a queue pair that has this one answers for itself.
    let next = loop {
        let next = world.node(1, 3, Setup::default());
        if next.qpn == b.qpn {
            break next;
        }
        world.engines[1].close(next.context);
    };
    assert!(!is_answered(&mut world, 0, &packet), "another's number");
    world.engines[1].device(next.context).unwrap().destroy_qp(next.qp).unwrap();
    assert!(!is_answered(&mut world, 0, &packet), "one that was never connected");
    assert_eq!(world.engines[1].wire_counters().unknown_qp, 4);
}

#[test]
fn what_comes_behind_a_repeated_message_does_not_silence_its_acknowledgement() {
    for end in ENDS {
        let mut world = World::two_hosts();
        let (a, b) = world.pair(Setup::default());
        b.post_recv(9, &[]);
        let first = only_packet(&mut world, &a);
        let second = only_packet(&mut world, &a);
        world.lose = Box::new(|to, _| to == 0);
        world.receive(1, 0, &first);
        world.settle();
        end(&mut world, &b);
        world.lose = Box::new(|_, _| false);
        world.receive(1, 0, &first);
        world.receive(1, 0, &second);
        world.settle();
        assert_eq!((a.done(), a.done()), (Some((1, WcStatus::Success)), None));
    }
}

#[test]
fn a_last_word_is_not_repeated_for_ever() {
    for end in ENDS {
        let mut world = World::two_hosts();
        let (a, b) = world.pair(Setup::default());
        b.post_recv(9, &[]);
        let packet = only_packet(&mut world, &a);
        world.receive(1, 0, &packet);
        world.settle();
        end(&mut world, &b);
        let before = world.datagrams;
        for _ in 0..1000 {
            world.receive(1, 0, &packet);
            world.settle();
        }
        assert_eq!(world.datagrams - before, 32);
    }
}

/// A message of one packet from `a`, which does not arrive.
fn only_packet(world: &mut World, a: &Node) -> Vec<u8> {
    let packet: Rc<RefCell<Vec<u8>>> = Rc::default();
    let copy = packet.clone();
    world.lose = Box::new(move |_, bytes| {
        *copy.borrow_mut() = bytes.to_vec();
        true
    });
    world.post(a, wr(1, SendOp::Send { imm: None }, &[]));
    world.settle();
    world.lose = Box::new(|_, _| false);
    packet.take()
}

#[test]
fn silence_ends_in_an_error_whatever_was_sent() {
    // Whole turns and windows among them.
    for packets in [1, 63, 64, 65, 127, 128, 129, 300] {
        let mut world = World::two_hosts();
        world.lose = Box::new(|_, _| true);
        let (a, b) = world.pair(Setup::default());
        world.post(&a, wr(1, write(&b, 0), &[a.sge(0, packets * 1024)]));
        world.run_until(Time(2_000_000_000));
        assert_eq!(a.done(), Some((1, WcStatus::RetryExceeded)), "{packets} packets");
        assert_eq!(counters(&mut world, &a).retries, 3);
    }
}

#[test]
fn what_is_answered_gives_the_retries_back() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    for id in 1..5 {
        world.lose = Box::new(|_, _| true);
        world.post(&a, wr(id, write(&b, 0), &[a.sge(0, 8)]));
        let before = counters(&mut world, &a).retries;
        while counters(&mut world, &a).retries == before {
            world.run_until(Time(world.now.0 + 1_000_000));
        }
        world.lose = Box::new(|_, _| false);
        world.run_until(Time(world.now.0 + 1_000_000_000));
        assert_eq!(a.done(), Some((id, WcStatus::Success)));
    }
}

#[test]
fn what_comes_before_a_refusal_is_answered_all_the_same() {
    for lost in [None, Some(2), Some(3), Some(4)] {
        let mut world = World::two_hosts();
        let (a, b) = world.pair(Setup::default());
        let mut n = 0;
        world.lose = Box::new(move |_, _| {
            n += 1;
            Some(n) == lost
        });
        b.memory.put(0, &[3; 8]);
        b.post_recv(1, &[]);
        let read = SendOp::Read { remote_addr: BASE, rkey: b.key };
        let bad = SendOp::Write { remote_addr: 0, rkey: b.key, imm: None };
        world.post(&a, wr(1, read, &[a.sge(0, 8)]));
        world.post(&a, wr(2, SendOp::Send { imm: None }, &[]));
        world.post(&a, wr(3, bad, &[a.sge(0, 8)]));
        world.run_until(Time(1_000_000_000));
        let done: Vec<_> = std::iter::from_fn(|| a.done()).collect();
        let expected = [WcStatus::Success, WcStatus::Success, WcStatus::RemoteAccessError];
        assert_eq!(done, expected.iter().zip(1..).map(|(s, id)| (id, *s)).collect::<Vec<_>>(), "{lost:?} lost");
        assert_eq!(a.memory.get(0, 8), [3; 8]);
    }
}

#[test]
fn nothing_is_sent_after_a_failure_in_the_same_turn() {
    let mut world = World::two_hosts();
    let log = record(&mut world);
    let (a, b) = world.pair(Setup::default());
    let bind = SendOp::BindMw { mw: Key(1), new_key: Key(2), mr: a.key, addr: BASE, length: 8, access: ALL };
    world.post(&a, wr(0, bind, &[]));
    for id in 1..400 {
        world.post(&a, wr(id, write(&b, 0), &[a.sge(0, 8)]));
    }
    world.run_until(Time(1_000_000_000));
    assert_eq!(a.done(), Some((0, WcStatus::MwBindError)));
    assert!(std::iter::from_fn(|| a.done()).all(|(_, status)| status == WcStatus::FlushError));
    assert!(log.borrow().is_empty(), "{} datagrams", log.borrow().len());
}

#[test]
fn an_unreliable_connection_in_error_takes_nothing() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup { qp_type: QpType::Uc, ..Setup::default() });
    a.memory.put(0, &[7; 8]);
    world.modify_state(&b, QpState::Error);
    world.post(&a, wr(1, write(&b, 0), &[a.sge(0, 8)]));
    world.run_until(Time(1_000_000_000));
    assert_eq!((a.done(), b.memory.get(0, 8)), (Some((1, WcStatus::Success)), vec![0; 8]));
}

#[test]
fn a_sender_without_retransmission_sends_no_more_than_arrives() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup { qp_type: QpType::Uc, ..Setup::default() });
    world.lose = Box::new(|to, _| to == 1);
    world.post(&a, wr(1, write(&b, 0), &[a.sge(0, 400_000)]));
    world.settle();
    assert_eq!((a.poll(), world.datagrams), (None, 128));
    // Packets that are not acknowledged are lost, and are not repeated.
    world.run_until(Time(100_000_000));
    assert_eq!((a.done(), world.datagrams), (Some((1, WcStatus::Success)), 391));
}

#[test]
fn local_requests_without_end_leave_the_others_their_turn() {
    let mut world = World::two_hosts();
    let (a, _b) = world.pair(Setup { signal_all: false, ..Setup::default() });
    let (_, window) =
        world.engines[0].device(a.context).unwrap().context_mut().alloc_mw(a.pd, crate::MwType::Type1).unwrap();
    let key = |i: u32| Key::from_parts(window.index(), window.tag().wrapping_add(i as u8));
    for i in 0..1000 {
        let (mw, new_key) = (key(i), key(i + 1));
        let op = SendOp::BindMw { mw, new_key, mr: a.key, addr: BASE, length: 8, access: Access::empty() };
        world.post(&a, SendWr { flags: SendFlags::empty(), ..wr(0, op, &[]) });
    }
    let (other, _d) = world.pair(Setup::default());
    world.post(&other, wr(1, SendOp::Send { imm: None }, &[]));
    let mut to = crate::Transmits::new();
    world.engines[0].poll(world.now);
    assert!(world.engines[0].poll_transmit(world.now, &mut to), "there are more");
    assert_eq!((world.state(&a), to.count()), (QpState::Rts, 1), "the other's packet leaves first");
}

#[test]
fn duplicates_are_answered_again_and_executed_once() {
    let mut world = World::two_hosts();
    let log = record(&mut world);
    let (a, b) = world.pair(Setup::default());
    let add = SendOp::FetchAdd { remote_addr: BASE, rkey: b.key, add: 1 };
    b.post_recv(1, &[]);
    world.post(&a, wr(1, add, &[a.sge(0, 8)]));
    world.post(&a, wr(2, SendOp::Send { imm: None }, &[]));
    world.settle();
    let requests: Vec<_> = log.borrow().iter().filter(|(to, _)| *to == 1).map(|(_, bytes)| bytes.clone()).collect();
    let before = log.borrow().len();
    for bytes in requests.iter().cycle().take(1000) {
        world.receive(1, 0, bytes);
        world.settle();
    }
    let log = log.borrow();
    assert_eq!(b.memory.get(0, 8), 1u64.to_ne_bytes());
    assert_eq!((b.done(), b.poll()), (Some((1, WcStatus::Success)), None));
    assert_eq!(counters(&mut world, &b).duplicates, 1000);
    let longest = requests.iter().map(Vec::len).max();
    // Copies of an atomic are answered only where they are marked as sent again.
    assert_eq!(log.len() - before, 500, "one answer to each SEND");
    assert!(log[before..].iter().all(|(_, bytes)| Some(bytes.len()) <= longest));
}

#[test]
fn only_the_peers_host_network_and_address_are_heard() {
    let mut world = World::two_hosts();
    let log = record(&mut world);
    let (a, b) = world.pair(Setup::default());
    world.lose = {
        let (log, mut recording) = (log.clone(), world.lose);
        Box::new(move |to, bytes| recording(to, bytes) | !log.borrow().is_empty())
    };
    world.post(&a, wr(1, write(&b, 0), &[a.sge(0, 8)]));
    a.memory.put(0, &[9; 8]);
    world.settle();
    let bytes = log.borrow()[0].1.clone();
    let before = world.engines[1].wire_counters();
    let deliver = |world: &mut World, origin, bytes: &[u8]| {
        let datagram = Datagram { origin, traffic_class: 0, received: None, bytes };
        world.engines[1].handle_datagram(world.now, &datagram);
    };
    let peer = Origin::Host(World::host(0));
    deliver(&mut world, Origin::Host([192, 168, 0, 77].into()), &bytes);
    let mut other_network = bytes.clone();
    geneve::encode(Vni(2), false, &mut other_network[..geneve::LEN]);
    deliver(&mut world, peer, &other_network);
    let mut other_address = bytes.clone();
    let (_, mut ip, ..) = open(&bytes);
    ip.source = Gid::from_ip([10, 0, 0, 99].into());
    let udp_len = bytes.len() - geneve::LEN - ip.len();
    ip.encode(udp_len, &mut other_address[geneve::LEN..]);
    deliver(&mut world, peer, &other_address);
    let inside =
        Origin::External { id: crate::ExternalId(0), from: a.gid.ip(), from_port: ip.source_port, to: b.gid.ip() };
    deliver(&mut world, inside, &bytes[geneve::LEN + ip.len()..]);
    let after = world.engines[1].wire_counters();
    assert_eq!(after.wrong_source - before.wrong_source, 4);
    assert_eq!(b.memory.get(0, 8), [0; 8]);
    deliver(&mut world, peer, &bytes);
    assert_eq!(b.memory.get(0, 8), [9; 8]);
}

#[test]
fn marked_packets_make_the_sender_slow_down() {
    let mut world = World::two_hosts();
    let log = record(&mut world);
    let (a, b) = world.pair(Setup::default());
    world.post(&a, wr(1, write(&b, 0), &[a.sge(0, 8)]));
    world.settle();
    let bytes = log.borrow()[0].1.clone();
    let marked = Datagram { origin: Origin::Host(World::host(0)), traffic_class: 0b11, received: None, bytes: &bytes };
    for _ in 0..10 {
        world.engines[1].handle_datagram(world.now, &marked);
    }
    world.settle();
    assert_eq!((counters(&mut world, &b).cnps_sent, counters(&mut world, &a).cnps_received), (1, 1));
    let notified = log.borrow().iter().any(|(to, bytes)| *to == 0 && open(bytes).2.service == Service::Cnp);
    assert!(notified);
    // At less than its window each 100 µs the transfer takes time now.
    let start = world.now;
    world.post(&a, wr(2, write(&b, 0), &[a.sge(0, 400_000)]));
    world.settle();
    assert_eq!(a.done(), Some((1, WcStatus::Success)));
    assert!(a.poll().is_none());
    world.run_until(Time(start.0 + 20_000_000));
    assert_eq!(a.done(), Some((2, WcStatus::Success)));
}

#[test]
fn a_refusal_that_was_lost_is_repeated() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    let mut lost = 0;
    world.lose = Box::new(move |to, bytes| {
        let refused =
            to == 0 && matches!(open(bytes).2.op, Op::Acknowledge(aeth) if matches!(aeth.syndrome, Syndrome::Nak(_)));
        lost += usize::from(refused);
        refused && lost < 3
    });
    let bad = SendOp::Write { remote_addr: 0, rkey: b.key, imm: None };
    world.post(&a, wr(1, bad, &[a.sge(0, 8)]));
    world.run_until(Time(1_000_000_000));
    assert_eq!(a.done(), Some((1, WcStatus::RemoteAccessError)));
}

#[test]
fn captures_show_both_ways_and_both_paths() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        let filter = CaptureFilter { vni: Vni(1), gids: vec![b.gid], snap_len: 1 << 16 };
        let captures: Vec<_> = world.engines.iter_mut().map(|e| e.captures().start(filter.clone())).collect();
        let read = SendOp::Read { remote_addr: BASE, rkey: b.key };
        world.post(&a, wr(1, write(&b, 0), &[a.sge(0, 100)]));
        world.post(&a, wr(2, read, &[a.sge(0, 100)]));
        world.settle();
        let mut opcodes = Vec::new();
        let last = world.engines.len() - 1;
        while let Some(captured) = world.engines[last].captures().poll(captures[last]) {
            let (ip, udp) = IpUdp::decode(&captured.bytes).unwrap();
            assert!(icrc::check(&ip, udp));
            assert_eq!(captured.len, captured.bytes.len());
            opcodes.push(udp[0]);
        }
        opcodes.sort_unstable();
        // WRITE ONLY and READ REQUEST; with the replies where both are seen in this engine.
        assert!(opcodes.starts_with(&[0x0a, 0x0c]), "{opcodes:x?}");
        assert!(opcodes.len() == 4 || (last == 1 && opcodes.len() == 2), "{opcodes:x?}");
        assert_eq!(world.engines[last].captures().stop(captures[last]), 0);
    }
}

#[test]
fn captures_show_no_answers_to_what_is_not_answered() {
    const UC_SEND_ONLY: u8 = 0x24;
    const UD_SEND_ONLY: u8 = 0x64;
    for (qp_type, opcode) in [(QpType::Uc, UC_SEND_ONLY), (QpType::Ud, UD_SEND_ONLY)] {
        for mut world in [World::new(1), World::new(2)] {
            let (a, b) = world.pair(Setup { qp_type, ..Setup::default() });
            let filter = CaptureFilter { vni: Vni(1), gids: vec![a.gid], snap_len: 1 << 16 };
            let captures: Vec<_> = world.engines.iter_mut().map(|e| e.captures().start(filter.clone())).collect();
            let av = AddressVector { dgid: b.gid, ..AddressVector::default() };
            let ah = world.engines[0].device(a.context).unwrap().create_ah(a.pd, av).unwrap() + 1;
            b.post_recv(1, &[b.sge(0, 100)]);
            let op = match qp_type {
                QpType::Ud => SendOp::Datagram { ah, qpn: b.qpn, qkey: QKEY, imm: None },
                _ => SendOp::Send { imm: None },
            };
            world.post(&a, wr(1, op, &[a.sge(0, 20)]));
            world.settle();
            assert_eq!(b.poll().map(|wc| wc.status), Some(WcStatus::Success));
            for (engine, capture) in world.engines.iter_mut().zip(captures) {
                while let Some(captured) = engine.captures().poll(capture) {
                    assert_eq!(IpUdp::decode(&captured.bytes).unwrap().1[0], opcode, "{qp_type:?}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Broken packets change nothing, and none of them is answered.
    #[test]
    fn broken_packets_are_dropped(flips in proptest::collection::vec((any::<usize>(), 1..=255u8), 1..4), cut: Option<usize>) {
        let mut world = World::two_hosts();
        let log = record(&mut world);
        let (a, b) = world.pair(Setup::default());
        a.memory.put(0, &[5; 64]);
        world.post(&a, wr(1, write(&b, 0), &[a.sge(0, 64)]));
        world.settle();
        let (mut bytes, before) = (log.borrow()[0].1.clone(), log.borrow().len());
        b.memory.put(0, &[0; 64]);
        for (at, flip) in flips {
            let at = at % bytes.len();
            bytes[at] ^= flip;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut % bytes.len());
        }
        world.receive(1, 0, &bytes);
        world.settle();
        prop_assert_eq!(b.memory.get(0, 64), vec![0; 64]);
        // A flip that the CRC does not cover leaves a duplicate, which is acknowledged.
        let answers = log.borrow().len() - before;
        prop_assert!(answers as u64 <= counters(&mut world, &b).duplicates);
    }
}

#[test]
fn sealed_packets_have_room_for_the_seal_and_no_crc() {
    let mut world = World::two_hosts();
    world.transmits = Some(crate::Transmits::for_sealing());
    let log = record(&mut world);
    let (a, b) = world.pair(Setup::default());
    world.engines[1].set_tunnel_sealed(true);
    b.memory.put(0, &[0; 2500]);
    a.memory.put(0, &[7; 2500]);
    world.post(&a, wr(1, write(&b, 0), &[a.sge(0, 2500)]));
    world.settle();
    assert_eq!(b.memory.get(0, 2500), [7; 2500]);
    for (_, bytes) in log.borrow().iter() {
        assert_eq!(geneve::read_seal(bytes), Some(geneve::Seal { session: 0, sequence: 0 }));
        assert!(bytes[geneve::TAG].iter().chain(&bytes[bytes.len() - 4..]).all(|byte| *byte == 0));
    }
    // An engine that does not expect authenticated packets checks the CRC.
    assert_eq!((a.done(), world.engines[1].wire_counters().bad_icrc), (None, 0));
    assert!(world.engines[0].wire_counters().bad_icrc > 0);
}
