//! The verifier accepts what the builder makes; what lacks a part is refused.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use rdmesh_chain::program::{Chain, Slot};
use rdmesh_chain::verify::verify;
use rdmesh_verbs::WcStatus;
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Class};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

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

/// A part of a construct that a mutant lacks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    Wait,
    Enable,
    RecvEnable,
    Restore,
    Fence,
    Local,
}

/// Mutants without one part: tried, refused by the verifier, and accepted because the part only makes a reply come sooner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Tally {
    tried: u32,
    refused: u32,
    sooner: u32,
}

/// All chains that lack one part, with the queue and the slot that it was in.
fn mutants(chain: &Chain) -> Vec<(Part, usize, usize, Chain)> {
    let mut mutants = Vec::new();
    let slots =
        chain.queues.iter().enumerate().flat_map(|(number, queue)| queue.slots.iter().map(move |s| (number, *s)));
    for (queue, number) in slots {
        let slot = &chain.slots[number];
        let part = match slot.class_op() {
            ChainOp::Wait => Some(Part::Wait),
            ChainOp::Enable if slot.control.op == ChainOp::Enable => Some(Part::Enable),
            ChainOp::RecvEnable => Some(Part::RecvEnable),
            _ if slot.class() == Class::Order => Some(Part::Enable),
            _ if slot.label.starts_with("restore") => Some(Part::Restore),
            _ => None,
        };
        mutants.extend(part.map(|part| (part, queue, number, without(chain, number))));
        for (part, flag) in [(Part::Fence, ChainFlags::FENCE), (Part::Local, ChainFlags::LOCAL)] {
            let mut mutant = chain.clone();
            mutant.slots[number].flags.remove(flag);
            // A WAIT, an ENABLE or a NOP is over when it was reached, whatever it is flagged.
            let is_over = slot.class() == Class::Order || slot.class_op() == ChainOp::Nop;
            if slot.flags.contains(flag) && !is_over && (part == Part::Fence || chain.slots.len() <= SMALL) {
                mutants.push((part, queue, number, mutant));
            }
        }
    }
    mutants
}

/// Immediate data and bytes of replies, and the error with which the chain ended, if it did.
type Replies = (Vec<(Option<u32>, Vec<u8>)>, Option<WcStatus>);

/// Replies to requests of little content, in some ways to fetch; and the error with which the chain ends, if it does.
fn replies(chain: &Chain) -> Replies {
    let length = chain.receives.first().map_or(0, |receive| receive.message(0) as usize);
    let (mut all, mut fault) = (Vec::new(), None);
    for (fetch, schedule) in every_way().take(6) {
        let mut run = Run::new(chain.clone(), fetch, schedule, |_, _| ());
        for key in [0, 1, 0] {
            let mut message = vec![0; length];
            if let Some(first) = message.first_mut() {
                *first = key;
            }
            if length > 20 {
                message[length - 16..].copy_from_slice(&[&to(run.buffer)[..], &[0; 4]].concat());
            }
            run.model.send(run.installed.receives[0], message);
            assert!(run.model.run(schedule, 100_000), "endless");
            let messages = run.model.take_messages(run.client).into_iter();
            all.extend(messages.map(|message| (message.imm, message.data)));
        }
        fault = fault.or(run.model.fault().map(|fault| fault.status));
    }
    (all, fault)
}

/// No mutant survives unexplained: the verifier refuses it, or a later ENABLE does what the missing one did, and it answers
/// the same. `tests/golden/mutations.txt` has the counts; `UPDATE_GOLDEN=1 cargo test` writes them anew.
#[test]
fn without_a_wait_enable_fence_restore_or_local_it_is_refused() {
    let mut table: BTreeMap<(String, Part), Tally> = BTreeMap::new();
    for chain in library() {
        let is_portable = !chain.slots.iter().any(|slot| slot.flags.contains(ChainFlags::LOCAL));
        let name = format!("{} {}", chain.name, if is_portable { "portable" } else { "local" });
        for (part, queue, slot, mutant) in mutants(&chain) {
            let tally = table.entry((name.clone(), part)).or_default();
            tally.tried += 1;
            if verify(&mutant).is_err() {
                tally.refused += 1;
                continue;
            }
            let label = &chain.slots[slot].label;
            assert!(is_covered(&chain, &chain.queues[queue].slots, slot), "without {part:?} {label} of\n{chain}");
            assert_eq!(replies(&mutant), replies(&chain), "without {part:?} {label} of\n{chain}");
            tally.sooner += 1;
        }
    }
    let mut text = "construct, part: mutants, refused, only slower\n".to_owned();
    for ((name, part), Tally { tried, refused, sooner }) in &table {
        text.push_str(&format!("{name}, {part:?}: {tried}, {refused}, {sooner}\n"));
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/mutations.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, &text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(&file).unwrap_or_default(), "{} differs", file.display());
}

/// Slots of a chain of which all requests are tried without LOCAL: there are many.
const SMALL: usize = 16;
