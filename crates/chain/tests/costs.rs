//! The paper's costs, by the model's counters.

mod common;

use common::*;
use rdmesh_chain::build::{Design, Program, copy, send_imm};
use rdmesh_chain::model::{Counts, Fetch, Schedule};

/// `if x == 5: y = 1`, so often.
fn ifs(count: u64) -> (Program, rdmesh_chain::build::Memory) {
    let mut p = Program::new("ifs");
    let one = p.constant("one", &1_u64.to_le_bytes());
    let y = p.scratch("y", 8 * count);
    p.on_request();
    for i in 0..count {
        let set = p.declare(format!("set{i}"), copy(y.span(8 * i, 8), one.span(0, 8)));
        p.when(set.operand().eq(0)).run(set).done();
    }
    (p, y)
}

fn counts(count: u64, design: Design) -> (u64, u64, u64) {
    let (program, y) = ifs(count);
    let mut run = Run::new(program.lower(design), Fetch::Earliest, Schedule::First, |_, _| ());
    run.request(&[]);
    assert!((0..count as usize).all(|i| run.word(y, 8 * i) == 1), "{design:?}");
    let Counts { copies, atomics, orders, .. } = run.model.counts();
    let cost = run.chain.cost();
    assert_eq!(
        (copies, atomics, orders),
        (cost.copies, cost.atomics, cost.orders),
        "the report tells what is executed"
    );
    (copies, atomics, orders)
}

#[test]
fn an_if_costs_what_the_paper_says() {
    assert_eq!(counts(1, Design::Portable), (1, 1, 3));
    assert_eq!(counts(1, Design::Local), (1, 1, 1));
}

#[test]
fn an_unrolled_iteration_costs_no_more_than_an_if() {
    for (count, design) in [(2, Design::Portable), (8, Design::Portable), (8, Design::Local)] {
        let (copies, atomics, orders) = counts(count, design);
        assert_eq!((copies, atomics), (count, count));
        assert!(orders <= 3 * count, "{orders} for {count}");
    }
}

#[test]
fn a_recycled_lap_costs_no_more_than_the_papers() {
    for (design, most) in [(Design::Portable, (3, 2, 4)), (Design::Local, (2, 1, 2))] {
        let (mut program, _) = ifs(1);
        program.rearm();
        let mut run = Run::new(program.lower(design), Fetch::Earliest, Schedule::First, |_, _| ());
        run.request(&[]);
        let before = run.model.counts();
        for _ in 0..10 {
            run.request(&[]);
        }
        let after = run.model.counts();
        let lap = (
            (after.copies - before.copies) / 10,
            (after.atomics - before.atomics) / 10,
            // The receive request for the next call is no part of the loop.
            (after.orders - before.orders) / 10 - 1,
        );
        assert!(lap.0 <= most.0 && lap.1 <= most.1 && lap.2 <= most.2, "{lap:?} {design:?}");
    }
}

/// Counts of all that a program without a client's request executes, but for the WAIT that the paper counts.
fn executed(design: Design, make: impl Fn(&mut Program)) -> (u64, u64, u64) {
    let mut p = Program::new("cost");
    p.on_request();
    make(&mut p);
    let mut run = Run::new(p.lower(design), Fetch::Earliest, Schedule::First, |_, _| ());
    run.request(&[]);
    let Counts { copies, atomics, orders, .. } = run.model.counts();
    (copies, atomics, orders)
}

#[test]
fn an_else_costs_one_copy_and_one_atomic_more() {
    let if_else = |p: &mut Program| {
        let (yes, no) = (p.declare("yes", send_imm(1)), p.declare("no", send_imm(0)));
        p.when(yes.operand().eq(0)).run(yes).otherwise(no).in_place().done();
    };
    assert_eq!(executed(Design::Portable, if_else), (2, 2, 3));
    assert_eq!(executed(Design::Local, if_else), (2, 2, 1));
}

#[test]
fn comparisons_cost_one_calculation_more() {
    let at_most = |p: &mut Program| {
        let yes = p.declare("yes", send_imm(1));
        p.when(yes.operand().le(5)).run(yes).done();
    };
    assert_eq!(executed(Design::Portable, at_most), (1, 2, 3));
    assert_eq!(executed(Design::Local, at_most), (1, 2, 1));
}

/// `while x != 5`, unrolled: each iteration waits for the one before, which does not complete if it was the last.
#[test]
fn an_iteration_that_may_break_costs_what_an_if_does() {
    for (design, expected) in [(Design::Portable, (1, 1, 3)), (Design::Local, (1, 1, 1))] {
        let cost = |iterations: u32| {
            executed(design, |p| {
                for n in 0..iterations {
                    let hit = p.declare(format!("hit{n}"), send_imm(n));
                    p.when(hit.operand().eq(5)).stop_with(hit).done();
                }
            })
        };
        let (seven, eight) = (cost(7), cost(8));
        let one = (eight.0 - seven.0, eight.1 - seven.1, eight.2 - seven.2);
        assert_eq!(one, expected, "{design:?}");
    }
}
