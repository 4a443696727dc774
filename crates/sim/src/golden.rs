//! Throughput of a connection over a lossy network, as a table that is compared exactly.
//!
//! Between two routers only what is lost is sent again ("native"); external peers go back to the first packet lost ("RoCEv2").
//! Packets of 1 KB are lost independently and with the same probability each way. 48 messages of 24 KB are outstanding, of one
//! kind; for SENDs there are 10 receive buffers. The ACK time-out is code 14. A change of the engine that changes the table must be
//! explained, then recorded with `cargo run -p rdmesh-sim -- golden --write`.

use crate::layout::{READABLE, SLOT, TARGET};
use crate::link::LinkPlan;
use crate::model::{Check, Kind};
use crate::plan::{MESSAGE, Plan};
use crate::schedules;
use crate::world::{RequestStream, Streamed, World};
use rdmesh_verbs::Mtu;
use std::fmt::Write;

/// The table that is kept.
pub const GOLDEN: &str = include_str!("../golden/goodput.txt");

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Whether both ends are rdmesh routers.
    pub is_native: bool,
    /// SEND, WRITE or READ.
    pub operation: &'static str,
    /// Rate and round trip: [`NEAR`] or [`FAR`].
    pub network: Network,
    /// Probability of loss.
    pub loss: f64,
    /// Gigabits of payload a second.
    pub goodput: f64,
    /// Fraction of the same cell's throughput without loss.
    pub fraction: f64,
}

/// A network between two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// Bytes a second of one direction.
    rate: u64,
    /// Nanoseconds of a round trip.
    round_trip: u64,
}

/// Within a data centre: 25 Gb/s, 50 µs, so that 137 packets are on their way at once.
pub const NEAR: Network = Network { rate: 3_125_000_000, round_trip: 50_000 };
/// Between regions: 1 Gb/s, 2 ms, so that 219 packets are on their way at once.
pub const FAR: Network = Network { rate: 125_000_000, round_trip: 2_000_000 };

/// Measures every cell.
pub fn measure() -> Check<Vec<Cell>> {
    let mut cells = Vec::new();
    for is_native in [true, false] {
        for network in [NEAR, FAR] {
            for operation in ["SEND", "WRITE", "READ"] {
                let mut best = None;
                for loss in [0.0, 0.001, 0.01, 0.05] {
                    let goodput = goodput(is_native, operation, network, loss)?;
                    let fraction = goodput / *best.get_or_insert(goodput);
                    cells.push(Cell { is_native, operation, network, loss, goodput, fraction });
                }
            }
        }
    }
    Ok(cells)
}

/// A stream of WRITEs through a queue that drops what does not fit.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// Bytes of the queue.
    pub queue: u64,
    /// Fraction of the link's rate that is payload.
    pub used: f64,
    /// Fraction of the packets that are dropped.
    pub dropped: f64,
}

/// Measures a link of 1 Gb/s with a round trip of 200 µs and a tail-drop queue: its full queue delays packets so little that only the
/// share of lost packets tells of congestion.
pub fn bottleneck(queue: u64) -> Check<Bottleneck> {
    let link = LinkPlan { delay: 100_000, rate: FAR.rate, queue, ..LinkPlan::default() };
    let mut plan = Plan { seed: 1, links: vec![vec![link; 2]; 2], ..schedules::plan() };
    plan.pairs[0].mtu = Mtu::B1024;
    let messages = (BYTES[0] / MESSAGE) as usize;
    let kind = Kind::Write { target: SLOT + TARGET.start, imm: None };
    let Streamed { took, sent, dropped, .. } =
        World::stream(plan, RequestStream { kind, len: MESSAGE, outstanding: OUTSTANDING, count: messages })?;
    let used = (messages as u64 * MESSAGE) as f64 * 1e9 / took.0 as f64 / FAR.rate as f64;
    Ok(Bottleneck { queue, used, dropped: dropped as f64 / sent as f64 })
}

/// The table as text.
pub fn table(cells: &[Cell]) -> String {
    let mut text = "transport  operation  round trip   loss  goodput Gb/s  fraction\n".to_owned();
    for Cell { is_native, operation, network, loss, goodput, fraction } in cells {
        let transport = if *is_native { "native" } else { "RoCEv2" };
        let (loss, micros) = (loss * 100.0, network.round_trip / 1000);
        let _ = writeln!(
            text,
            "{transport:<9}  {operation:<9}  {micros:>7} µs  {loss:>4.1}%  {goodput:>12.2}  {fraction:>8.3}"
        );
    }
    text
}

fn goodput(is_native: bool, operation: &str, network: Network, loss: f64) -> Check<f64> {
    let link = LinkPlan { delay: network.round_trip / 2, rate: network.rate, loss, ..LinkPlan::default() };
    let mut plan = Plan { seed: 1, links: vec![vec![link; 2]; 2], ..schedules::plan() };
    plan.nodes.iter_mut().for_each(|node| node.plain = !is_native);
    plan.pairs[0].mtu = Mtu::B1024;
    plan.pairs[0].rd_atomic = 16;
    let (kind, len) = match operation {
        "SEND" => (Kind::Send { imm: None, invalidate: None }, MESSAGE),
        "WRITE" => (Kind::Write { target: SLOT + TARGET.start, imm: None }, MESSAGE),
        _ => (Kind::Read { target: SLOT + READABLE.start }, MESSAGE),
    };
    let messages = (BYTES[usize::from(!is_native)] / len) as usize;
    let streamed = World::stream(plan, RequestStream { kind, len, outstanding: OUTSTANDING, count: messages })?;
    Ok((messages as u64 * len * 8) as f64 / streamed.took.0 as f64)
}

/// Bytes of a measurement, native and RoCEv2: enough for the last round trip not to count.
const BYTES: [u64; 2] = [48 << 20, 16 << 20];
const OUTSTANDING: usize = 48;
