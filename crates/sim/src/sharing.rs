//! Connections of several hosts to one host, whose link they share: by congestion control, as a table that is compared exactly.
//!
//! The link has 10 Gb/s, a base round trip of 50 µs and a queue of 2 MB at the switch before it. Each connection has 16 WRITEs of
//! 24 KB outstanding, in packets of 1 KB. Rows differ in congestion control:
//!
//! * `window`: the router's default.
//! * `dcqcn`: the same, where the switch marks what finds more than 100 KB waiting.
//! * `hpcc switch`: HPCC where the rate of the link is known, and how long packets wait at the switch.
//! * `hpcc router`: HPCC where only the rate is known, so that the router counts what arrives.
//! * `hpcc blind`: HPCC without either: the round trip alone tells of the queue.
//!
//! In rows with "mixed" every second connection has a round trip of 400 µs. All begin at the same time, and 20 ms later they are measured
//! for 40 ms: shares that are still unequal then become equal more slowly.
//!
//! A change of the engine that changes the table must be explained, then recorded with `cargo run -p rdmesh-sim -- sharing --write`.

use crate::link::LinkPlan;
use crate::model::Check;
use crate::plan::{MESSAGE, NodePlan, PairPlan, Plan};
use crate::schedules;
use crate::world::{Shared, SharedStreams, World};
use rdmesh_nic::CongestionControl;
use rdmesh_verbs::{Gid, Mtu};
use std::fmt::Write;
use std::net::Ipv6Addr;
use std::time::Duration;

/// The table that is kept.
pub const GOLDEN: &str = include_str!("../golden/sharing.txt");

/// Congestion control of the connections, and knowledge of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// The router's default.
    Window,
    /// With marks of the switch.
    Dcqcn,
    /// With the link's rate, and the time that packets wait at the switch.
    HpccSwitch,
    /// With the link's rate.
    HpccRouter,
    /// With round trips alone.
    HpccBlind,
}

impl Control {
    /// All.
    pub const ALL: [Self; 5] = [Self::Window, Self::Dcqcn, Self::HpccSwitch, Self::HpccRouter, Self::HpccBlind];

    fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Dcqcn => "dcqcn",
            Self::HpccSwitch => "hpcc switch",
            Self::HpccRouter => "hpcc router",
            Self::HpccBlind => "hpcc blind",
        }
    }
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Congestion control.
    pub control: Control,
    /// Connections, each of another host.
    pub connections: usize,
    /// Whether every second of them has a base round trip of 400 µs.
    pub is_mixed: bool,
    /// Fraction of the link's rate that is payload.
    pub used: f64,
    /// Jain's index of their shares: 1 where all are equal.
    pub fairness: f64,
    /// Median of the microseconds that packets wait at the switch.
    pub median_wait: f64,
    /// 99th percentile of them.
    pub long_wait: f64,
    /// Packets that the switch has dropped, as a fraction of those that came.
    pub dropped: f64,
}

/// Measures every cell.
pub fn measure() -> Check<Vec<Cell>> {
    let mut cells = Vec::new();
    for control in Control::ALL {
        for connections in [1, 2, 8, 64] {
            cells.push(cell(control, connections, false)?);
        }
        cells.push(cell(control, 8, true)?);
    }
    Ok(cells)
}

/// The table as text.
pub fn table(cells: &[Cell]) -> String {
    let mut text = "control      connections   used  fairness  p50 wait µs  p99 wait µs  dropped\n".to_owned();
    for Cell { control, connections, is_mixed, used, fairness, median_wait, long_wait, dropped } in cells {
        let name = control.name();
        let connections = format!("{connections}{}", if *is_mixed { " mixed" } else { "" });
        let _ = writeln!(
            text,
            "{name:<11}  {connections:>11}  {used:>5.3}  {fairness:>8.3}  {median_wait:>11.1}  {long_wait:>11.1}  {dropped:>7.4}"
        );
    }
    text
}

fn cell(control: Control, connections: usize, is_mixed: bool) -> Check<Cell> {
    let streams = SharedStreams { len: MESSAGE, outstanding: 16, warm_up: WARM_UP, span: SPAN };
    let Shared { moved, waits, dropped } = World::share(plan(control, connections, is_mixed), streams)?;
    let (sum, squares) = moved.iter().fold((0.0, 0.0), |(sum, squares), &bytes| {
        let bytes = bytes as f64;
        (sum + bytes, squares + bytes * bytes)
    });
    let wait = |share: f64| waits.get((waits.len() as f64 * share) as usize).map_or(0.0, |&wait| wait as f64 / 1e3);
    Ok(Cell {
        control,
        connections,
        is_mixed,
        used: sum * 1e9 / SPAN as f64 / RATE as f64,
        fairness: sum * sum / squares / connections as f64,
        median_wait: wait(0.5),
        long_wait: wait(0.99),
        dropped: dropped as f64 / (dropped as f64 + waits.len() as f64),
    })
}

/// Host 0 receives; each other sends by one connection.
fn plan(control: Control, connections: usize, is_mixed: bool) -> Plan {
    let base = schedules::plan();
    // Between the receiver and this host.
    let link = |host: usize| {
        let is_long = is_mixed && host.is_multiple_of(2);
        LinkPlan { delay: if is_long { LONG_ROUND_TRIP } else { ROUND_TRIP } / 2, ..LinkPlan::default() }
    };
    let mark = if control == Control::Dcqcn { MARK } else { 0 };
    let last = LinkPlan { rate: RATE, queue: QUEUE, mark, ..LinkPlan::default() };
    let mut host = base.hosts[0];
    let is_hpcc = !matches!(control, Control::Window | Control::Dcqcn);
    host.native.congestion = if is_hpcc { CongestionControl::Hpcc } else { CongestionControl::Window };
    host.native.wake_up = Duration::from_micros(10);
    let knows_rate = matches!(control, Control::HpccSwitch | Control::HpccRouter);
    host.native.link_rate = if knows_rate { (RATE * 8 / 1_000_000) as u32 } else { 0 };
    let hosts = connections + 1;
    let gid = |host: usize| Gid(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 + host as u16).octets());
    let node = |host| NodePlan { host, gid: gid(host), ..base.nodes[0] };
    let pair = |sender| PairPlan { nodes: [sender, 0], mtu: Mtu::B1024, ..base.pairs[0] };
    Plan {
        seed: 1,
        hosts: vec![host; hosts],
        nodes: (0..hosts).map(node).collect(),
        pairs: (1..hosts).map(pair).collect(),
        links: (0..hosts).map(|from| (0..hosts).map(|to| link(from.max(to))).collect()).collect(),
        last_link: Some(last),
        switch_tells: control == Control::HpccSwitch,
        ..base
    }
}

/// Bytes a second of the link.
const RATE: u64 = 1_250_000_000;
const ROUND_TRIP: u64 = 50_000;
const LONG_ROUND_TRIP: u64 = 400_000;
/// Bytes of the switch's queue, and those from which it marks.
const QUEUE: u64 = 2 << 20;
const MARK: u64 = 100 << 10;
/// Nanoseconds before the measurement, and of it.
const WARM_UP: u64 = 20_000_000;
const SPAN: u64 = 40_000_000;
