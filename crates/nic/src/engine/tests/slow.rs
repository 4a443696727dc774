//! Tests of slow memory: queue pairs wait for it, and fail only where that lasts.

use super::world::*;
use crate::timer::Time;
use rdmesh_verbs::*;
use std::sync::{Arc, Mutex};

const SECOND: u64 = 1_000_000_000;
/// For ever, as far as a test is concerned.
const ALWAYS: u32 = u32::MAX;

/// A case: a request of `a`, and a check of its effects.
type Case = (&'static str, fn(&Node, &Node) -> SendWr, fn(&Node, &Node));

const CASES: [Case; 7] = [
    ("send", |a, _| wr(1, SendOp::Send { imm: None }, &[a.sge(0, 150_000)]), |_, b| assert_data(b)),
    (
        "write",
        |a, b| wr(1, SendOp::Write { remote_addr: BASE + TO, rkey: b.key, imm: None }, &[a.sge(0, 150_000)]),
        |_, b| {
            assert_data(b);
        },
    ),
    (
        "write with immediate",
        |a, b| wr(1, SendOp::Write { remote_addr: BASE + TO, rkey: b.key, imm: Some(5) }, &[a.sge(0, 150_000)]),
        |_, b| assert_data(b),
    ),
    (
        "read",
        |a, b| wr(1, SendOp::Read { remote_addr: BASE, rkey: b.key }, &[a.sge(TO, 150_000)]),
        |a, _| assert_data(a),
    ),
    (
        "fetch and add",
        |a, b| wr(1, SendOp::FetchAdd { remote_addr: BASE + WORD, rkey: b.key, add: 3 }, &[a.sge(TO, 8)]),
        |a, b| assert_words(a, b, 12),
    ),
    (
        "compare and swap",
        |a, b| {
            wr(1, SendOp::CompareSwap { remote_addr: BASE + WORD, rkey: b.key, compare: 9, swap: 4 }, &[a.sge(TO, 8)])
        },
        |a, b| assert_words(a, b, 4),
    ),
    (
        "atomic write",
        |_, b| wr(1, SendOp::AtomicWrite { remote_addr: BASE + WORD, rkey: b.key, value: 7u64.to_ne_bytes() }, &[]),
        |_, b| assert_eq!(b.memory.get(WORD as usize, 8), 7u64.to_ne_bytes()),
    ),
];

/// Address of the data, and of the atomics' word.
const TO: u64 = 200_000;
const WORD: u64 = 400_000;

fn pattern() -> Vec<u8> {
    (0..150_000u32).map(|i| (i % 251) as u8).collect()
}

fn assert_data(node: &Node) {
    assert!(node.memory.get(TO as usize, 150_000) == pattern());
}

/// Checks the original and the new value of an atomic.
fn assert_words(a: &Node, b: &Node, new: u64) {
    assert_eq!(a.memory.get(TO as usize, 8), 9u64.to_ne_bytes());
    assert_eq!(b.memory.get(WORD as usize, 8), new.to_ne_bytes());
}

/// A connected pair with data in both memories, and receive requests 100 and 101 at `b`.
fn pair(world: &mut World, setup: Setup) -> (Node, Node) {
    let (a, b) = world.pair(setup);
    for node in [&a, &b] {
        node.memory.put(0, &pattern());
        node.memory.put(WORD as usize, &9u64.to_ne_bytes());
    }
    b.post_recv(100, &[b.sge(TO, 150_000)]);
    b.post_recv(101, &[b.sge(500_000, 100)]);
    (a, b)
}

fn takes_receive(wr: &SendWr) -> bool {
    matches!(wr.op, SendOp::Send { .. } | SendOp::Write { imm: Some(_), .. })
}

#[test]
fn requests_wait_for_slow_memory_and_are_executed_once() {
    for ((what, request, check), times) in CASES.into_iter().flat_map(|case| [1, 2, 7, 50].map(|times| (case, times))) {
        for (kind, mut world) in World::kinds().into_iter().enumerate() {
            for slow in [true, false] {
                let what = format!("{what}, {times} times slow at {}, world {kind}", if slow { "a" } else { "b" });
                let (a, b) = pair(&mut world, Setup::default());
                let present = request(&a, &b);
                let receives = takes_receive(&present);
                let memory = if slow { &a.memory } else { &b.memory };
                memory.be_slow(times);
                world.post(&a, present);
                world.post(&a, wr(2, SendOp::Send { imm: None }, &[a.sge(0, 100)]));
                world.run_until(Time(world.now.0 + 9 * SECOND));
                let done: Vec<_> = std::iter::from_fn(|| a.done()).collect();
                assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)], "{what}");
                let received: Vec<_> = std::iter::from_fn(|| b.done()).collect();
                let expected = if receives {
                    vec![(100, WcStatus::Success), (101, WcStatus::Success)]
                } else {
                    vec![(100, WcStatus::Success)]
                };
                assert_eq!(received, expected, "{what}");
                check(&a, &b);
                assert_eq!((world.state(&a), world.state(&b)), (QpState::Rts, QpState::Rts), "{what}");
            }
        }
    }
}

