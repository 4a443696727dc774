//! Shares of spinning chains and of their neighbours.

use super::super::world::*;
use super::world::*;
use rdmesh_verbs::chain::ChainOp;
use rdmesh_verbs::*;

/// Requests that a spinning tenant with so many queues executes in the time of `count` exchanges of a neighbour.
fn spin_beside(world: &mut World, queues: usize, count: u64) -> u64 {
    let setup = Setup { vni: 2, signal_all: false, ..Setup::default() };
    let last = world.engines.len() - 1;
    let (spinner, far) = (world.node(0, 50, setup), world.node(last, 51, setup));
    for number in 0..queues {
        let queue = world.plain(&spinner, 64, false);
        world.manage(&queue, number as u32, 1).unwrap();
        queue.put(&[local(ChainOp::FetchAdd, &spinner, 0, 1)]);
        // Its turns are among those of other queue pairs to that host.
        let peer = world.plain(&far, 64, false);
        world.connect(&queue.node, &peer.node);
        world.connect(&peer.node, &queue.node);
        world.device_of(&spinner).enable(queue.qp, u64::MAX).unwrap();
    }
    let (a, b) = world.pair_at(1, Setup::default());
    for _ in 0..16 {
        world.step();
    }
    let (before, mut done) = (spinner.word(0), 0);
    let ping = |world: &mut World, from: &Node, to: &Node| {
        world.post(from, wr(0, SendOp::Write { remote_addr: BASE, rkey: to.key, imm: None }, &[from.sge(0, 8)]));
    };
    ping(world, &a, &b);
    for polls in 0.. {
        assert!(polls < 100 * count, "{done} exchanges in {polls} polls");
        if done == count {
            break;
        }
        world.step();
        if a.done().is_some() {
            ping(world, &b, &a);
        }
        if b.done().is_some() {
            done += 1;
            ping(world, &a, &b);
        }
    }
    spinner.word(0) - before
}

#[test]
fn a_neighbour_of_spinning_chains_waits_for_a_few_turns_at_most() {
    for queues in [1, 40] {
        for (kind, mut world) in World::kinds().into_iter().enumerate() {
            let exchanges = 500;
            let steps = spin_beside(&mut world, queues, exchanges);
            // Polls of both hosts, in each of which the spinning queues have the rest of the time.
            let most = exchanges * MOST_POLLS * MOST_STEPS;
            assert!(steps > exchanges && steps < most, "{kind}, {queues} queues: {steps} steps, {exchanges} exchanges");
        }
    }
}

/// Polls of an engine for an exchange: two messages, their acknowledgements, and turns that come too late for one.
const MOST_POLLS: u64 = 8;
/// Requests of chains in a poll: what its cost allows, and one turn.
const MOST_STEPS: u64 = 128 + 64;
