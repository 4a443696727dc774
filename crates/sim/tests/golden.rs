//! Test of the golden table: throughput under loss.

use rdmesh_sim::golden::{Bottleneck, Cell, GOLDEN, NEAR, bottleneck, measure, table};
use std::sync::OnceLock;

fn measured() -> &'static [Cell] {
    static CELLS: OnceLock<Vec<Cell>> = OnceLock::new();
    CELLS.get_or_init(|| match measure() {
        Ok(cells) => cells,
        Err(violation) => panic!("{violation}"),
    })
}

#[test]
fn goodput_under_loss_is_what_it_was() {
    let table = table(measured());
    assert!(table == GOLDEN, "the table has changed; see crates/sim/src/golden.rs:\n{table}\nwas:\n{GOLDEN}");
}

/// Where only what is lost is sent again, nearly all is kept but what is lost itself. A READ waits for its request too, and for
/// its answer again.
#[test]
fn native_goodput_under_loss_is_nearly_all() {
    for (loss, most, least) in [(0.001, 0.995, 0.99), (0.01, 0.975, 0.975), (0.05, 0.92, 0.88)] {
        for cell in measured().iter().filter(|cell| cell.is_native && cell.loss == loss) {
            let expected = if cell.operation == "READ" { least } else { most };
            assert!(cell.fraction >= expected, "{cell:?}, expected {expected}");
        }
    }
}

/// Go-back-N with 128 packets in flight: (1-p)/(1-p+128p), simulated with lost acknowledgements. Without loss more may be in
/// flight, so that the whole that the fractions are of is a little larger. More data of READs is in flight, which costs more.
#[test]
fn goodput_outside_is_that_of_go_back_n() {
    for (loss, expected) in [(0.001, 0.88), (0.01, 0.42), (0.05, 0.10)] {
        let outside = measured().iter().filter(|cell| !cell.is_native && cell.operation != "READ");
        for cell in outside.filter(|cell| cell.network == NEAR && cell.loss == loss) {
            assert!(cell.fraction > 0.9 * expected, "{cell:?}, expected {expected}");
        }
    }
}

/// The link carries at least three quarters of its rate, and its full queue drops at most 12 % of the packets.
#[test]
fn a_short_queue_is_not_kept_full() {
    for queue in [16 << 10, 64 << 10, 256 << 10] {
        let measured @ Bottleneck { used, dropped, .. } =
            bottleneck(queue).unwrap_or_else(|violation| panic!("{violation}"));
        println!("{measured:?}");
        assert!(used > 0.75 && dropped < 0.12, "{measured:?}");
    }
}
