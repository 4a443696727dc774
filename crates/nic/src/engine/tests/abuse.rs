//! Isolation tests: programs that misuse the engine harm neither it nor another program.

use super::world::*;
use crate::engine::{Config, Engine, Event};
use crate::numbers::Numbers;
use crate::timer::Time;
use rdmesh_verbs::*;

fn write(id: u64, a: &Node, b: &Node, length: u32) -> SendWr {
    wr(id, SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None }, &[a.sge(0, length)])
}

#[test]
fn a_broken_queue_is_flushed_in_turns() {
    let mut world = World::new(1);
    let (a, _b) = world.pair(Setup { cqe: 10_000, ..Setup::default() });
    for id in 0..2000 {
        a.post_recv(id, &[]);
    }
    world.modify_state(&a, QpState::Error);
    for id in 2000..4000 {
        world.post(&a, wr(id, SendOp::Send { imm: None }, &[]));
    }
    let mut done = 0;
    let mut polls = 0;
    while done < 4000 {
        world.engines[0].poll(world.now);
        let flushed = std::iter::from_fn(|| a.poll()).inspect(|wc| assert_eq!(wc.status, WcStatus::FlushError)).count();
        assert!(flushed <= 1000, "{flushed} in one poll hold up everybody else");
        done += flushed;
        polls += 1;
        assert!(polls < 100);
    }
    world.settle();
    assert_eq!(done, 4000);
    assert!(a.poll().is_none());
}

#[test]
fn a_connection_to_a_group_reaches_no_queue_pair() {
    for group in [[0, 1], [1, 0]] {
        let mut world = World::new(2);
        let (a, b) = (world.node(0, 1, Setup::default()), world.node(1, 2, Setup::default()));
        let [by_gid, by_number] = group;
        world.connect_with(&a, &b, |attr| {
            if by_gid == 1 {
                attr.av.dgid = Gid([0xff; 16]);
            }
            if by_number == 1 {
                attr.dest_qpn = Qpn::MULTICAST;
            }
        });
        for id in 0..10 {
            world.post(&a, write(id, &a, &b, 100_000));
        }
        world.run_until(Time(10_000_000_000));
        assert_eq!(a.done(), Some((0, WcStatus::RetryExceeded)));
        assert_eq!(a.done(), Some((1, WcStatus::FlushError)));
    }
}

#[test]
fn an_answer_never_reaches_the_next_qp_of_the_same_number() {
    let mut world = World::new(2);
    let (a, b) = world.pair(Setup::default());
    b.memory.put(0, b"secret");
    world.post(&a, wr(1, SendOp::Read { remote_addr: BASE, rkey: b.key }, &[a.sge(0, 6)]));
    world.engines[0].poll(world.now);
    let (_, request) = world.engines[0].poll_packet().unwrap();
    world.engines[1].handle_packet(request);
    world.engines[1].poll(world.now);
    let (_, answer) = world.engines[1].poll_packet().unwrap();

    world.engines[0].close(a.context);
    let next = loop {
        let next = world.node(0, 3, Setup::default());
        if next.qpn == a.qpn {
            break next;
        }
        world.engines[0].close(next.context);
    };
    world.connect(&next, &b);
    world.post(&next, wr(2, SendOp::Read { remote_addr: BASE, rkey: b.key }, &[next.sge(0, 6)]));
    world.engines[0].poll(world.now);
    world.engines[0].handle_packet(answer);
    world.engines[0].poll(world.now);
    assert_eq!(next.memory.get(0, 6), [0; 6]);
    assert!(next.poll().is_none());
}

#[test]
fn a_number_is_not_used_again_soon() {
    // The table of the second has room for fewer than a hundred.
    for (numbers, others) in [(Numbers::new(1), 1024), (Numbers::below(16 + 47), 40)] {
        let limits = DeviceLimits::default();
        let mut world = World::new(1);
        world.engines[0] =
            Engine::new(Config { shard: 0, seed: 7, limits, native: crate::NativeConfig::default() }, numbers);
        let mut seen = Vec::new();
        for _ in 0..2 * others + 100 {
            let node = world.node(0, 1, Setup::default());
            assert!(!seen.iter().rev().take(others).any(|qpn| *qpn == node.qpn), "{}", node.qpn);
            seen.push(node.qpn);
            world.engines[0].close(node.context);
        }
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() <= others + 10, "{}", seen.len());
    }
}

