//! Throughput of a connection over a lossy network, as a table that is compared exactly.
//!
//! One direction of a link carries 25 Gb/s; round trips are as long as a number of packets of 1 KB take ("in flight"). Packets are
//! lost independently and with the same probability each way. 48 messages of 8 KB are outstanding, of one kind; the ACK
//! time-out is code 14. A change of the engine that changes the table must be explained, then recorded with `cargo run -p
//! rdmesh-sim -- golden --write`.

use crate::layout::{READABLE, SLOT, TARGET};
use crate::link::LinkPlan;
use crate::model::{Check, Kind};
use crate::plan::Plan;
use crate::schedules;
use crate::world::World;
use rdmesh_verbs::Mtu;
use std::fmt::Write;

/// The table that is kept.
pub const GOLDEN: &str = include_str!("../golden/goodput.txt");

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// SEND, WRITE or READ.
    pub operation: &'static str,
    /// Packets that a round trip takes.
    pub in_flight: u64,
    /// Probability of loss.
    pub loss: f64,
    /// Gigabits of payload a second.
    pub goodput: f64,
    /// Fraction of the same cell's throughput without loss.
    pub fraction: f64,
}

/// Measures every cell.
pub fn measure() -> Check<Vec<Cell>> {
    let mut cells = Vec::new();
    for in_flight in [32, 128] {
        for operation in ["SEND", "WRITE", "READ"] {
            let mut best = None;
            for loss in [0.0, 0.001, 0.01, 0.02, 0.05] {
                let goodput = goodput(operation, in_flight, loss)?;
                let fraction = goodput / *best.get_or_insert(goodput);
                cells.push(Cell { operation, in_flight, loss, goodput, fraction });
            }
        }
    }
    Ok(cells)
}

/// The table as text.
pub fn table(cells: &[Cell]) -> String {
    let mut text = "operation  in flight   loss  goodput Gb/s  fraction\n".to_owned();
    for Cell { operation, in_flight, loss, goodput, fraction } in cells {
        let loss = loss * 100.0;
        let _ = writeln!(text, "{operation:<9}  {in_flight:>9}  {loss:>4.1}%  {goodput:>12.2}  {fraction:>8.3}");
    }
    text
}

fn goodput(operation: &str, in_flight: u64, loss: f64) -> Check<f64> {
    let delay = in_flight * PACKET * 1_000_000_000 / RATE / 2;
    let link = LinkPlan { delay, rate: RATE, loss, ..LinkPlan::default() };
    let mut plan = Plan { seed: 1, links: vec![vec![link; 2]; 2], ..schedules::plan() };
    plan.pairs[0].mtu = Mtu::B1024;
    plan.pairs[0].rd_atomic = 16;
    let kind = match operation {
        "SEND" => Kind::Send { imm: None, invalidate: None },
        "WRITE" => Kind::Write { target: SLOT + TARGET.start, imm: None },
        _ => Kind::Read { target: SLOT + READABLE.start },
    };
    let took = World::stream(plan, (kind, MESSAGE), OUTSTANDING, MESSAGES)?;
    Ok((MESSAGES as u64 * MESSAGE * 8) as f64 / took.0 as f64)
}

/// Bytes a second of one direction: 25 Gb/s.
const RATE: u64 = 3_125_000_000;
/// Bytes of a full packet on the link: 1024 of payload, and all headers.
const PACKET: u64 = 1024 + 118;
const MESSAGE: u64 = 8192;
const OUTSTANDING: usize = 48;
const MESSAGES: usize = 2000;
