//! Test of the golden table: connections that share a link.

use rdmesh_sim::sharing::{Cell, Control, GOLDEN, measure, table};

#[test]
fn shares_of_a_link_are_what_they_were() {
    let cells = measure().unwrap_or_else(|violation| panic!("{violation}"));
    let table = table(&cells);
    assert!(table == GOLDEN, "the table has changed; see crates/sim/src/sharing.rs:\n{table}\nwas:\n{GOLDEN}");
    hpcc_keeps_queues_short(&cells);
}

/// With the rate of the link known, up to 64 connections use all but what HPCC leaves free, their packets wait for little, and their
/// shares are within what 20 ms make equal.
fn hpcc_keeps_queues_short(cells: &[Cell]) {
    let of = |control: Control| cells.iter().filter(move |cell| cell.control == control);
    for cell in of(Control::HpccSwitch) {
        let Cell { used, fairness, long_wait, dropped, .. } = *cell;
        assert!(used > 0.9 * MOST && fairness > 0.8, "{cell:?}");
        assert!(long_wait < 30.0 && dropped == 0.0, "{cell:?}");
    }
    for cell in of(Control::HpccRouter) {
        assert!(cell.long_wait < 50.0 && cell.dropped == 0.0, "{cell:?}");
    }
    // What it is compared with: queues as long as the switch allows, and losses.
    assert!(of(Control::Window).any(|cell| cell.long_wait > 1600.0 && cell.dropped > 0.01));
}

/// Share of the link's rate that is payload, where all of it is used.
const MOST: f64 = 0.881;
