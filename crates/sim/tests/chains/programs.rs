//! Random programs, by a seed.

use rdmesh_chain::build::{Memory, Program, U56, add, copy, send_imm};

const WORDS: u64 = 6;

/// Source of small numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// A program of a few steps on a few words, by a seed.
pub fn random_program(seed: u64) -> (Program, Memory) {
    let mut chance = Numbers(seed);
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
