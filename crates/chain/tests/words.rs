//! Conditions on more than one word of 56 bits, on several values, and on pointers.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use rdmesh_chain::build::{Design, Program, U56, U120, Value, send_imm, test};
use rdmesh_chain::model::{Counts, Fetch, Schedule};
use rdmesh_chain::program::Chain;
use rdmesh_verbs::chain::Control;

const TOP: u64 = Control::MAX_OPERAND;
/// Words of 56 bits at the ends of their range, and one bit apart.
const WORDS: [u64; 5] = [0, 1, 1 << 55, TOP - 1, TOP];

/// Answers whether the words in the table are the client's.
fn same_words(count: usize, design: Design) -> Chain {
    let mut p = Program::new("words");
    let x = p.table("x", 8 * count as u64);
    let waste = p.scratch("waste", count as u64);
    let keys: Vec<_> = (0..count).map(|n| p.arg::<U56>(&format!("key{n}"))).collect();
    let (yes, no) = (p.declare("yes", send_imm(HIT)), p.declare("no", send_imm(MISS)));
    let tests: Vec<_> = (1..count).map(|n| p.declare(format!("word{n}"), test())).collect();
    p.on_request();
    let operands: Vec<rdmesh_chain::program::Span> =
        tests.iter().map(|test| test.operand()).chain([yes.operand()]).collect();
    let spans = operands.iter().enumerate().flat_map(|(n, word)| [*word, waste.span(n as u64, 1)]);
    p.read(x.at(0)).into(spans);
    let all = operands.into_iter().zip(keys).map(|(word, key)| word.eq(key));
    let condition = all.reduce(|all, one| all.and(one)).unwrap();
    p.when(condition).run(yes).otherwise(no).done();
    p.rearm();
    p.build(design).unwrap_or_else(|refusal| panic!("{refusal}\n{}", p.lower(design)))
}

fn fill(run: &mut Run, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let table = run.installed.regions[0];
    run.model.bytes_mut(table)[..bytes.len()].copy_from_slice(&bytes);
}

fn imms(run: &mut Run, arguments: &[u8]) -> Vec<Option<u32>> {
    run.request(arguments).into_iter().map(|message| message.imm).collect()
}

#[test]
fn words_are_the_same_only_if_all_are() {
    for design in DESIGNS {
        for count in [2, 3] {
            let chain = same_words(count, design);
            for (fetch, schedule) in every_way().take(6) {
                let mut run = Run::new(chain.clone(), fetch, schedule, |_, _| ());
                for word in WORDS {
                    let mut words = vec![word; count];
                    words[0] ^= 3 << 20;
                    fill(&mut run, &words);
                    let request: Vec<u8> = words.iter().flat_map(|word| u56(*word)).collect();
                    assert_eq!(imms(&mut run, &request), [Some(HIT)], "{design:?}");
                    for bit in 0..request.len() * 8 {
                        if bit % 13 != 0 && bit % 56 != 55 {
                            continue;
                        }
                        let mut other = request.clone();
                        other[bit / 8] ^= 1 << (bit % 8);
                        assert_eq!(imms(&mut run, &other), [Some(MISS)], "bit {bit} {design:?} {fetch:?} {schedule:?}");
                    }
                }
            }
        }
    }
}

/// Answers whether 120 bits in the table are the client's.
fn same_120_bits(design: Design) -> Chain {
    let mut p = Program::new("wide");
    let x = p.table("x", 16);
    let key = p.arg::<U120>("key");
    let (yes, no) = (p.declare("yes", send_imm(HIT)), p.declare("no", send_imm(MISS)));
    p.on_request();
    p.read(x.at(0)).into([yes.wide_operand()]);
    p.when(yes.wide_operand().eq(key)).run(yes).otherwise(no).done();
    p.rearm();
    p.build(design).unwrap_or_else(|refusal| panic!("{refusal}\n{}", p.lower(design)))
}

#[test]
fn a_wide_comparison_sees_each_of_120_bits() {
    for design in DESIGNS {
        let chain = same_120_bits(design);
        for (fetch, schedule) in every_way().take(6) {
            let mut run = Run::new(chain.clone(), fetch, schedule, |_, _| ());
            for words in [[0, 0], [u64::MAX, TOP], [1, 1 << 55]] {
                fill(&mut run, &words);
                let key = [&words[0].to_le_bytes()[..], &u56(words[1])].concat();
                assert_eq!(imms(&mut run, &key), [Some(HIT)], "{design:?}");
                for bit in (0..120).step_by(7).chain([63, 64, 119]) {
                    let mut other = key.clone();
                    other[bit / 8] ^= 1 << (bit % 8);
                    assert_eq!(imms(&mut run, &other), [Some(MISS)], "bit {bit} {design:?} {fetch:?}");
                }
            }
        }
    }
}

/// `if first == 1 and ... and last == 1: y = 1`, with its operands in place.
fn cost_of(words: usize, is_wide: bool, design: Design) -> (u64, u64, u64) {
    let mut p = Program::new("cost");
    let yes = p.declare("yes", send_imm(HIT));
    let tests: Vec<_> = (1..words).map(|n| p.declare(format!("word{n}"), test())).collect();
    p.on_request();
    let operands = tests.iter().map(|test| test.operand()).chain([yes.operand()]);
    let condition = operands.map(|word| word.eq(0)).reduce(|all, one| all.and(one)).unwrap();
    let wide = yes.wide_operand().eq(Value::Constant(0));
    p.when(if is_wide { wide } else { condition }).run(yes).done();
    let mut run = Run::new(p.build(design).unwrap(), Fetch::Earliest, Schedule::First, |_, _| ());
    assert_eq!(imms(&mut run, &[]), [Some(HIT)]);
    let Counts { copies, atomics, orders, .. } = run.model.counts();
    (copies, atomics, orders)
}

