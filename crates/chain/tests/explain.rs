//! Explanations of executed requests: by whom each field was written, and from what.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::*;
use rdmesh_chain::build::Design;
use rdmesh_chain::model::{Fetch, Schedule, Writer};

fn run(design: Design, fetch: Fetch) -> Run {
    let (program, x) = if_else();
    let mut run = Run::new(program.lower(design), fetch, Schedule::First, |model, installed| {
        model.bytes_mut(installed.regions[x.number()])[..8].copy_from_slice(&7_u64.to_le_bytes());
        model.keep_history();
    });
    assert_eq!(run.request(&u56(8))[0].imm, Some(MISS));
    assert_eq!(run.request(&u56(7))[0].imm, Some(HIT));
    run
}

/// The request with a label in a lap, explained.
fn explain(run: &Run, label: &str, lap: u64) -> String {
    let slot = run.chain.labelled(label).unwrap();
    let (queue, at) = run.chain.position(slot).unwrap();
    let index = lap * run.chain.queues[queue].slots.len() as u64 + at as u64;
    run.chain.explain(run.model.history().unwrap(), &run.installed, queue, index).unwrap()
}

#[test]
fn a_request_is_explained_backwards() {
    for (design, fetch) in DESIGNS.into_iter().flat_map(|design| RULES.map(|fetch| (design, fetch))) {
        let run = run(design, fetch);
        let (missed, hit) = (explain(&run, "hit", 0), explain(&run, "hit", 1));
        assert!(missed.starts_with("hit in lap 0: NOP\n"), "{missed}");
        assert!(missed.contains("by load in lap 0"), "the operand came by READ: {missed}");
        assert!(hit.starts_with("hit in lap 1: SEND_IMM\n"), "{hit}");
        let control = hit.lines().find(|line| line.starts_with("  control: ")).unwrap();
        assert!(control.starts_with("  control: NOP(0x7) -> SEND_IMM, by "), "{hit}");
        // What compared it got its value from the message.
        assert!(hit.contains("compare: 0x8 -> 0x7, by message 1"), "{design:?} {fetch:?}: {hit}");
    }
}

#[test]
fn a_store_of_the_processor_is_its_own() {
    let mut run = run(Design::Local, Fetch::AtStart);
    let (queue, ring) = run.installed.queues[0];
    let slots = run.chain.queues[0].slots.len() as u64;
    run.model.store_later(ring, 20, &[9]);
    run.settle();
    let history = run.model.history().unwrap();
    assert_eq!(history.changes().last().map(|change| change.by), Some(Writer::Processor));
    assert!(history.fetched(queue, 1000 * slots).is_none());
    assert_eq!(history.writers(ring, 20..21, usize::MAX).len(), 1);
    assert!(history.writers(ring, 20..21, 0).is_empty());
}
