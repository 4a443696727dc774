//! Chains in engines do what the model says, on one host and between two.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "../../../chain/tests/common/mod.rs"]
mod common;
mod world;

use common::*;
use rdmesh_chain::build::Design;
use rdmesh_chain::model::{Fetch, Schedule};
use rdmesh_chain::program::{Chain, Content};
use rdmesh_nic::ChainState;
use world::{Distance, Engined};

const DISTANCES: [Distance; 3] = [Distance::OneHost, Distance::TwoHosts, Distance::Lossy(5)];

/// A chain in the model and in an engine, with the same memory.
struct Both {
    model: Run,
    engine: Engined,
}

impl Both {
    fn new(chain: &Chain, distance: Distance, is_sealed: bool) -> Self {
        let model = Run::new(chain.clone(), Fetch::AtStart, Schedule::First, |_, _| ());
        let engine = Engined::new(chain, distance, BUFFER, is_sealed);
        Self { model, engine }
    }

    /// Fills a region in both.
    fn put(&mut self, region: usize, at: usize, bytes: &[u8]) {
        let key = self.model.installed.regions[region];
        self.model.model.bytes_mut(key)[at..at + bytes.len()].copy_from_slice(bytes);
        self.engine.put(region, at, bytes);
    }

    /// Sends a request, whose arguments may name the client's key, and compares everything.
    fn request(&mut self, arguments: impl Fn(u32) -> Vec<u8>, context: &str) -> Vec<(Option<u32>, u32)> {
        let expected = self.model.request(&arguments(self.model.buffer));
        let mut expected: Vec<_> = expected.into_iter().map(|m| (m.imm, m.data.len() as u32)).collect();
        let mut got = self.engine.request(&arguments(self.engine.buffer_key));
        expected.sort_unstable();
        got.sort_unstable();
        let entry = self.engine.entry();
        assert_eq!((entry.state, entry.fault), (ChainState::Running, None), "{context}");
        assert_eq!(got, expected, "replies {context}");
        self.compare(context);
        got
    }

    fn compare(&mut self, context: &str) {
        let chain = self.engine.chain.clone();
        for (number, region) in chain.regions.iter().enumerate() {
            let key = self.model.installed.regions[number];
            // The pristine copies hold keys, which differ.
            if !matches!(region.content, Content::Pristine(_)) {
                // A request may leave the client's key behind, which differs too.
                let mut bytes = self.engine.bytes(number);
                let [own, other] = [self.engine.buffer_key, self.model.buffer].map(u32::to_le_bytes);
                for at in 0..bytes.len().saturating_sub(3) {
                    if bytes[at..at + 4] == own {
                        bytes[at..at + 4].copy_from_slice(&other);
                    }
                }
                assert_eq!(bytes, self.model.model.bytes(key), "{} {context}", region.name);
            }
        }
        assert_eq!(self.engine.buffer.get(0, BUFFER), self.model.buffer(), "buffer {context}");
        let produced: Vec<u64> = self.model.installed.cqs.iter().map(|cq| self.model.model.produced(*cq)).collect();
        assert_eq!(self.engine.produced(), produced, "completions {context}");
        let (counts, expected) = (self.engine.entry().counts, self.model.model.counts());
        let got = (counts.copies, counts.atomics, counts.orders, counts.steps, counts.bytes, counts.soft_faults);
        let same =
            (expected.copies, expected.atomics, expected.orders, expected.steps, expected.bytes, expected.soft_faults);
        assert_eq!(got, same, "counts {context}");
    }
}

#[test]
fn if_else_answers_as_in_the_model() {
    for (distance, design) in DISTANCES.into_iter().flat_map(|distance| DESIGNS.map(|design| (distance, design))) {
        let (program, x) = if_else();
        let mut both = Both::new(&program.lower(design), distance, false);
        both.put(x.number(), 0, &7_u64.to_le_bytes());
        for key in [7, 8, 7, 7, 0, 6] {
            let replies = both.request(|_| u56(key), &format!("{key} {design:?} {distance:?}"));
            assert_eq!(replies, [(Some(if key == 7 { HIT } else { MISS }), 0)]);
        }
    }
}

