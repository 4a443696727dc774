//! Groups: errors, commands on them, and budgets.

use super::super::world::*;
use super::world::*;
use crate::chain::ChainState;
use crate::engine::Event;
use crate::policy::{Policy, Rate};
use crate::timer::Time;
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Request};
use rdmesh_verbs::*;

fn node(world: &mut World) -> Node {
    world.node(0, 1, Setup { signal_all: false, ..Setup::default() })
}

/// A queue that never ends and never waits.
fn spinning(world: &mut World, node: &Node, group: u32, at: u64) -> Queue {
    world.queue(node, group, &[local(ChainOp::FetchAdd, node, at, 1)])
}

fn steps(world: &mut World, count: usize) {
    for _ in 0..count {
        world.step();
    }
}

fn fatal(world: &World) -> usize {
    world.events.iter().filter(|e| matches!(e, Event::Async { event: AsyncEvent::QpFatal, .. })).count()
}

#[test]
fn the_first_error_ends_the_group_and_is_told_once() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let waiting = world.queue(&a, GROUP, &[order(ChainOp::Wait, 0, 9, 0)]);
    let other = world.queue(&a, GROUP + 1, &[request(ChainOp::Nop)]);
    let bad = Request { flags: ChainFlags::LOCAL, ..request(ChainOp::Write) };
    let bad = Request { sges: [a.sge(0, 8)].into_iter().collect(), ..bad };
    let failing = world.queue(&a, GROUP, &[request(ChainOp::Nop), bad]);
    world.enable(&waiting, 1);
    world.enable(&failing, 2);
    let entry = world.entry(&a, GROUP);
    assert_eq!(entry.state, ChainState::Poisoned);
    assert_eq!(entry.fault.map(|f| (f.qp, f.index, f.status)), Some((failing.qp, 1, WcStatus::LocalProtectionError)));
    for (queue, state) in [(&waiting, QpState::Error), (&failing, QpState::Error), (&other, QpState::Rts)] {
        assert_eq!(world.state(&queue.node), state);
    }
    assert_eq!((fatal(&world), failing.statuses()), (1, vec![WcStatus::Success, WcStatus::LocalProtectionError]));
    assert_eq!(world.produced(&failing), 1, "an error does not count");
    assert!(world.device_of(&a).enable(waiting.qp, 2).is_err());
    // Nothing refers to it any more.
    world.device_of(&a).destroy_qp(waiting.qp).unwrap();
    world.device_of(&a).destroy_qp(failing.qp).unwrap();
    assert!(world.device_of(&a).chains().list().iter().all(|entry| entry.group != GROUP));
    let again = world.queue(&a, GROUP, &[request(ChainOp::Nop)]);
    world.enable(&again, 1);
    assert_eq!(again.statuses(), [WcStatus::Success]);
}

#[test]
fn only_managed_queues_of_the_group_can_be_enabled() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let foreign = world.queue(&a, 100, &[request(ChainOp::Nop)]);
    for (group, (op, object)) in [
        (ChainOp::Enable, foreign.qp),
        (ChainOp::RecvEnable, foreign.qp),
        (ChainOp::Enable, a.qp),
        (ChainOp::Enable, 999),
        (ChainOp::Wait, 999),
    ]
    .into_iter()
    .enumerate()
    {
        let queue = world.queue(&a, group as u32, &[order(op, object, 1, 0)]);
        world.enable(&queue, 1);
        assert_eq!(queue.statuses(), [WcStatus::LocalQpOperationError], "{op:?} {object}");
        assert_eq!(world.entry(&a, group as u32).fault.map(|fault| fault.key), Some(object));
    }
    assert_eq!(foreign.statuses(), []);
}

#[test]
fn a_reset_queue_pair_begins_anew() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let queue = world.queue(&a, GROUP, &[order(ChainOp::Wait, 0, 9, 0), request(ChainOp::Nop)]);
    world.enable(&queue, 2);
    let cq = world.device_of(&a).context().list_cqs(0, 1)[0];
    world.modify_state(&queue.node, QpState::Reset);
    queue.put(&[request(ChainOp::Nop)]);
    world.connect(&queue.node, &queue.node);
    world.settle();
    assert_eq!((queue.statuses(), cq.handle), (vec![], 0));
    world.enable(&queue, 1);
    assert_eq!(queue.statuses(), [WcStatus::Success]);
}

