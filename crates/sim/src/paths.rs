//! Throughput of a connection over several paths, as a table that is compared exactly.
//!
//! Two hosts with eight paths between them, each of 3.125 Gb/s and a round trip of 50 µs unless a line says otherwise; each lane of
//! the connection has a path of its own. 96 messages of 24 KB are outstanding, of one kind. A change of the engine that changes the
//! table must be explained, then recorded with `cargo run -p rdmesh-sim -- paths --write`.

use crate::layout::{SLOT, TARGET};
use crate::link::LinkPlan;
use crate::model::{Check, Kind};
use crate::plan::{MESSAGE, Plan};
use crate::schedules;
use crate::world::{RequestStream, World};
use rdmesh_verbs::Mtu;
use std::fmt::Write;

/// The table that is kept.
pub const GOLDEN: &str = include_str!("../golden/paths.txt");

/// Faults of some of the eight paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paths {
    /// Nothing.
    Equal,
    /// One leads nowhere.
    OneDead,
    /// One leads nowhere, and one has a tenth of the rate.
    OneDeadOneSlow,
    /// One is three times as long.
    OneLonger,
    /// One is ten times as long.
    OneMuchLonger,
    /// Each loses one packet of a hundred.
    Lossy,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// SEND or WRITE.
    pub operation: &'static str,
    /// Faults of the paths between the hosts.
    pub paths: Paths,
    /// Lanes of the connection.
    pub lanes: u8,
    /// Gigabits of payload a second.
    pub goodput: f64,
    /// Fraction of what the paths that work can carry, all headers included.
    pub used: f64,
    /// Packets that were sent beyond those needed, as a fraction.
    pub repeated: f64,
}

/// Measures every cell.
pub fn measure() -> Check<Vec<Cell>> {
    let mut cells = Vec::new();
    for operation in ["SEND", "WRITE"] {
        for (paths, lanes) in [
            (Paths::Equal, 1),
            (Paths::Equal, 8),
            (Paths::OneDead, 8),
            (Paths::OneDeadOneSlow, 8),
            (Paths::OneLonger, 8),
            (Paths::OneMuchLonger, 8),
            (Paths::Lossy, 8),
        ] {
            cells.push(cell(operation, paths, lanes)?);
        }
    }
    Ok(cells)
}

/// The table as text.
pub fn table(cells: &[Cell]) -> String {
    let mut text = "operation  paths           lanes  goodput Gb/s   used  sent again\n".to_owned();
    for Cell { operation, paths, lanes, goodput, used, repeated } in cells {
        let paths = format!("{paths:?}");
        let _ =
            writeln!(text, "{operation:<9}  {paths:<14}  {lanes:>5}  {goodput:>12.2}  {used:>5.3}  {repeated:>10.4}");
    }
    text
}

fn cell(operation: &'static str, paths: Paths, lanes: u8) -> Check<Cell> {
    let usual = LinkPlan {
        delay: 25_000,
        rate: RATE,
        loss: if paths == Paths::Lossy { 0.01 } else { 0.0 },
        ..LinkPlan::default()
    };
    let mut all = vec![usual; COUNT];
    let mut works = COUNT as f64;
    match paths {
        Paths::Equal | Paths::Lossy => {}
        Paths::OneDead => {
            all[3].loss = 1.0;
            works -= 1.0;
        }
        Paths::OneDeadOneSlow => {
            (all[3].loss, all[5].rate) = (1.0, RATE / 10);
            works -= 1.9;
        }
        Paths::OneLonger => all[5].delay *= 3,
        Paths::OneMuchLonger => all[5].delay *= 10,
    }
    let mut plan = Plan { seed: 1, links: vec![vec![all[0]; 2]; 2], lanes: all[1..].to_vec(), ..schedules::plan() };
    plan.hosts.iter_mut().for_each(|host| host.native.lanes = lanes);
    plan.pairs[0].mtu = Mtu::B1024;
    let kind = match operation {
        "SEND" => Kind::Send { imm: None, invalidate: None },
        _ => Kind::Write { target: SLOT + TARGET.start, imm: None },
    };
    let messages = (BYTES / MESSAGE) as usize;
    let stream = RequestStream { kind, len: MESSAGE, outstanding: OUTSTANDING, count: messages };
    let streamed = World::stream(plan, stream)?;
    let bytes = (messages as u64 * MESSAGE) as f64;
    let goodput = bytes * 8.0 / streamed.took.0 as f64;
    let works = if lanes == 1 { 1.0 } else { works };
    Ok(Cell {
        operation,
        paths,
        lanes,
        goodput,
        used: goodput * 1e9 / 8.0 / (works * RATE as f64),
        repeated: streamed.retransmitted as f64 / (bytes / 1024.0),
    })
}

/// Paths between the hosts.
const COUNT: usize = 8;
/// Bytes a second of each.
const RATE: u64 = 390_625_000;
/// Bytes of a measurement: enough for the last round trip not to count.
const BYTES: u64 = 48 << 20;
const OUTSTANDING: usize = 96;
