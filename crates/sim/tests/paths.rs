//! Test of the golden table: throughput over several paths.

use rdmesh_sim::paths::{Cell, GOLDEN, Paths, measure, table};

fn measured() -> Vec<Cell> {
    measure().unwrap_or_else(|violation| panic!("{violation}"))
}

#[test]
fn goodput_over_several_paths_is_what_it_was() {
    let table = table(&measured());
    assert!(table == GOLDEN, "the table has changed; see crates/sim/src/paths.rs:\n{table}\nwas:\n{GOLDEN}");
}

/// Eight equal paths carry nearly eight times what one does, and paths that are dead, slow or longer cost no more than themselves
/// and a tenth.
#[test]
fn a_connection_uses_all_paths_that_are_worth_it() {
    let cells = measured();
    for operation in ["SEND", "WRITE"] {
        let goodput = |paths, lanes| {
            let cell = cells.iter().find(|c| (c.operation, c.paths, c.lanes) == (operation, paths, lanes));
            cell.expect("a cell").goodput
        };
        let all = goodput(Paths::Equal, 8);
        assert!(all > 7.5 * goodput(Paths::Equal, 1), "{operation}");
        for (paths, useful) in [
            (Paths::OneDead, 7.0),
            (Paths::OneDeadOneSlow, 6.0),
            (Paths::OneLonger, 7.0),
            (Paths::OneMuchLonger, 7.0),
            (Paths::Lossy, 8.0),
        ] {
            let least = 0.9 * useful / 8.0 * all;
            assert!(goodput(paths, 8) > least, "{operation} {paths:?}: {} of {least}", goodput(paths, 8));
        }
    }
}

/// What overtakes on another path is not taken for loss.
#[test]
fn unequal_paths_without_loss_cause_no_retransmission() {
    let whole = [Paths::Equal, Paths::OneLonger, Paths::OneMuchLonger];
    for cell in measured().iter().filter(|cell| whole.contains(&cell.paths)) {
        assert!(cell.repeated < 0.01, "{cell:?}");
    }
}
