//! Every schedule of a short exchange: two messages of three packets, or their like, between two engines.
//!
//! The network is a list of packets. In rounds, all packets to one host are delivered, then all to the other. The largest flight
//! of a schedule, its first of four to six packets, is delivered in every order, with up to two packets dropped and up to
//! one delivered twice; acknowledgements without data come behind it. Where that flight comes in order, up to two
//! things go wrong anywhere in the exchange: a packet is
//! dropped, comes twice, or is overtaken by the next one. Orders that differ only in how packets to different hosts interleave
//! are taken for one: neither host can tell.

use crate::layout::{CELLS, READABLE, SLOT, TARGET};
use crate::link::LinkPlan;
use crate::model::{Check, Kind, Violation, violated};
use crate::plan::{HostPlan, KINDS, NodePlan, PairPlan, Plan};
use crate::world::{Flying, World};
use rdmesh_nic::NativeConfig;
use rdmesh_verbs::{Gid, Mtu, Psn, QpType, Vni};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// Kind of the exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Exchange {
    Send,
    Write,
    WriteImm,
    Read,
    Atomics,
    Mixed,
}

impl Exchange {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Send, Self::Write, Self::WriteImm, Self::Read, Self::Atomics, Self::Mixed];

    /// Requests of one side: kinds and lengths. Places are in the other side's slot, the second.
    fn requests(self) -> Vec<(Kind, u64)> {
        const LEN: u64 = 2 * 256 + 100;
        let (target, readable, cell) = (SLOT + TARGET.start, SLOT + READABLE.start, SLOT + CELLS.start);
        let send = |imm| (Kind::Send { imm, invalidate: None }, LEN);
        let write = |at: u64, imm| (Kind::Write { target: target + at, imm }, LEN);
        let read = |target| (Kind::Read { target }, LEN);
        let add = |add| (Kind::Add { cell, add }, 8);
        match self {
            Self::Send => vec![send(Some(1)), send(None)],
            // The second overwrites part of the first.
            Self::Write => vec![write(0, None), write(300, None)],
            Self::WriteImm => vec![write(0, Some(1)), write(300, Some(2))],
            Self::Read => vec![read(readable), read(readable + 1000)],
            Self::Atomics => {
                let swap = (Kind::Swap { cell, compare: 3, swap: 77 }, 8);
                vec![add(1), add(2), swap, (Kind::Put { cell, value: 5 }, 8), add(9), (Kind::Flush, 0)]
            }
            Self::Mixed => {
                vec![write(0, None), read(target), add(1), (Kind::Send { imm: Some(4), invalidate: None }, 100)]
            }
        }
    }
}

/// The transport between the two engines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Wire {
    /// Through the tunnel: only what is lost is sent again.
    Native,
    /// As external peers: go-back-N.
    Plain,
}

impl Wire {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Native, Self::Plain];
}

/// A schedule that fails.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The choices that lead there.
    pub choices: Vec<u32>,
    /// The violated property.
    pub violation: Violation,
}

/// Runs every schedule of an exchange. Returns how many there are, or one that fails.
pub fn explore(exchange: Exchange, wire: Wire) -> Result<u64, Broken> {
    let mut choices = Choices::default();
    let mut schedules = 0;
    loop {
        if let Err(violation) = run(exchange, wire, &mut choices, false) {
            return Err(Broken { choices: choices.taken(), violation });
        }
        schedules += 1;
        if !choices.advance() {
            return Ok(schedules);
        }
    }
}

/// Runs one schedule and writes what happens.
pub fn replay(exchange: Exchange, wire: Wire, choices: &[u32]) -> Check {
    let trail = choices.iter().map(|choice| (*choice, u32::MAX)).collect();
    run(exchange, wire, &mut Choices { trail, next: 0 }, true)
}

/// Faults that a schedule may still inject.
struct Budget {
    drops: u32,
    copies: u32,
    /// Of everything, outside of the largest flight.
    any: u32,
    /// The largest flight is still to come.
    flight: bool,
}

fn run(exchange: Exchange, wire: Wire, choices: &mut Choices, verbose: bool) -> Check {
    choices.next = 0;
    let mut plan = plan();
    plan.nodes.iter_mut().for_each(|node| node.plain = wire == Wire::Plain);
    let mut world = World::by_hand(plan, verbose)?;
    for (kind, len) in exchange.requests() {
        world.ask(0, kind, len)?;
    }
    let total = world.model.ends[0].flow.ops.len();
    let mut budget = Budget { drops: DROPS, copies: COPIES, any: FAULTS, flight: true };
    world.work(0)?;
    let mut flying = world.take_flying();
    for _ in 0..ROUNDS {
        let host = if flying.iter().any(|packet| packet.host == 1) { 1 } else { 0 };
        let (round, rest): (Vec<_>, Vec<_>) = flying.into_iter().partition(|packet| packet.host == host);
        flying = rest;
        if round.is_empty() {
            if world.model.ends[0].flow.completed == total {
                return finished(&world, total);
            }
            if !world.pass_time()? {
                return violated("P9", world.unfinished());
            }
        } else {
            deliver(&mut world, round, choices, &mut budget)?;
        }
        flying.extend(world.take_flying());
    }
    violated("P9", world.unfinished())
}

fn finished(world: &World, total: usize) -> Check {
    let flow = &world.model.ends[0].flow;
    if flow.executed == total && !flow.failed {
        return Ok(());
    }
    violated("P1", format!("{} of {total} requests are executed", flow.executed))
}

