//! Error tests: the right completion status on both sides, and flushed queues afterwards.

use super::world::*;
use crate::CommandError;
use crate::engine::Event;
use crate::timer::Time;
use rdmesh_verbs::*;

fn has_event(world: &World, wanted: AsyncEvent) -> bool {
    world.events.iter().any(|e| matches!(e, Event::Async { event, .. } if *event == wanted))
}

fn send(id: u64) -> SendWr {
    wr(id, SendOp::Send { imm: None }, &[])
}

#[test]
fn a_missing_receive_is_waited_for() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        world.post(&a, wr(1, SendOp::Send { imm: None }, &[a.sge(0, 100_000)]));
        world.post(&a, send(2));
        world.settle();
        assert!(a.poll().is_none());
        b.post_recv(1, &[b.sge(0, 100_000)]);
        b.post_recv(2, &[]);
        world.run_until(Time(world.now.0 + 700_000));
        assert_eq!((a.done(), a.done()), (Some((1, WcStatus::Success)), Some((2, WcStatus::Success))));
        assert_eq!((b.poll().unwrap().wr_id, b.poll().unwrap().wr_id), (1, 2));
    }
}

#[test]
fn rnr_retries_run_out() {
    for mut world in World::kinds() {
        let (a, _b) = world.pair(Setup::default());
        world.post(&a, send(1));
        world.post(&a, send(2));
        // Three retries at timer code 12: 0.64 ms each. A router looks for receive requests for half a millisecond before.
        world.run_until(Time(1000 + 3 * 640_000 - 1));
        assert!(a.poll().is_none());
        world.run_until(Time(500_000 + 1000 + 3 * 640_000));
        assert_eq!((a.done(), a.done()), (Some((1, WcStatus::RnrRetryExceeded)), Some((2, WcStatus::FlushError))));
        assert_eq!(world.state(&a), QpState::Error);
    }
}

#[test]
fn a_dead_peer_is_noticed_after_the_timeout() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        world.engines[b.engine].close(b.context);
        world.post(&a, send(1));
        // Timeout code 14 is 67.1 ms, and the least between hosts 500; the first try and two retries.
        let timeout = if world.routes.is_none() { 67_108_864 } else { 500_000_000 };
        world.run_until(Time(3 * timeout));
        assert!(a.poll().is_none());
        world.run_until(Time(1000 + 3 * timeout));
        assert_eq!(a.done(), Some((1, WcStatus::RetryExceeded)));
    }
}

#[test]
fn another_network_cannot_be_reached() {
    for mut world in World::kinds() {
        let a = world.node(0, 1, Setup::default());
        let b = world.node(0, 2, Setup { vni: 2, ..Setup::default() });
        world.connect(&a, &b);
        world.connect(&b, &a);
        b.memory.put(0, b"secret");
        world.post(&a, wr(1, SendOp::Read { remote_addr: BASE, rkey: b.key }, &[a.sge(0, 6)]));
        world.run_until(Time(1_000_000_000));
        assert_eq!(a.done(), Some((1, WcStatus::RetryExceeded)));
        assert_eq!(a.memory.get(0, 6), [0; 6]);
    }
}

#[test]
fn only_the_connected_peer_is_heard() {
    for mut world in World::kinds() {
        let (_a, b) = world.pair(Setup::default());
        let stranger = world.node(0, 3, Setup::default());
        world.connect(&stranger, &b);
        world
            .post(&stranger, wr(1, SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None }, &[stranger.sge(0, 8)]));
        world.run_until(Time(2_000_000_000));
        assert_eq!(stranger.done(), Some((1, WcStatus::RetryExceeded)));
    }
}

#[test]
fn remote_access_errors_end_both_sides() {
    let bad = |key: Key, at: u64| SendOp::Write { remote_addr: at, rkey: key, imm: None };
    let forged = |b: &Node| (Key(b.key.0 ^ 1), BASE);
    let beyond = |b: &Node| (b.key, BASE + LEN as u64 - 7);
    let before = |b: &Node| (b.key, BASE - 1);
    let cases = [forged as fn(&Node) -> _, beyond, before];
    for (case, mut world) in cases.into_iter().flat_map(|case| World::kinds().map(move |world| (case, world))) {
        let (a, b) = world.pair(Setup::default());
        let (key, at) = case(&b);
        b.post_recv(9, &[]);
        world.post(&a, wr(1, bad(key, at), &[a.sge(0, 8)]));
        world.post(&a, send(2));
        world.settle();
        assert_eq!((a.done(), a.done()), (Some((1, WcStatus::RemoteAccessError)), Some((2, WcStatus::FlushError))));
        assert_eq!(b.done(), Some((9, WcStatus::FlushError)));
        assert_eq!((world.state(&a), world.state(&b)), (QpState::Error, QpState::Error));
        assert!(has_event(&world, AsyncEvent::QpAccessError));
    }
}

#[test]
fn a_qp_without_the_right_refuses() {
    for mut world in World::kinds() {
        let (a, b) = (world.node(0, 1, Setup::default()), world.node(0, 2, Setup::default()));
        world.connect(&a, &b);
        world.connect_with(&b, &a, |attr| attr.access = Access::REMOTE_READ);
        world.post(&a, wr(1, SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None }, &[a.sge(0, 8)]));
        world.settle();
        assert_eq!(a.done(), Some((1, WcStatus::RemoteAccessError)));
    }
}

