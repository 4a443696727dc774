//! The verifier accepts what the builder makes; what lacks a part is refused.

mod common;

use common::*;
use rdmesh_chain::program::{Chain, Slot};
use rdmesh_chain::verify::verify;
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Class};

fn library() -> Vec<Chain> {
    let programs = || [if_else().0, hash_get(1).0, hash_get(2).0, list_walk().0];
    let offloads = offloads().into_iter().map(|(_, program)| program);
    let all: Vec<_> = programs().into_iter().chain(offloads).collect();
    DESIGNS.iter().flat_map(|design| all.iter().map(|program| program.lower(*design))).collect()
}

#[test]
fn library_constructs_are_accepted() {
    for chain in library() {
        assert_eq!(verify(&chain), Ok(()), "{chain}");
    }
}

/// A chain with a NOP in place of one of its requests; counts and indices stay as they were.
fn without(chain: &Chain, slot: usize) -> Chain {
    let mut mutant = chain.clone();
    let Slot { label, flags, .. } = mutant.slots[slot].clone();
    mutant.slots[slot] = Slot { flags, ..Slot::new(label, ChainOp::Nop) };
    mutant
}

/// Whether a later ENABLE lets the same queue go on at least as far: then the earlier one only makes a reply come sooner.
fn is_covered(chain: &Chain, queue: &[usize], slot: usize) -> bool {
    let enable = |slot: usize| {
        let slot = &chain.slots[slot];
        slot.order.filter(|order| slot.control.op == ChainOp::Enable && !order.relative)
    };
    let Some(early) = enable(slot) else { return false };
    let later = queue.iter().skip_while(|other| **other != slot).skip(1).filter_map(|other| enable(*other));
    let mut same = later.filter(|later| later.object == early.object && later.count >= early.count);
    same.next().is_some()
}

#[test]
fn without_a_wait_enable_fence_or_restore_it_is_refused() {
    let mut tried = 0;
    for chain in library() {
        for queue in &chain.queues {
            for number in &queue.slots {
                let slot = &chain.slots[*number];
                if slot.class() == Class::Order || slot.label.starts_with("restore") {
                    let mutant = without(&chain, *number);
                    let is_noticed = verify(&mutant).is_err() || is_covered(&chain, &queue.slots, *number);
                    assert!(is_noticed, "without {} of\n{chain}", slot.label);
                    tried += 1;
                }
                if slot.flags.intersects(ChainFlags::FENCE) {
                    let mut mutant = chain.clone();
                    mutant.slots[*number].flags.remove(ChainFlags::FENCE);
                    assert!(verify(&mutant).is_err(), "without the fence of {} of\n{chain}", slot.label);
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 30, "{tried}");
}