#[test]
fn a_group_is_stopped_goes_on_and_is_killed() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let queue = spinning(&mut world, &a, GROUP, 0);
    let second = world.queue(&a, GROUP, &[request(ChainOp::Nop)]);
    world.device_of(&a).enable(queue.qp, u64::MAX).unwrap();
    steps(&mut world, 10);
    assert!(a.word(0) > 10);
    world.device_of(&a).chains().stop(GROUP).unwrap();
    let at = a.word(0);
    world.settle();
    assert_eq!((a.word(0), world.entry(&a, GROUP).state), (at, ChainState::Stopped));
    world.device_of(&a).chains().resume(GROUP).unwrap();
    steps(&mut world, 10);
    assert!(a.word(0) > at);
    world.device_of(&a).chains().kill(GROUP).unwrap();
    let at = a.word(0);
    world.settle();
    assert_eq!((a.word(0), fatal(&world)), (at, 1));
    assert_eq!([world.state(&queue.node), world.state(&second.node)], [QpState::Error; 2]);
    assert!(world.device_of(&a).chains().resume(GROUP).is_err() && world.device_of(&a).chains().kill(77).is_err());
}

#[test]
fn a_spinning_chain_is_preempted_and_leaves_others_their_share() {
    let mut world = World::new(1);
    let (a, b) = (node(&mut world), world.node(0, 2, Setup { signal_all: false, ..Setup::default() }));
    let queues = [spinning(&mut world, &a, 1, 0), spinning(&mut world, &a, 2, 8), spinning(&mut world, &b, 1, 0)];
    for queue in &queues {
        world.device_of(&queue.node).enable(queue.qp, u64::MAX).unwrap();
    }
    world.engines[0].poll(world.now);
    let after_one = a.word(0);
    assert!((1..=64 * 16).contains(&after_one), "{after_one}");
    steps(&mut world, 1000);
    let (mine, theirs) = (a.word(0) + a.word(8), b.word(0));
    assert!(theirs * 2 > mine && mine * 2 > theirs, "{mine} {theirs}");
}

#[test]
fn a_budget_of_steps_holds_over_all_queues_of_an_endpoint() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let queues = [spinning(&mut world, &a, 1, 0), spinning(&mut world, &a, 2, 8)];
    world.device_of(&a).set_policy(steps_policy(Some(Rate { per_second: 1000, burst: 50 })));
    for queue in &queues {
        world.device_of(&a).enable(queue.qp, u64::MAX).unwrap();
    }
    world.now = Time(2_000_000_000);
    world.settle();
    assert_eq!(a.word(0) + a.word(8), 50);
    assert!(world.engines[0].poll_timeout().is_some() && !world.engines[0].has_work());
    world.run_until(Time(3_000_000_000));
    let done = a.word(0) + a.word(8);
    assert!((1040..=1060).contains(&done), "{done}");
    assert!(a.word(0) > 100 && a.word(8) > 100 && world.entry(&a, 1).starved > 0);
    world.device_of(&a).set_policy(Policy::default());
    steps(&mut world, 10);
    assert!(a.word(0) + a.word(8) > done + 200);
}

#[test]
fn what_cannot_be_managed_is_refused() {
    let mut world = World::new(1);
    let a = node(&mut world);
    let queue = world.plain(&a, 64, false);
    assert!(world.manage(&queue, GROUP, 0).is_err() && world.manage(&queue, GROUP, 65).is_err());
    assert!(world.manage(&queue, GROUP, 64).is_ok());
    assert!(world.manage(&queue, GROUP, 64).is_err(), "twice");
    let late = world.plain(&a, 64, false);
    world.connect(&late.node, &late.node);
    assert!(world.manage(&late, GROUP, 1).is_err(), "in RTS");
    assert!(world.device_of(&a).enable(late.qp, 1).is_err(), "an ordinary queue");
    // A queue that reports every completion counts what nobody asked for.
    let all = world.node(0, 3, Setup { signal_all: true, ..Setup::default() });
    let all = Queue { qp: all.qp, node: all, ..queue };
    assert!(world.manage(&all, GROUP, 1).is_err(), "signals all");
}