#[test]
fn too_long_a_message_is_a_length_error_at_the_receiver() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        b.post_recv(3, &[b.sge(0, 10)]);
        world.post(&a, wr(1, SendOp::Send { imm: None }, &[a.sge(0, 11)]));
        world.settle();
        assert_eq!(a.done(), Some((1, WcStatus::RemoteInvalidRequest)));
        assert_eq!(b.done(), Some((3, WcStatus::LocalLengthError)));
    }
}

#[test]
fn a_bad_local_key_is_a_protection_error() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup::default());
    let sge = Sge { lkey: Key(a.key.0 ^ 2), ..a.sge(0, 8) };
    b.post_recv(1, &[]);
    world.post(&a, wr(1, SendOp::Send { imm: None }, &[sge]));
    world.settle();
    assert_eq!(a.done(), Some((1, WcStatus::LocalProtectionError)));
    assert!(b.poll().is_none());
}

#[test]
fn a_bad_receive_key_fails_both_sides() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        b.post_recv(1, &[Sge { lkey: Key(1), ..b.sge(0, 8) }]);
        world.post(&a, wr(1, SendOp::Send { imm: None }, &[a.sge(0, 8)]));
        world.settle();
        assert_eq!(a.done(), Some((1, WcStatus::RemoteOperationError)));
        assert_eq!(b.done(), Some((1, WcStatus::LocalProtectionError)));
    }
}

#[test]
fn an_unaligned_atomic_is_an_invalid_request() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        world.post(&a, wr(1, SendOp::FetchAdd { remote_addr: BASE + 4, rkey: b.key, add: 1 }, &[a.sge(0, 8)]));
        world.settle();
        assert_eq!(a.done(), Some((1, WcStatus::RemoteInvalidRequest)));
    }
}

#[test]
fn unreliable_connections_lose_silently() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup { qp_type: QpType::Uc, ..Setup::default() });
        world.post(&a, wr(1, SendOp::Send { imm: None }, &[a.sge(0, 100_000)]));
        world.settle();
        assert_eq!(a.done(), Some((1, WcStatus::Success)));
        b.post_recv(1, &[b.sge(0, 8)]);
        world.post(&a, wr(2, SendOp::Send { imm: None }, &[a.sge(0, 8)]));
        world.settle();
        assert_eq!((a.done(), b.done()), (Some((2, WcStatus::Success)), Some((1, WcStatus::Success))));
    }
}

#[test]
fn posts_in_error_are_flushed() {
    let mut world = World::new(1);
    let (a, _b) = world.pair(Setup::default());
    a.post_recv(1, &[]);
    world.modify_state(&a, QpState::Error);
    world.settle();
    assert_eq!(a.done(), Some((1, WcStatus::FlushError)));
    world.post(&a, send(2));
    a.post_recv(3, &[]);
    world.settle();
    let mut ids = [a.done(), a.done()];
    ids.sort_by_key(|id| id.map(|(id, _)| id));
    assert_eq!(ids, [Some((2, WcStatus::FlushError)), Some((3, WcStatus::FlushError))]);
}

#[test]
fn an_overrun_cq_is_announced_and_breaks_its_qp() {
    let mut world = World::new(1);
    let (a, b) = world.pair(Setup { cqe: 2, ..Setup::default() });
    for i in 0..4 {
        world.post(&a, wr(i, SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None }, &[]));
    }
    world.settle();
    assert!(has_event(&world, AsyncEvent::CqError));
    assert_eq!(world.state(&a), QpState::Error);
}

#[test]
fn objects_in_use_cannot_be_destroyed() {
    let mut world = World::new(1);
    let a = world.node(0, 1, Setup { srq: true, ..Setup::default() });
    let e = &mut world.engines[0];
    assert_eq!(e.device(a.context).unwrap().context_mut().destroy_cq(0).map(drop), Err(CommandError::Busy));
    assert_eq!(e.device(a.context).unwrap().context_mut().destroy_srq(0).map(drop), Err(CommandError::Busy));
    assert_eq!(e.device(a.context).unwrap().context_mut().dealloc_pd(a.pd), Err(CommandError::Busy));
    e.device(a.context).unwrap().destroy_qp(a.qp).unwrap();
    e.device(a.context).unwrap().context_mut().destroy_cq(0).unwrap();
    e.device(a.context).unwrap().context_mut().destroy_srq(0).unwrap();
    e.device(a.context).unwrap().context_mut().dereg_mr(a.mr).unwrap();
    e.device(a.context).unwrap().context_mut().dealloc_pd(a.pd).unwrap();
    assert_eq!(e.device(a.context).unwrap().context_mut().dealloc_pd(a.pd), Err(CommandError::NoSuchObject));
}

#[test]
fn reset_forgets_everything_and_the_qp_can_be_used_again() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        world.post(&a, send(1));
        world.settle();
        for node in [&a, &b] {
            world.modify_state(node, QpState::Reset);
        }
        world.connect(&a, &b);
        world.connect(&b, &a);
        world.run_until(Time(2_000_000_000));
        assert!(a.poll().is_none());
        b.post_recv(5, &[]);
        world.post(&a, send(2));
        world.settle();
        assert_eq!((a.done(), b.done()), (Some((2, WcStatus::Success)), Some((5, WcStatus::Success))));
    }
}