/// A reply that was put off is one that its peer has, once it has been sent after all: it does not take up room for ever.
#[test]
fn reads_of_memory_that_is_slow_each_time_go_on() {
    const READS: u64 = 40;
    for (kind, mut world) in World::kinds().into_iter().enumerate() {
        let (a, b) = pair(&mut world, Setup::default());
        for number in 0..READS {
            b.memory.be_slow(1);
            world.post(&a, wr(number, SendOp::Read { remote_addr: BASE, rkey: b.key }, &[a.sge(TO, 5000)]));
            world.run_until(Time(world.now.0 + SECOND));
            assert_eq!(a.done(), Some((number, WcStatus::Success)), "world {kind}");
        }
    }
}

/// The one of the two that has slow memory, and how the request of `a` and the receive of `b` end where that lasts.
type Lasting = (usize, bool, WcStatus);

#[test]
fn memory_that_stays_slow_ends_as_if_it_had_gone() {
    let cases: [Lasting; 7] = [
        (0, true, WcStatus::RemoteOperationError),
        (0, false, WcStatus::RemoteOperationError),
        (1, false, WcStatus::RemoteAccessError),
        (3, true, WcStatus::LocalProtectionError),
        (3, false, WcStatus::RemoteOperationError),
        (4, true, WcStatus::LocalProtectionError),
        (4, false, WcStatus::RemoteAccessError),
    ];
    for (case, at_a, status) in cases {
        for (kind, mut world) in World::kinds().into_iter().enumerate() {
            let (what, request, _) = CASES[case];
            let what = format!("{what}, slow at {}, world {kind}", if at_a { "a" } else { "b" });
            let (a, b) = pair(&mut world, Setup::default());
            let memory = if at_a { &a.memory } else { &b.memory };
            memory.be_slow(ALWAYS);
            world.post(&a, request(&a, &b));
            let start = world.now.0;
            world.run_until(Time(start + 9 * SECOND));
            assert_eq!((a.done(), b.done()), (None, None), "{what}");
            assert_eq!((world.state(&a), world.state(&b)), (QpState::Rts, QpState::Rts), "{what}");
            world.run_until(Time(start + 12 * SECOND));
            // A sender that reads its own memory for the network blames itself.
            let status = if kind == 2 && at_a { WcStatus::LocalProtectionError } else { status };
            assert_eq!(a.done(), Some((1, status)), "{what}");
            assert_eq!(world.state(&a), QpState::Error, "{what}");
            assert_eq!(*a.sends.taken.lock().unwrap(), 0, "{what}");
        }
    }
}

#[test]
fn others_go_on_meanwhile() {
    for mut world in World::kinds() {
        let (a, b) = pair(&mut world, Setup::default());
        let (c, d) = world.pair_at(11, Setup::default());
        a.memory.be_slow(ALWAYS);
        world.post(&a, CASES[0].1(&a, &b));
        d.post_recv(7, &[d.sge(0, 100)]);
        world.post(&c, wr(3, SendOp::Send { imm: None }, &[c.sge(0, 100)]));
        let before = world.now;
        world.settle();
        assert_eq!((c.done(), d.done()), (Some((3, WcStatus::Success)), Some((7, WcStatus::Success))));
        assert_eq!((world.now, a.done()), (before, None));
    }
}

/// The ways in which a program may end waiting requests.
const ENDS: [fn(&mut World, &Node); 4] = [
    |world, node| world.modify_state(node, QpState::Error),
    |world, node| world.modify_state(node, QpState::Reset),
    |world, node| drop(world.engines[node.engine].device(node.context).unwrap().destroy_qp(node.qp).unwrap()),
    |world, node| drop(world.engines[node.engine].close(node.context)),
];

