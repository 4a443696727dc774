//! Simulation plan: the faults and workload that a seed chooses. Every seed enables some of the faults, with parameters of its
//! own (swarm testing): a seed in which everything goes wrong at once would reach few states.

use crate::chance::{Chance, Stream};
use crate::link::LinkPlan;
use rdmesh_nic::{CongestionControl, LEAST_SILENCE, LossRecovery, NativeConfig};
use rdmesh_verbs::{Gid, Mtu, Psn, QpType, Vni, ack_timeout};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed that it came from.
    pub seed: u64,
    /// Hosts.
    pub hosts: Vec<HostPlan>,
    /// Programs.
    pub nodes: Vec<NodePlan>,
    /// Connections between programs.
    pub pairs: Vec<PairPlan>,
    /// Links, by source and destination host.
    pub links: Vec<Vec<LinkPlan>>,
    /// Links of lanes beyond the first, between any two hosts; where there is none, all lanes have one link.
    pub lanes: Vec<LinkPlan>,
    /// Injected faults, with their times.
    pub faults: Vec<(u64, FaultPlan)>,
    /// Time at which everything that is wrong stops.
    pub heal: u64,
    /// Probability that a wake of a host sends nothing for a while.
    pub stall: f64,
    /// Behind the links, the last one into each host, which what all send to it shares; none without a switch.
    pub last_link: Option<LinkPlan>,
    /// Whether hosts know how long datagrams have waited at the switch, as by telemetry.
    pub switch_tells: bool,
    /// Probability that a program forgets to post receives at a tick.
    pub starve: f64,
    /// Mean time between two looks of a program at its queues.
    pub tick: u64,
}

/// A host.
#[derive(Clone, Copy, Debug)]
pub struct HostPlan {
    /// Engines.
    pub shards: u32,
    /// Nanoseconds between an input and the moment when the engines see it.
    pub service: u64,
    /// Connections to other hosts: some have an older router.
    pub native: NativeConfig,
}

/// A program.
#[derive(Clone, Copy, Debug)]
pub struct NodePlan {
    /// Index of its host.
    pub host: usize,
    /// The engine that serves it.
    pub shard: u32,
    /// Its tenant network.
    pub vni: Vni,
    /// Its address.
    pub gid: Gid,
    /// It reaches other hosts outside the tunnel.
    pub plain: bool,
    /// Largest path MTU.
    pub mtu: Mtu,
    /// It has a shared receive queue.
    pub srq: bool,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub struct PairPlan {
    /// The programs.
    pub nodes: [usize; 2],
    /// Transport.
    pub qp_type: QpType,
    /// Path MTU.
    pub mtu: Mtu,
    /// First PSNs.
    pub psns: [Psn; 2],
    /// ACK time-out code.
    pub timeout: u8,
    /// Retries.
    pub retry: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// RNR timer code.
    pub rnr_timer: u8,
    /// READs and atomics in flight.
    pub rd_atomic: u8,
    /// The sides that use their program's SRQ.
    pub srq: [bool; 2],
    /// Every request is signaled.
    pub signal_all: bool,
    /// Windows that each side binds for the other.
    pub windows: u32,
    /// Requests of each side.
    pub ops: [u32; 2],
    /// Requests outstanding.
    pub depth: u32,
    /// Probability that a request is wrong.
    pub wrong: f64,
    /// Relative frequency of each kind of request.
    pub weights: [u32; KINDS],
    /// Largest message.
    pub largest: u64,
}

impl PairPlan {
    /// Nanoseconds in which all retries are over, IBA's four ACK time-outs for each of them.
    pub(crate) fn retry_time(&self) -> u64 {
        let timeout = ack_timeout(self.timeout).map_or(0, |timeout| (timeout * 4).max(LEAST_SILENCE).as_nanos() as u64);
        timeout * (u64::from(self.retry) + 2)
    }
}

/// Kinds of requests that a program chooses from: SEND, WRITE, WRITE with immediate, READ, add, swap, atomic write, FLUSH,
/// SEND with invalidate.
pub const KINDS: usize = 9;

/// Something that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum FaultPlan {
    Partition { from: usize, to: usize },
    Rejoin { from: usize, to: usize },
    Kill { host: usize },
    Revive { host: usize },
    Recreate { pair: usize },
    Break { pair: usize, side: usize },
}