#[test]
fn hash_get_answers_as_in_the_model() {
    for (distance, design) in DISTANCES.into_iter().flat_map(|distance| DESIGNS.map(|design| (distance, design))) {
        let (program, table, values) = hash_get(2);
        let mut both = Both::new(&program.lower(design), distance, false);
        for bucket in 0..16_u64 {
            let (at, length, key) = (bucket * 10, bucket as u32 + 1, 1000 + bucket);
            let bytes = [&at.to_le_bytes()[..], &length.to_le_bytes(), &[9; 4], &key.to_le_bytes()].concat();
            both.put(table.number(), bucket as usize * BUCKET, &bytes);
        }
        both.put(values.number(), 0, &(0..=255).collect::<Vec<u8>>());
        for key in [1003_u64, 1004, 1005, 0, 1003, 1004] {
            let offsets = [3 * BUCKET as u64, 4 * BUCKET as u64].map(u64::to_le_bytes).concat();
            let arguments = |buffer| [&u56(key)[..], &offsets, &to(buffer), &77_u32.to_le_bytes()].concat();
            let replies = both.request(arguments, &format!("{key} {design:?} {distance:?}"));
            assert_eq!(replies.len(), 1);
        }
    }
}

#[test]
fn a_list_walk_ends_as_in_the_model() {
    for (distance, design) in DISTANCES.into_iter().flat_map(|distance| DESIGNS.map(|design| (distance, design))) {
        let (program, list, values) = list_walk();
        let mut both = Both::new(&program.lower(design), distance, false);
        for node in 0..8_usize {
            let (next, value, key) = (((node + 1) * NODE) as u64, node as u64, 100 + node as u64);
            let key = if node == 7 { 0 } else { key };
            let parts = [&next.to_le_bytes()[..], &value.to_le_bytes(), &1_u32.to_le_bytes(), &[0; 4]];
            both.put(list.number(), node * NODE, &[&parts.concat()[..], &key.to_le_bytes()].concat());
        }
        both.put(values.number(), 0, &(50..=100).collect::<Vec<u8>>());
        for key in [100_u64, 103, 106, 103] {
            let arguments = |buffer| [&u56(key)[..], &0_u64.to_le_bytes(), &to(buffer)].concat();
            let replies = both.request(arguments, &format!("{key} {design:?} {distance:?}"));
            assert_eq!(replies, [(Some(HIT), 1)]);
        }
    }
}

#[test]
fn random_programs_do_the_same_as_in_the_model() {
    let mut answered = 0;
    for seed in 0..40 {
        let (program, _) = random_program(seed);
        let chains = DESIGNS.map(|design| (design, program.lower(design)));
        for ((design, chain), distance) in chains.iter().flat_map(|chain| DISTANCES.map(|distance| (chain, distance))) {
            let mut both = Both::new(chain, distance, false);
            for key in [0, 1, 3, 2, 7] {
                answered += both.request(|_| u56(key), &format!("seed {seed} {design:?} {distance:?}")).len();
            }
        }
    }
    assert!(answered > 250, "{answered}");
}

#[test]
fn sealed_programs_do_the_same() {
    for seed in 0..20 {
        let (program, _) = random_program(seed);
        for design in DESIGNS {
            let mut both = Both::new(&program.lower(design), Distance::OneHost, true);
            for key in [0, 1, 3, 2, 7] {
                both.request(|_| u56(key), &format!("sealed: seed {seed} {design:?}"));
            }
        }
    }
}

/// Requests of any content, of the length that an offload takes, until one is refused: by both.
#[test]
fn offloads_answer_and_refuse_as_in_the_model() {
    let (mut refused, mut answered) = (0, 0);
    for (name, program) in offloads() {
        let chain = program.lower(Design::Local);
        let length = chain.receives[0].message(0) as usize;
        for (seed, distance) in (0..10).flat_map(|seed| DISTANCES[..2].iter().map(move |distance| (seed, *distance))) {
            let mut chance = Chance(seed);
            let mut both = Both::new(&chain, distance, false);
            for _ in 0..4 {
                let mut message: Vec<u8> = (0..length).map(|_| chance.below(256) as u8).collect();
                if chance.below(2) == 0 {
                    message.iter_mut().for_each(|byte| *byte = if *byte < 40 { *byte & !7 } else { 0 });
                }
                let of = |buffer| {
                    let mut message = message.clone();
                    if length > 16 {
                        message[length - 16..].copy_from_slice(&[&to(buffer)[..], &[0; 4]].concat());
                    }
                    message
                };
                let context = format!("{name} {seed} {distance:?}");
                let (run, engine) = (&mut both.model, of(both.engine.buffer_key));
                run.model.send(run.installed.receives[0], of(run.buffer));
                assert!(run.model.run(Schedule::First, 100_000), "{context}");
                let model = run.model.take_messages(run.client);
                let got = both.engine.request(&engine);
                let is_refused = both.model.model.fault().is_some();
                assert_eq!(both.engine.entry().state == ChainState::Poisoned, is_refused, "{context}");
                assert_eq!(got.len(), model.len(), "{context}");
                if is_refused {
                    refused += 1;
                    break;
                }
                answered += got.len();
                both.compare(&context);
            }
        }
    }
    assert!(refused > 20 && answered > 100, "{refused} {answered}");
}
