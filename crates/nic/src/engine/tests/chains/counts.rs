//! Counts of completions and laps, also after a long time.

use super::super::world::*;
use super::world::*;
use rdmesh_verbs::chain::{ChainOp, Control, Request};
use rdmesh_verbs::*;

/// A queue with one counted completion in a lap of three, and one that waits for each: around a lap, in every phase of it.
fn laps_around(lap: u64) {
    let mut world = World::new(1);
    let a = world.node(0, 1, Setup { signal_all: false, ..Setup::default() });
    let quiet = Request { control: Control::new(ChainOp::Nop).quiet(), ..request(ChainOp::Nop) };
    let source = world.queue(&a, GROUP, &[quiet.clone(), request(ChainOp::Nop), quiet]);
    let waiting = [order(ChainOp::Wait, source.cq, 1, 1), local(ChainOp::FetchAdd, &a, 0, 1)];
    let queue = world.queue(&a, GROUP, &waiting);
    let enabling = world.queue(&a, GROUP, &[order(ChainOp::Enable, source.qp, 3, 3)]);
    world.preset(&source, 3 * lap, lap);
    world.preset(&queue, 2 * lap, 0);
    world.preset(&enabling, lap, 0);
    world.enable(&queue, u64::MAX);
    assert_eq!(a.word(0), 0, "{lap}: it waits for one more");
    for done in 1..=6 {
        world.enable(&enabling, lap + done);
        assert_eq!((a.word(0), world.produced(&source)), (done, lap + done), "{lap}");
    }
    let entry = world.entry(&a, GROUP);
    assert_eq!((entry.fault, entry.laps), (None, 3 * (lap + 6)));
}

#[test]
fn counts_go_on_where_smaller_ones_would_wrap() {
    for bits in [16, 24, 32, 48] {
        // The lap, or the index of the queue with three slots or with two, passes the power.
        for factor in [1, 2, 3] {
            laps_around((1_u64 << bits) / factor - 3);
        }
    }
}

/// End of a request, and whether that counts.
#[test]
fn only_successful_completions_count() {
    let success = request(ChainOp::Nop);
    let unsignaled = Request { flags: chain::ChainFlags::empty(), ..success.clone() };
    let quiet = Request { control: Control::new(ChainOp::Nop).quiet(), ..success.clone() };
    for (remote, failing) in [(false, ChainOp::Write), (true, ChainOp::Write), (true, ChainOp::Read)] {
        let mut world = World::new(1);
        let a = world.node(0, 1, Setup { signal_all: false, ..Setup::default() });
        let flags = if remote { chain::ChainFlags::SIGNALED } else { chain::ChainFlags::LOCAL };
        let sges = [a.sge(0, 8)].into_iter().collect();
        let bad = Request { flags, sges, ..request(failing) };
        let behind = success.clone();
        let queue = world.queue(&a, GROUP, &[success.clone(), unsignaled.clone(), quiet.clone(), bad, behind]);
        world.enable(&queue, 5);
        // A NOP does not wait for the answer to an earlier request.
        let counted = 1 + u64::from(remote);
        assert_eq!(world.produced(&queue), counted, "{remote} {failing:?}: neither the error nor what is flushed");
        let statuses = queue.statuses();
        assert_eq!(statuses[0], WcStatus::Success);
        let succeeded = statuses.iter().filter(|status| **status == WcStatus::Success).count();
        assert!(succeeded as u64 == counted && statuses.len() > succeeded, "{statuses:?}");
    }
}