/// Delivers a round of packets in the order, and with the losses, that are chosen.
fn deliver(world: &mut World, mut round: Vec<Flying>, choices: &mut Choices, budget: &mut Budget) -> Check {
    let carrying = round.iter().filter(|packet| !packet.is_acknowledgement()).count();
    let untouched = budget.drops == DROPS && budget.copies == COPIES && budget.any == FAULTS;
    let flight = budget.flight && untouched && FLIGHT.contains(&carrying);
    // In every order: but bare acknowledgements, which say less than what they come with, come last.
    let acknowledgements: Vec<Flying> =
        if flight { round.extract_if(.., |p| p.is_acknowledgement()).collect() } else { Vec::new() };
    let allowed = |left: u32, budget: &Budget| if flight { left } else { left.min(budget.any) };
    let before = budget.drops + budget.copies;
    let mut i = 0;
    while i < round.len() {
        if allowed(budget.drops, budget) != 0 && choices.choose(2) == 1 {
            round.remove(i);
            budget.drops -= 1;
            budget.any = budget.any.saturating_sub(1);
        } else {
            i += 1;
        }
    }
    let mut packets: Vec<(usize, Flying)> = round.into_iter().enumerate().collect();
    if allowed(budget.copies, budget) != 0 && !packets.is_empty() {
        let copied = choices.choose(packets.len() as u32 + 1) as usize;
        if copied != 0 {
            packets.push(packets[copied - 1].clone());
            budget.copies -= 1;
            budget.any = budget.any.saturating_sub(1);
        }
    }
    let mut in_order = true;
    while !packets.is_empty() {
        // Copies are the same packet: which of them comes first is no choice.
        let mut different: Vec<usize> = (0..packets.len()).collect();
        different.retain(|&i| !packets[..i].iter().any(|(name, _)| *name == packets[i].0));
        let ways = if flight { different.len() } else { different.len().min(1 + budget.any.min(1) as usize) };
        let chosen = choices.choose(ways as u32) as usize;
        if chosen != 0 {
            in_order = false;
            budget.any = budget.any.saturating_sub(u32::from(!flight));
        }
        let (_, packet) = packets.remove(different[chosen]);
        world.deliver(&packet)?;
    }
    for packet in &acknowledgements {
        world.deliver(packet)?;
    }
    if flight {
        budget.flight = false;
        let wrong = before - budget.drops - budget.copies;
        if !in_order || wrong > 1 {
            (budget.drops, budget.copies, budget.any) = (0, 0, 0);
        }
    }
    Ok(())
}

/// The choices of a schedule: each with the number of ways that there were.
#[derive(Default)]
struct Choices {
    trail: Vec<(u32, u32)>,
    next: usize,
}

impl Choices {
    fn choose(&mut self, ways: u32) -> u32 {
        if ways <= 1 {
            return 0;
        }
        if self.next == self.trail.len() {
            self.trail.push((0, ways));
        }
        self.next += 1;
        self.trail[self.next - 1].0
    }

    /// The next combination, depth first; false after the last.
    fn advance(&mut self) -> bool {
        self.trail.truncate(self.next);
        while let Some((choice, ways)) = self.trail.pop() {
            if choice + 1 < ways {
                self.trail.push((choice + 1, ways));
                return true;
            }
        }
        false
    }

    fn taken(&self) -> Vec<u32> {
        self.trail[..self.next].iter().map(|(choice, _)| *choice).collect()
    }
}

/// Two hosts with one connection.
pub(crate) fn plan() -> Plan {
    let node = |host: usize| NodePlan {
        host,
        shard: 0,
        vni: Vni(1),
        gid: Gid::from_ip(Ipv4Addr::new(10, 0, 0, host as u8 + 1).into()),
        plain: false,
        mtu: Mtu::B4096,
        srq: false,
    };
    let pair = PairPlan {
        nodes: [0, 1],
        qp_type: QpType::Rc,
        mtu: Mtu::B256,
        psns: [Psn::new(0xff_fffd), Psn::new(7)],
        timeout: 14,
        retry: 7,
        rnr_retry: 7,
        rnr_timer: 5,
        rd_atomic: 8,
        srq: [false; 2],
        signal_all: true,
        windows: 0,
        ops: [0; 2],
        depth: 16,
        wrong: 0.0,
        weights: [1; KINDS],
        largest: 4096,
    };
    let link = LinkPlan { delay: 1000, ..LinkPlan::default() };
    Plan {
        seed: 0,
        hosts: vec![HostPlan { shards: 1, service: 0, native: NativeConfig::default() }; 2],
        nodes: vec![node(0), node(1)],
        pairs: vec![pair],
        links: vec![vec![link; 2]; 2],
        lanes: Vec::new(),
        last_link: None,
        switch_tells: false,
        faults: Vec::new(),
        heal: 0,
        stall: 0.0,
        starve: 0.0,
        tick: 1000,
    }
}

/// Packets that may be dropped.
const DROPS: u32 = 2;
/// Packets that may be delivered twice.
const COPIES: u32 = 1;
/// Things that may go wrong outside of the largest flight.
const FAULTS: u32 = 2;
/// Packets of a flight that is delivered in every order.
const FLIGHT: RangeInclusive<usize> = 4..=6;
/// Rounds after which an exchange is taken to go on for ever.
const ROUNDS: usize = 300;