#[test]
fn a_qp_has_one_deadline_however_often_it_starts_anew() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup::default());
    world.modify_state(&b, QpState::Reset);
    for id in 0..50 {
        world.post(&a, wr(id, SendOp::Send { imm: None }, &[]));
        world.settle();
        assert_eq!(world.engines[0].out.timers.len(), 1);
        world.modify_state(&a, QpState::Reset);
        assert_eq!(world.engines[0].out.timers.len(), 0);
        world.connect_with(&a, &b, |attr| attr.timeout = 31);
    }
    world.post(&a, wr(99, SendOp::Send { imm: None }, &[]));
    world.settle();
    world.engines[0].device(a.context).unwrap().destroy_qp(a.qp).unwrap();
    assert_eq!(world.engines[0].out.timers.len(), 0);
}

#[test]
fn a_queue_that_failed_while_it_drained_is_never_announced() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup::default());
    world.post(&a, wr(1, SendOp::Send { imm: None }, &[]));
    world.settle();
    world.modify_state(&a, QpState::Sqd);
    world.modify_state(&a, QpState::Reset);
    world.modify_state(&b, QpState::Reset);
    world.connect(&a, &b);
    world.connect(&b, &a);
    world.post(&a, write(2, &a, &b, 8));
    world.settle();
    assert_eq!(a.done(), Some((2, WcStatus::Success)));
    let drained = |e: &Event| matches!(e, Event::Async { event: AsyncEvent::SqDrained, .. });
    assert!(!world.events.iter().any(drained));
}

#[test]
fn a_responder_without_room_for_reads_refuses_them() {
    let mut world = World::new(1);
    let (a, b) = (world.node(0, 1, Setup::default()), world.node(0, 2, Setup::default()));
    world.connect(&a, &b);
    world.connect_with(&b, &a, |attr| attr.max_dest_rd_atomic = 0);
    world.post(&a, write(1, &a, &b, 8));
    world.post(&a, wr(2, SendOp::Read { remote_addr: BASE, rkey: b.key }, &[a.sge(0, 8)]));
    world.settle();
    assert_eq!((a.done(), a.done()), (Some((1, WcStatus::Success)), Some((2, WcStatus::RemoteInvalidRequest))));
}

#[test]
fn an_error_told_by_a_receive_raises_no_event() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup::default());
    b.post_recv(3, &[b.sge(0, 10)]);
    world.post(&a, wr(1, SendOp::Send { imm: None }, &[a.sge(0, 11)]));
    world.settle();
    assert_eq!(b.done(), Some((3, WcStatus::LocalLengthError)));
    assert!(!world.events.iter().any(|e| matches!(e, Event::Async { .. })));
}

#[test]
fn windows_of_a_qp_go_with_it_and_others_stay() {
    use crate::{CommandError, MwType};
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup::default());
    let window = |world: &mut World, node: &Node| {
        let (_, key) =
            world.engines[0].device(node.context).unwrap().context_mut().alloc_mw(node.pd, MwType::Type2).unwrap();
        let new_key = Key(key.0 ^ 1);
        let access = Access::REMOTE_READ;
        let op = SendOp::BindMw { mw: key, new_key, mr: node.key, addr: BASE, length: 8, access };
        world.post(node, wr(1, op, &[]));
        world.settle();
        assert_eq!(node.done(), Some((1, WcStatus::Success)));
    };
    window(&mut world, &a);
    window(&mut world, &b);
    world.engines[0].device(a.context).unwrap().destroy_qp(a.qp).unwrap();
    assert_eq!(world.engines[0].device(a.context).unwrap().context_mut().dereg_mr(a.mr).map(drop), Ok(()));
    assert_eq!(
        world.engines[0].device(b.context).unwrap().context_mut().dereg_mr(b.mr).map(drop),
        Err(CommandError::Invalid)
    );
}