impl Plan {
    /// The plan of `seed`.
    pub fn of(seed: u64) -> Self {
        let mut topology = Chance::new(seed, Stream::Topology);
        let mut network = Chance::new(seed, Stream::Network);
        let mut workload = Chance::new(seed, Stream::Workload);
        let mut faults = Chance::new(seed, Stream::Faults);
        let hosts: Vec<_> = (0..topology.between(2, 4)).map(|_| host(&mut topology)).collect();
        let nodes = nodes(&hosts, &mut topology);
        let heal = faults.scale(3_000_000, 120_000_000);
        let links = links(hosts.len(), &mut network);
        let lanes = if network.happens(0.5) { lanes(links[0][1], &mut network) } else { Vec::new() };
        let lossy = links.iter().flatten().chain(&lanes).any(LinkPlan::is_lossy);
        let pairs = pairs(&nodes, lossy, &mut topology, &mut workload);
        let starve = if workload.happens(0.5) { 0.7 } else { 0.0 };
        let tick = workload.scale(3_000, 100_000);
        let stall = if faults.happens(0.2) { 0.02 } else { 0.0 };
        let events = events(hosts.len(), &pairs, heal, &mut faults);
        Self {
            seed,
            hosts,
            nodes,
            pairs,
            links,
            lanes,
            faults: events,
            heal,
            stall,
            last_link: None,
            switch_tells: false,
            starve,
            tick,
        }
    }

    /// Every link.
    pub fn all_links(&self) -> impl Iterator<Item = &LinkPlan> {
        self.links.iter().flatten().chain(&self.lanes)
    }

    /// Whether anything may get lost between two hosts.
    pub fn is_lossy(&self) -> bool {
        let cut = |f: &(u64, FaultPlan)| matches!(f.1, FaultPlan::Partition { .. });
        self.all_links().any(LinkPlan::is_lossy) || self.faults.iter().any(cut)
    }
}

fn host(chance: &mut Chance) -> HostPlan {
    let service = if chance.happens(0.5) { 0 } else { chance.scale(200, 20_000) };
    let shards = chance.between(1, 4) as u32;
    let recovery = if chance.happens(0.15) { LossRecovery::GoBackN } else { LossRecovery::Selective };
    let lanes = if chance.happens(0.3) { chance.between(2, 9) as u8 } else { 1 };
    let congestion = if chance.happens(0.3) { CongestionControl::Hpcc } else { CongestionControl::Window };
    let link_rate = if chance.happens(0.5) { chance.scale(1_000, 100_000) as u32 } else { 0 };
    HostPlan {
        shards,
        service,
        native: NativeConfig { recovery, lanes, congestion, link_rate, ..NativeConfig::default() },
    }
}

/// One or two tenant networks with a program on every host and two on one; the addresses repeat from network to network.
fn nodes(hosts: &[HostPlan], chance: &mut Chance) -> Vec<NodePlan> {
    let mut nodes = Vec::new();
    for net in 0..chance.between(1, 3) {
        let plain = chance.happens(0.25);
        let v6 = chance.happens(0.4);
        let mtu = chance.pick(&[Mtu::B1024, Mtu::B4096, Mtu::B4096]);
        let srq = chance.happens(0.3);
        let doubled = chance.between(0, hosts.len() as u64) as usize;
        for (host, on) in hosts.iter().enumerate() {
            for k in 0..if host == doubled { 2 } else { 1 } {
                // Outside the tunnel nothing keeps tenants apart: addresses differ.
                let subnet = if plain { net as u8 + 1 } else { 0 };
                let number = 1 + host as u8 * 2 + k;
                let ip: IpAddr = if v6 {
                    Ipv6Addr::new(0xfd00, subnet.into(), 0, 0, 0, 0, 0, number.into()).into()
                } else {
                    Ipv4Addr::new(10, subnet, 0, number).into()
                };
                let shard = chance.between(0, on.shards.into()) as u32;
                let (vni, gid) = (Vni(100 + net as u32), Gid::from_ip(ip));
                nodes.push(NodePlan { host, shard, vni, gid, plain, mtu, srq });
            }
        }
    }
    nodes
}

fn links(hosts: usize, chance: &mut Chance) -> Vec<Vec<LinkPlan>> {
    let mut base = LinkPlan { delay: chance.scale(500, 300_000), ..LinkPlan::default() };
    let mut some =
        |p: f64, low: f64, high: f64| if chance.happens(p) { low + chance.unit() * (high - low) } else { 0.0 };
    base.loss = some(0.4, 0.001, 0.2);
    let burst = (some(0.15, 0.001, 0.01), 0.2);
    base.burst = (burst.0 > 0.0).then_some(burst);
    base.duplicate = some(0.3, 0.001, 0.1);
    base.reorder = some(0.35, 0.001, 0.2);
    base.corrupt = some(0.25, 0.0005, 0.05);
    base.truncate = some(0.15, 0.0005, 0.02);
    base.stale = some(0.2, 0.001, 0.02);
    base.span = chance.scale(1_000, base.delay * 8);
    base.stale_span = chance.scale(1_000_000, 200_000_000);
    if chance.happens(0.4) {
        base.jitter = chance.scale(100, base.delay * 2);
    }
    if chance.happens(0.6) {
        base.rate = chance.scale(50_000_000, 5_000_000_000);
        if chance.happens(0.4) {
            base.queue = chance.scale(20_000, 500_000);
            base.mark = if chance.happens(0.7) { base.queue / 4 } else { 0 };
        } else if chance.happens(0.5) {
            base.mark = chance.scale(2_000, 60_000);
        }
    }
    // Some seeds have trouble in one direction only.
    let one_way = chance.happens(0.2);
    let one = |from: usize, to: usize| if one_way && from > to { base.healed() } else { base };
    (0..hosts).map(|from| (0..hosts).map(|to| one(from, to)).collect()).collect()
}