#[test]
fn k_words_cost_k_compare_swaps_and_120_bits_cost_one() {
    for k in 1..=4 {
        assert_eq!(cost_of(k, false, Design::Portable), (1, k as u64, 2 * k as u64 + 1));
        assert_eq!(cost_of(k, false, Design::Local), (1, k as u64, 1));
    }
    assert_eq!(cost_of(1, true, Design::Portable), (1, 1, 3));
    assert_eq!(cost_of(1, true, Design::Local), (1, 1, 1));
}

/// All mixtures of comparisons, against their meaning.
#[test]
fn conditions_are_what_they_say() {
    type Test = fn(u64, u64, u64) -> bool;
    let tests: [Test; 6] = [
        |a, b, y| a == y && b != 1,
        |a, b, y| a != y && b == 1,
        |a, b, y| a >= y && b < 1,
        |a, b, y| (a == y || a == 0) && b == 1,
        |a, b, _| a == 0 && b > 0,
        |a, b, y| a > y && b <= 1,
    ];
    for (number, test) in tests.into_iter().enumerate() {
        for design in DESIGNS {
            let mut p = Program::new("mixed");
            let (x, waste) = (p.table("x", 16), p.scratch("waste", 2));
            let y = p.arg::<U56>("y");
            let (yes, no) = (p.declare("yes", send_imm(HIT)), p.declare("no", send_imm(MISS)));
            let last = p.declare("last", send_imm(MISS + 1));
            p.on_request();
            p.read(x.at(0)).into([yes.operand(), waste.span(0, 1), no.operand(), waste.span(1, 1)]);
            let (a, b) = (yes.operand(), no.operand());
            let condition = match number {
                0 => a.eq(y).and(b.ne(1)),
                1 => a.ne(y).and(b.eq(1)),
                2 => a.ge(y).and(b.lt(1)),
                3 => a.one_of([y.into(), 0.into()]).and(b.eq(1)),
                4 => a.is_null().and(b.gt(0)),
                _ => a.gt(y).and(b.le(1)),
            };
            p.when(condition).cancel(last).run(yes).otherwise(no).done();
            p.place(last).rearm();
            let chain = p.build(design).unwrap_or_else(|refusal| panic!("{number} {refusal}\n{}", p.lower(design)));
            for (fetch, schedule) in every_way().take(4) {
                let mut run = Run::new(chain.clone(), fetch, schedule, |_, _| ());
                for n in 0..27 {
                    let (a, b, y) = (n % 3, n / 3 % 3, n / 9);
                    fill(&mut run, &[a, b]);
                    let expected: &[Option<u32>] =
                        if test(a, b, y) { &[Some(HIT)] } else { &[Some(MISS), Some(MISS + 1)] };
                    assert_eq!(imms(&mut run, &u56(y)), expected, "test {number}: {a} {b} {y} {design:?}\n{chain}");
                }
            }
        }
    }
}

/// A request that several conditions cancel stays cancelled, whatever a later one calculates on its control word.
#[test]
fn what_is_cancelled_stays_so() {
    for design in DESIGNS {
        let mut p = Program::new("cancel");
        let (first, second) = (p.arg::<U56>("first"), p.arg::<U56>("second"));
        let x = p.table("x", 8);
        let none = p.declare("none", send_imm(MISS));
        let word = p.scratch("word", 8);
        p.on_request();
        p.read(x.at(0)).into([word.span(0, 8)]);
        p.when(word.span(0, 7).ge(first)).cancel(none).done();
        p.when(word.span(0, 7).ge(second)).cancel(none).done();
        p.when(word.span(0, 7).ne(first)).cancel(none).done();
        p.place(none).rearm();
        let chain = p.build(design).unwrap_or_else(|refusal| panic!("{refusal}\n{}", p.lower(design)));
        let mut run = Run::new(chain, Fetch::Earliest, Schedule::First, |_, _| ());
        fill(&mut run, &[5]);
        for (first, second) in [(4, 4), (4, 6), (6, 4), (6, 6), (5, 5), (5, 6)] {
            let expected: &[Option<u32>] = if first <= 5 || second <= 5 || first != 5 { &[] } else { &[Some(MISS)] };
            assert_eq!(imms(&mut run, &[u56(first), u56(second)].concat()), expected, "{first} {second} {design:?}");
        }
    }
}

#[test]
fn refusals_of_conditions_name_the_request() {
    let mut p = Program::new("wrong");
    let hit = p.declare("hit", send_imm(HIT));
    p.on_request();
    p.when(hit.wide_operand().le(0)).run(hit).done();
    let refusal = p.build(Design::Local).unwrap_err().to_string();
    assert!(refusal.contains("`hit` depends on the order of 120 bits; compare 56 bits"), "{refusal}");
    let mut p = Program::new("wrong");
    let (hit, other) = (p.declare("hit", send_imm(HIT)), p.declare("other", send_imm(HIT)));
    p.on_request();
    p.when(hit.operand().ne(1).and(other.operand().lt(3))).run(hit).done();
    let refusal = p.build(Design::Local).unwrap_err().to_string();
    assert!(refusal.contains("`hit` depends on two comparisons that are negated"), "{refusal}");
}