#[test]
fn what_waits_can_be_ended_and_leaves_nothing() {
    // An atomic write needs no memory of its sender.
    for (case, end, which) in (0..CASES.len() - 1).flat_map(|c| ENDS.map(|end| [(c, end, 0), (c, end, 1)])).flatten() {
        for slow in [0, 1] {
            for mut world in World::kinds() {
                let (a, b) = pair(&mut world, Setup::default());
                let nodes = [&a, &b];
                nodes[slow].memory.be_slow(ALWAYS);
                world.post(&a, CASES[case].1(&a, &b));
                world.run_until(Time(world.now.0 + SECOND / 10));
                end(&mut world, nodes[which]);
                end(&mut world, nodes[1 - which]);
                nodes[slow].memory.be_slow(0);
                world.run_until(Time(world.now.0 + 20 * SECOND));
                assert!(world.engines.iter().all(|engine| engine.out.timers.len() == 0));
                let done: Vec<_> = std::iter::from_fn(|| a.done()).collect();
                assert!(done.len() <= 1 && done.iter().all(|(_, status)| *status == WcStatus::FlushError), "{done:?}");
                assert_eq!(
                    *a.sends.taken.lock().unwrap() as usize,
                    usize::from(done.is_empty() && is_gone(&mut world, &a))
                );
            }
        }
    }
}

fn is_gone(world: &mut World, node: &Node) -> bool {
    world.engines[node.engine].device(node.context).and_then(|device| device.query_qp(node.qp)).is_err()
}

#[test]
fn a_queue_of_requests_keeps_its_order_whatever_is_slow_and_lost() {
    for seed in 0..60u64 {
        for (kind, mut world) in World::kinds().into_iter().enumerate() {
            let mut chance = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = move || {
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (chance >> 33) as u32
            };
            let (a, b) = pair(&mut world, Setup::default());
            b.recvs.0.lock().unwrap().clear();
            let mut lost = 0;
            world.lose = Box::new(move |_, _| {
                lost += 1;
                lost % 13 == 5 && lost < 200
            });
            let count = 30;
            let mut adds = 0u64;
            let mut receives = 0;
            for id in 0..count {
                let word = [a.sge(TO + 8 * id, 8)];
                let request = match next() % 4 {
                    0 => wr(id, SendOp::FetchAdd { remote_addr: BASE + WORD, rkey: b.key, add: 1 }, &word),
                    1 => wr(id, SendOp::Read { remote_addr: BASE + WORD, rkey: b.key }, &word),
                    2 => wr(id, SendOp::Write { remote_addr: BASE + TO, rkey: b.key, imm: None }, &[a.sge(0, 9000)]),
                    _ => wr(id, SendOp::Send { imm: None }, &[a.sge(0, 9000)]),
                };
                match request.op {
                    SendOp::FetchAdd { .. } => adds += 1,
                    SendOp::Send { .. } => {
                        b.post_recv(1000 + receives, &[b.sge(TO, 9000)]);
                        receives += 1;
                    }
                    _ => {}
                }
                world.post(&a, request);
            }
            for _ in 0..200 {
                let memory = if next() % 2 == 0 { &a.memory } else { &b.memory };
                memory.be_slow(next() % 4);
                world.run_until(Time(world.now.0 + u64::from(next() % 5_000_000)));
            }
            world.run_until(Time(world.now.0 + 5 * SECOND));
            let done: Vec<_> = std::iter::from_fn(|| a.done()).collect();
            let expected: Vec<_> = (0..count).map(|id| (id, WcStatus::Success)).collect();
            assert_eq!(done, expected, "seed {seed}, world {kind}");
            let received: Vec<_> = std::iter::from_fn(|| b.done()).collect();
            let expected: Vec<_> = (0..receives).map(|n| (1000 + n, WcStatus::Success)).collect();
            assert_eq!(received, expected, "seed {seed}, world {kind}");
            let word = u64::from_ne_bytes(b.memory.get(WORD as usize, 8).try_into().unwrap());
            assert_eq!(word, 9 + adds, "seed {seed}, world {kind}");
        }
    }
}

#[test]
fn unreliable_connections_on_one_host_wait_too() {
    for mut world in [World::new(1), World::new(2)] {
        let (a, b) = pair(&mut world, Setup { qp_type: QpType::Uc, ..Setup::default() });
        for (slow, id) in [(&a, 1), (&b, 2)] {
            b.post_recv(100 + id, &[b.sge(TO, 150_000)]);
            slow.memory.be_slow(5);
            world.post(&a, wr(id, SendOp::Send { imm: None }, &[a.sge(0, 150_000)]));
        }
        b.recvs.0.lock().unwrap().retain(|wr| wr.wr_id != 101);
        world.run_until(Time(world.now.0 + SECOND));
        assert_eq!([a.done(), a.done()], [1, 2].map(|id| Some((id, WcStatus::Success))));
        assert_eq!(b.done(), Some((100, WcStatus::Success)));
        assert_data(&b);
    }
}