/// Paths of further lanes: longer or not, and some that lead nowhere.
fn lanes(base: LinkPlan, chance: &mut Chance) -> Vec<LinkPlan> {
    let mut one = || {
        let delay = base.delay * if chance.happens(0.5) { 1 } else { chance.between(2, 9) };
        let loss = if chance.happens(0.1) { 1.0 } else { base.loss };
        LinkPlan { delay, loss, ..base }
    };
    (0..3).map(|_| one()).collect()
}

fn pairs(nodes: &[NodePlan], lossy: bool, topology: &mut Chance, workload: &mut Chance) -> Vec<PairPlan> {
    let count = topology.between(1, 6);
    let largest = workload.scale(64, MESSAGE);
    (0..count).map(|_| pair(nodes, lossy, largest, topology, workload)).collect()
}

fn pair(nodes: &[NodePlan], lossy: bool, largest: u64, topology: &mut Chance, workload: &mut Chance) -> PairPlan {
    let (a, b) = loop {
        let (a, b) = (topology.between(0, nodes.len() as u64), topology.between(0, nodes.len() as u64));
        let (x, y) = (nodes[a as usize], nodes[b as usize]);
        // Most traffic crosses the network: the path within a host has its own tests.
        if a != b && x.vni == y.vni && (x.host != y.host || topology.happens(0.1)) {
            break (a as usize, b as usize);
        }
    };
    let qp_type = topology.pick(&[QpType::Rc, QpType::Rc, QpType::Rc, QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud]);
    let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    let allowed = all.iter().filter(|mtu| mtu.bytes() <= nodes[a].mtu.bytes()).count();
    let mut psn = || match topology.between(0, 3) {
        0 => Psn::new(topology.draw() as u32),
        _ => Psn::new(0xff_ffff - topology.between(0, 60) as u32),
    };
    let psns = [psn(), psn()];
    let has_many_retries = lossy && topology.happens(0.85);
    PairPlan {
        nodes: [a, b],
        qp_type,
        mtu: all[topology.between(0, allowed as u64) as usize],
        psns,
        timeout: topology.between(10, 15) as u8,
        retry: if has_many_retries { 7 } else { topology.between(1, 8) as u8 },
        rnr_retry: topology.pick(&[7, 7, 7, 7, 6, 1]),
        rnr_timer: topology.between(1, 15) as u8,
        rd_atomic: topology.scale(1, 17) as u8,
        srq: [nodes[a].srq && topology.happens(0.7), nodes[b].srq && topology.happens(0.7)],
        signal_all: topology.happens(0.5),
        windows: if qp_type == QpType::Rc && topology.happens(0.4) { 3 } else { 0 },
        ops: [workload.scale(3, 80) as u32, workload.scale(3, 80) as u32],
        depth: workload.scale(1, 48) as u32,
        wrong: if workload.happens(0.2) { 0.03 } else { 0.0 },
        weights: std::array::from_fn(|_| if workload.happens(0.6) { workload.between(1, 10) as u32 } else { 0 }),
        largest,
    }
}

fn events(hosts: usize, pairs: &[PairPlan], heal: u64, chance: &mut Chance) -> Vec<(u64, FaultPlan)> {
    let mut events = Vec::new();
    if chance.happens(0.2) {
        for _ in 0..chance.between(1, 4) {
            let from = chance.between(0, hosts as u64) as usize;
            let to = (from + 1) % hosts;
            let (start, len) = (chance.between(0, heal), chance.scale(10_000, heal));
            let ways: &[_] = if chance.happens(0.5) { &[(from, to)] } else { &[(from, to), (to, from)] };
            for &(from, to) in ways {
                events.push((start, FaultPlan::Partition { from, to }));
                events.push(((start + len).min(heal), FaultPlan::Rejoin { from, to }));
            }
        }
    }
    if chance.happens(0.1) {
        let host = chance.between(0, hosts as u64) as usize;
        let at = chance.between(heal / 8, heal);
        events.push((at, FaultPlan::Kill { host }));
        if chance.happens(0.6) {
            events.push((at + chance.scale(10_000, 20_000_000), FaultPlan::Revive { host }));
        }
    }
    let churn = if chance.happens(0.25) { chance.between(1, 5) } else { 0 };
    for _ in 0..churn {
        let pair = chance.between(0, pairs.len() as u64) as usize;
        events.push((chance.between(heal / 20, heal), FaultPlan::Recreate { pair }));
    }
    if chance.happens(0.08) {
        let pair = chance.between(0, pairs.len() as u64) as usize;
        let side = chance.between(0, 2) as usize;
        events.push((chance.between(heal / 20, heal), FaultPlan::Break { pair, side }));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

/// Largest message of all.
pub const MESSAGE: u64 = 24 * 1024;
