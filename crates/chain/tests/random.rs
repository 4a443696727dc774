//! Random programs: verified in both designs, and the same memory and replies however they run.

mod common;

use common::*;
use rdmesh_chain::build::{Design, Memory, Program, U56, add, copy, send_imm};
use rdmesh_chain::program::Chain;
use rdmesh_chain::verify::verify;

const WORDS: u64 = 6;

fn program(seed: u64) -> (Program, Memory) {
    let mut chance = Chance(seed);
    let mut p = Program::new("random");
    let data = p.scratch("data", 8 * WORDS);
    let key = p.arg::<U56>("key");
    let word = |n: u64| data.span(8 * n, 8);
    p.on_request();
    for step in 0..2 + chance.below(5) {
        let (a, b) = (chance.below(WORDS), chance.below(WORDS));
        match chance.below(6) {
            0 => {
                p.add(word(a), step + 1);
            }
            1 if a != b => {
                p.copy(word(a), word(b));
            }
            2 => {
                p.max(word(a), step);
            }
            3 => {
                p.cas(word(a), step, step + 2);
            }
            _ => {
                let target = match chance.below(3) {
                    0 => p.declare(format!("target{step}"), send_imm(step as u32)),
                    1 => p.declare(format!("target{step}"), add(word(b), 3)),
                    _ => p.declare(format!("target{step}"), copy(word(b), word((b + 1) % WORDS))),
                };
                p.read(data.at(8 * a)).into([target.operand()]);
                let operand = target.operand();
                let condition = match chance.below(4) {
                    0 => operand.eq(chance.below(4)),
                    1 => operand.eq(key),
                    2 => operand.le(key),
                    _ => operand.gt(key),
                };
                match chance.below(2) {
                    0 => p.when(condition).run(target).done(),
                    _ => p.when(condition).otherwise(target).done(),
                }
            }
        }
    }
    p.rearm();
    (p, data)
}

/// What requests with these keys leave behind.
fn outcome(
    chain: &Chain,
    data: Memory,
    way: (rdmesh_chain::model::Fetch, rdmesh_chain::model::Schedule),
) -> (Vec<u8>, Vec<Option<u32>>) {
    let mut run = Run::new(chain.clone(), way.0, way.1, |_, _| ());
    let replies = [0, 1, 3, 2, 7].into_iter().flat_map(|key| run.request(&u56(key))).map(|m| m.imm).collect();
    (run.model.bytes(run.installed.regions[data.number()]).to_vec(), replies)
}

#[test]
fn local_and_portable_chains_do_the_same() {
    let mut answered = 0;
    for seed in 0..50 {
        let (program, data) = program(seed);
        let chains = [Design::Local, Design::Portable].map(|design| program.lower(design));
        let mut expected = None;
        for chain in &chains {
            assert_eq!(verify(chain), Ok(()), "seed {seed}\n{chain}");
            for way in every_way().take(12) {
                let got = outcome(chain, data, way);
                answered += got.1.len();
                let expected = expected.get_or_insert_with(|| got.clone());
                assert_eq!(&got, expected, "seed {seed} {way:?}\n{chain}");
            }
        }
    }
    assert!(answered > 300, "{answered}");
}
