//! The paper's costs, by the model's counters.

mod common;

use common::*;
use rdmesh_chain::build::{Design, Program, copy};
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