#[test]
fn a_datagram_is_lost_where_the_receivers_memory_is_slow_and_its_receive_is_not() {
    for mut world in World::kinds() {
        let setup = Setup { qp_type: QpType::Ud, ..Setup::default() };
        let (a, b) = world.pair(setup);
        let av = AddressVector { dgid: b.gid, ..AddressVector::default() };
        let ah = world.engines[a.engine].device(a.context).unwrap().create_ah(a.pd, av).unwrap();
        b.post_recv(7, &[b.sge(0, 1000)]);
        let datagram = |id| {
            let op = SendOp::Datagram { ah: ah + 1, qpn: b.qpn, qkey: QKEY, imm: None };
            wr(id, op, &[a.sge(0, 100)])
        };
        b.memory.be_slow(1);
        for id in [1, 2] {
            world.post(&a, datagram(id));
            world.run_until(Time(world.now.0 + SECOND));
            assert_eq!(a.done(), Some((id, WcStatus::Success)));
        }
        assert_eq!(b.poll().map(|wc| (wc.wr_id, wc.status, wc.byte_len)), Some((7, WcStatus::Success, 140)));
        assert_eq!(b.done(), None);
    }
}

#[test]
fn a_datagram_to_another_host_waits_for_the_senders_memory() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup { qp_type: QpType::Ud, ..Setup::default() });
    let av = AddressVector { dgid: b.gid, ..AddressVector::default() };
    let ah = world.engines[a.engine].device(a.context).unwrap().create_ah(a.pd, av).unwrap();
    b.post_recv(7, &[b.sge(0, 1000)]);
    a.memory.be_slow(5);
    let op = SendOp::Datagram { ah: ah + 1, qpn: b.qpn, qkey: QKEY, imm: None };
    world.post(&a, wr(1, op, &[a.sge(0, 100)]));
    world.settle();
    assert_eq!(a.done(), None);
    world.run_until(Time(world.now.0 + SECOND));
    assert_eq!((a.done(), b.done()), (Some((1, WcStatus::Success)), Some((7, WcStatus::Success))));
}

#[test]
fn a_peer_that_is_slow_for_ever_is_given_up() {
    let mut world = World::two_hosts();
    let (a, b) = pair(&mut world, Setup::default());
    // The peer reports it once, and gets no more packets. The network repeats the report.
    let answer = Arc::new(Mutex::new(Vec::new()));
    let last = answer.clone();
    world.lose = Box::new(move |to, bytes| {
        let is_answer = to == 0;
        if is_answer {
            *last.lock().unwrap() = bytes.to_vec();
        }
        !is_answer && !last.lock().unwrap().is_empty()
    });
    b.memory.be_slow(1);
    world.post(&a, CASES[4].1(&a, &b));
    let start = world.now.0;
    while a.cq.entries.lock().unwrap().is_empty() && world.now.0 < start + 20 * SECOND {
        world.run_until(Time(world.now.0 + SECOND / 50));
        let bytes = answer.lock().unwrap().clone();
        world.receive(0, 1, &bytes);
    }
    assert_eq!(a.done(), Some((1, WcStatus::RnrRetryExceeded)));
    assert!((10 * SECOND..12 * SECOND).contains(&(world.now.0 - start)), "after {} ns", world.now.0 - start);
}

/// A platform that goes on with a copy meanwhile finds its packet again.
#[test]
fn a_packet_that_comes_again_has_the_same_identity() {
    for mut world in World::kinds() {
        let (a, b) = pair(&mut world, Setup::default());
        let mut seen = Vec::new();
        for request in 0..2 {
            b.memory.be_slow(3);
            world.post(&a, (CASES[1].1)(&a, &b));
            world.run_until(Time(world.now.0 + SECOND));
            assert_eq!(a.done(), Some((1, WcStatus::Success)));
            let packets = slow_packets();
            assert_eq!(packets.len(), 3);
            let first = packets[0].expect("it can be told from others");
            assert!(packets.iter().all(|packet| *packet == Some(first)), "{request}: {packets:?}");
            assert!(!seen.contains(&first), "another request has another one");
            seen.push(first);
        }
    }
}
