//! Constructs give what they say, in both designs, however slots are fetched.

mod common;

use common::*;
use rdmesh_chain::build::{Condition, Design, Program, U56, copy, send_imm};
use rdmesh_chain::program::Span;
use rdmesh_verbs::chain::Control;

#[test]
fn if_else_answers_every_request() {
    for (fetch, schedule) in every_way() {
        for design in DESIGNS {
            let (program, x) = if_else();
            let chain = program.lower(design);
            let mut run = Run::new(chain, fetch, schedule, |model, installed| {
                model.bytes_mut(installed.regions[x.number()]).copy_from_slice(&7_u64.to_le_bytes());
            });
            assert_eq!(run.settle(), vec![]);
            for key in [7, 8, 7, 7, 0, Control::MAX_OPERAND, 6] {
                let replies: Vec<_> = run.request(&u56(key)).into_iter().map(|m| m.imm).collect();
                assert_eq!(
                    replies,
                    [Some(if key == 7 { HIT } else { MISS })],
                    "{key} {design:?} {fetch:?} {schedule:?}"
                );
            }
        }
    }
}

/// Compares two operands at the ends of their range and one bit apart.
#[test]
fn comparisons_hold_at_the_boundaries() {
    let values = [0, 1, 2, 1 << 55, (1 << 55) + 1, Control::MAX_OPERAND - 1, Control::MAX_OPERAND];
    type Test = (fn(Span, rdmesh_chain::build::Arg<U56>) -> Condition, fn(&u64, &u64) -> bool);
    let tests: [Test; 6] = [
        (|a, b| a.eq(b), |a, b| a == b),
        (|a, b| a.ne(b), |a, b| a != b),
        (|a, b| a.le(b), |a, b| a <= b),
        (|a, b| a.ge(b), |a, b| a >= b),
        (|a, b| a.lt(b), |a, b| a < b),
        (|a, b| a.gt(b), |a, b| a > b),
    ];
    for (number, (condition, expected)) in tests.into_iter().enumerate() {
        for design in DESIGNS {
            let mut p = Program::new("compare");
            let x = p.table("x", 8);
            let y = p.arg::<U56>("y");
            let yes = p.declare("yes", send_imm(HIT));
            let no = p.declare("no", send_imm(MISS));
            p.on_request();
            p.read(x.at(0)).into([yes.operand()]);
            p.when(condition(yes.operand(), y)).run(yes).otherwise(no).done();
            p.rearm();
            let chain = p.lower(design);
            for (fetch, schedule) in every_way().take(6) {
                let mut run = Run::new(chain.clone(), fetch, schedule, |_, _| ());
                for (a, b) in values.iter().flat_map(|a| values.iter().map(move |b| (a, b))) {
                    let key = run.installed.regions[x.number()];
                    run.model.bytes_mut(key).copy_from_slice(&a.to_le_bytes());
                    let replies: Vec<_> = run.request(&u56(*b)).into_iter().map(|m| m.imm).collect();
                    let reply = if expected(a, b) { HIT } else { MISS };
                    assert_eq!(replies, [Some(reply)], "test {number}: {a:#x} {b:#x} {design:?}");
                }
            }
        }
    }
}

#[test]
fn hash_get_answers_hits_and_misses() {
    for design in DESIGNS {
        let (program, table, values) = hash_get(2);
        let chain = program.lower(design);
        for (fetch, schedule) in every_way() {
            let mut run = Run::new(chain.clone(), fetch, schedule, |model, installed| {
                for bucket in 0..16_u64 {
                    let (at, length, key) = (bucket * 10, bucket as u32 + 1, 1000 + bucket);
                    let bytes = [&at.to_le_bytes()[..], &length.to_le_bytes(), &[9; 4], &key.to_le_bytes()].concat();
                    let start = bucket as usize * BUCKET;
                    model.bytes_mut(installed.regions[table.number()])[start..start + BUCKET].copy_from_slice(&bytes);
                }
                let values = model.bytes_mut(installed.regions[values.number()]);
                values.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
            });
            for (key, found) in
                [(1003_u64, Some(3)), (1004, Some(4)), (1005, None), (0, None), (1003, Some(3)), (1004, Some(4))]
            {
                let offsets = [3 * BUCKET as u64, 4 * BUCKET as u64].map(u64::to_le_bytes).concat();
                let request = [&u56(key)[..], &offsets, &to(run.buffer), &77_u32.to_le_bytes()].concat();
                let replies = run.request(&request);
                let expected = match found {
                    Some(bucket) => (Some(77), (bucket * 10..bucket * 10 + bucket + 1).collect()),
                    None => (Some(MISS), vec![]),
                };
                let replies: Vec<_> = replies.into_iter().map(|m| (m.imm, m.data)).collect();
                assert_eq!(replies, [expected], "{key} {design:?} {fetch:?} {schedule:?}");
            }
        }
    }
}

#[test]
fn a_list_walk_stops_where_it_finds() {
    for design in DESIGNS {
        let (program, list, values) = list_walk();
        let chain = program.lower(design);
        for (fetch, schedule) in every_way() {
            let mut run = Run::new(chain.clone(), fetch, schedule, |model, installed| {
                // Node n leads to n + 1; the values are their own numbers.
                for node in 0..8_usize {
                    let next = ((node + 1) * NODE) as u64;
                    let (value, length, key) = (node as u64, 1_u32, 100 + node as u64);
                    let bytes = [
                        &next.to_le_bytes()[..],
                        &value.to_le_bytes(),
                        &length.to_le_bytes(),
                        &[0; 4],
                        &key.to_le_bytes(),
                    ]
                    .concat();
                    let region = model.bytes_mut(installed.regions[list.number()]);
                    region[node * NODE..][..NODE].copy_from_slice(&bytes);
                }
                model
                    .bytes_mut(installed.regions[values.number()])
                    .iter_mut()
                    .enumerate()
                    .for_each(|(at, b)| *b = at as u8);
            });
            for key in [100_u64, 107, 103, 103, 100] {
                let request = [&u56(key)[..], &0_u64.to_le_bytes(), &to(run.buffer)].concat();
                let replies: Vec<_> = run.request(&request).into_iter().map(|m| (m.imm, m.data)).collect();
                assert_eq!(replies, [(Some(HIT), vec![(key - 100) as u8])], "{key} {design:?} {fetch:?} {schedule:?}");
            }
        }
    }
}

/// `while A[i] != key: i++`, unrolled, ending with the reply; its iterations after the hit do not run.
#[test]
fn an_unrolled_loop_breaks() {
    for (fetch, schedule) in every_way() {
        for design in DESIGNS {
            for position in 0..4 {
                let mut p = Program::new("find");
                let a = p.table("a", 32);
                let count = p.scratch("count", 8);
                let hits: Vec<_> = (0..4).map(|i| p.declare(format!("found{i}"), send_imm(i))).collect();
                for (i, hit) in (0..4).zip(hits) {
                    p.read(a.at(8 * i)).into([hit.operand()]);
                    p.add(count.span(0, 8), 1);
                    p.when(hit.operand().eq(5)).stop_with(hit).done();
                }
                let mut run = Run::new(p.lower(design), fetch, schedule, |model, installed| {
                    model.bytes_mut(installed.regions[a.number()])[8 * position] = 5;
                });
                let model = &mut run;
                let replies: Vec<_> = model.settle().into_iter().map(|m| m.imm).collect();
                assert_eq!(replies, [Some(position as u32)], "{design:?} {fetch:?} {schedule:?}");
                assert_eq!(run.word(count, 0), position as u64 + 1, "{design:?}");
            }
        }
    }
}

/// Rule 110 on a row of cells, as a chain.
fn rule_110(cells: u64, design: Design) -> (rdmesh_chain::program::Chain, rdmesh_chain::build::Memory) {
    let mut p = Program::new("rule110");
    // Each cell is a word; the row has a dead cell at either end. The second row is the next generation.
    let row = p.scratch("row", 8 * (cells + 2));
    let next = p.scratch("next", 8 * (cells + 2));
    let one = p.constant("one", &1_u64.to_le_bytes());
    let sum = p.scratch("sum", 8);
    let zero = p.constant("zero", &[0; 8]);
    for cell in 1..=cells {
        // 4 * left + 2 * middle + right, in the sum.
        p.copy(sum.span(0, 8), zero.span(0, 8));
        for (offset, weight) in [(cell - 1, 4), (cell, 2), (cell + 1, 1)] {
            let plus = p.declare(format!("plus{cell}.{weight}"), rdmesh_chain::build::add(sum.span(0, 8), weight));
            p.read(row.at(8 * offset)).into([plus.operand()]);
            p.when(plus.operand().eq(1)).run(plus).done();
        }
        p.copy(next.span(8 * cell, 8), zero.span(0, 8));
        for pattern in [1, 2, 3, 5, 6] {
            let set = p.declare(format!("set{cell}.{pattern}"), copy(next.span(8 * cell, 8), one.span(0, 8)));
            p.copy(set.operand(), sum.span(0, 7));
            p.when(set.operand().eq(pattern)).run(set).done();
        }
    }
    for cell in 1..=cells {
        p.copy(row.span(8 * cell, 8), next.span(8 * cell, 8));
    }
    (p.lower(design), row)
}

#[test]
fn a_chain_computes_rule_110() {
    const CELLS: usize = 6;
    for design in DESIGNS {
        let (chain, row) = rule_110(CELLS as u64, design);
        for (fetch, schedule) in every_way().take(5) {
            for start in [0b00_0001_u8, 0b10_1101, 0b11_1111, 0b01_0110, 0] {
                let cells: Vec<u64> = (0..CELLS).map(|cell| u64::from(start >> cell & 1)).collect();
                let mut run = Run::new(chain.clone(), fetch, schedule, |model, installed| {
                    let bytes = model.bytes_mut(installed.regions[row.number()]);
                    for (cell, value) in cells.iter().enumerate() {
                        bytes[8 * (cell + 1)] = *value as u8;
                    }
                });
                run.settle();
                let alive = |cell: i64| usize::try_from(cell).ok().and_then(|c| cells.get(c)).copied().unwrap_or(0);
                for cell in 0..CELLS as i64 {
                    let pattern = 4 * alive(cell - 1) + 2 * alive(cell) + alive(cell + 1);
                    let expected = 110 >> pattern & 1;
                    assert_eq!(
                        run.word(row, 8 * (cell as usize + 1)),
                        expected,
                        "cell {cell} of {start:#b} {design:?}"
                    );
                }
            }
        }
    }
}
