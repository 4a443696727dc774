//! Hosts, links and programs in one thread of virtual time.

mod events;
mod manual;
mod program;
mod requests;
mod serve;
mod setup;
mod shared;
mod snoop;

pub use manual::Flying;
pub(crate) use manual::{RequestStream, Streamed};
pub use setup::Node;
pub(crate) use shared::{Shared, SharedStreams};

use crate::chance::{Chance, Stream};
use crate::coverage::{Coverage, Seen};
use crate::link::{Link, LinkPlan};
use crate::model::{Check, Model, violated};
use crate::plan::{FaultPlan, Plan};
use crate::platform::Journal;
use crate::trace::Trace;
use rdmesh_nic::{Origin, Time, Transmits};
use serve::Host;
use shared::LastLink;
use snoop::Snoop;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A simulated world.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) now: Time,
    pub(crate) model: Model,
    pub(crate) nodes: Vec<Node>,
    hosts: Vec<Host>,
    /// By source, destination and lane.
    links: Vec<Vec<Vec<Link>>>,
    /// By host, where there is a switch.
    last_links: Vec<LastLink>,
    agenda: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: Vec<Option<Happening>>,
    unused: Vec<usize>,
    entries: u64,
    journal: Journal,
    trace: Trace,
    snoop: Snoop,
    network: Chance,
    workload: Chance,
    faults: Chance,
    /// Index of both ends of each pair, while they exist.
    pairs: Vec<[usize; 2]>,
    regions: u32,
    done: bool,
    steady: bool,
    transmits: Option<Transmits>,
    /// Datagrams that the caller delivers, in a manual world.
    flying: Option<Vec<Flying>>,
    pub(crate) sent: u64,
}

/// Something that is going to happen.
enum Happening {
    Wake(usize),
    Switch { host: usize, incoming: Incoming },
    Arrival { host: usize, incoming: Incoming },
    Tick(usize),
    Fault(FaultPlan),
    Connect(usize),
    Heal,
}

/// A datagram on its way into a host.
#[derive(Clone)]
struct Incoming {
    origin: Origin,
    traffic_class: u8,
    bytes: Vec<u8>,
    sent: Time,
    /// Nanoseconds that it is known to have waited on the way.
    waited: u64,
}

/// Result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// A number that two runs share only if they are the same.
    pub hash: u64,
    /// Events that the run has met.
    pub seen: Coverage,
    /// Time at which it ended.
    pub end: Time,
    /// Datagrams sent.
    pub sent: u64,
}

impl World {
    /// A world that is about to begin.
    pub fn new(plan: Plan, verbose: bool) -> Self {
        let seed = plan.seed;
        let mut world = Self {
            now: Time(0),
            model: Model { lossy: plan.is_lossy() || plan.stall > 0.0, ..Model::default() },
            nodes: Vec::new(),
            hosts: Vec::new(),
            links: plan.links.iter().map(|row| row.iter().map(|first| lanes(*first, &plan.lanes)).collect()).collect(),
            last_links: last_links(&plan),
            agenda: BinaryHeap::new(),
            happenings: Vec::new(),
            unused: Vec::new(),
            entries: 0,
            journal: Journal::default(),
            trace: Trace::new(verbose),
            snoop: Snoop::default(),
            network: Chance::new(mixed(seed), Stream::Network),
            workload: Chance::new(mixed(seed), Stream::Workload),
            faults: Chance::new(mixed(seed), Stream::Faults),
            pairs: Vec::new(),
            regions: 0,
            done: false,
            steady: false,
            transmits: None,
            flying: None,
            sent: 0,
            plan,
        };
        world.model.repeats = world.plan.all_links().any(|link| link.duplicate > 0.0 || link.stale > 0.0);
        // A rate that many senders share makes answers late, which is as if they were lost.
        world.model.lossy |= world.plan.all_links().any(|link| link.rate != 0);
        world
    }

    /// Runs to the end.
    pub fn run(mut self) -> Check<Summary> {
        self.build()?;
        for (at, fault) in self.plan.faults.clone() {
            self.schedule(Time(at), Happening::Fault(fault));
        }
        self.schedule(Time(self.plan.heal), Happening::Heal);
        for node in 0..self.nodes.len() {
            self.schedule(Time(node as u64), Happening::Tick(node));
        }
        let deadline = self.deadline();
        while let Some(happening) = self.next() {
            if self.now > deadline {
                return violated("P9", format!("not done at {} µs: {}", deadline.0 / 1000, self.unfinished()));
            }
            self.happen(happening)?;
        }
        self.finish()
    }

    fn happen(&mut self, happening: Happening) -> Check {
        match happening {
            Happening::Wake(host) => self.serve(host),
            Happening::Switch { host, incoming } => {
                self.cross_switch(host, incoming);
                Ok(())
            }
            Happening::Arrival { host, incoming } => {
                self.arrive(host, incoming);
                Ok(())
            }
            Happening::Tick(node) => self.tick(node),
            Happening::Fault(fault) => self.fault(fault),
            Happening::Connect(pair) => self.connect(pair),
            Happening::Heal => {
                self.heal();
                Ok(())
            }
        }
    }

    /// The next event; advances the time to it.
    fn next(&mut self) -> Option<Happening> {
        loop {
            let Reverse((at, entry)) = self.agenda.pop()?;
            let index = (entry & 0xff_ffff) as usize;
            self.unused.push(index);
            let happening = self.happenings[index].take().expect("an entry is used once");
            if let Happening::Wake(host) = happening {
                if self.hosts[host].wake != Some(Time(at)) {
                    continue;
                }
                self.hosts[host].wake = None;
            }
            self.now = Time(at.max(self.now.0));
            return Some(happening);
        }
    }

    fn schedule(&mut self, at: Time, happening: Happening) {
        let index = self.unused.pop().unwrap_or_else(|| {
            self.happenings.push(None);
            self.happenings.len() - 1
        });
        self.happenings[index] = Some(happening);
        self.entries += 1;
        self.agenda.push(Reverse((at.0, self.entries << 24 | index as u64)));
    }

    fn note<T: std::fmt::Display>(&mut self, numbers: [u64; 3], words: impl FnOnce() -> T) {
        self.trace.note(self.now, numbers, words);
    }

    /// Checks what the engines have done.
    fn check_effects(&mut self, host: usize) -> Check {
        for effect in self.journal.take() {
            self.note([2, host as u64, snoop::number(&effect)], || format!("host {host}: {}", snoop::words(&effect)));
            self.model.effect(self.now, host, &effect)?;
        }
        self.model.check_reads()
    }

    fn finish(mut self) -> Check<Summary> {
        self.settle()?;
        for end in 0..self.model.ends.len() {
            self.retire(end);
            let this = &self.model.ends[end];
            if this.sends.is_broken() || (this.alive && this.sends.taken() != 0) {
                let text = format!("end {end}: {} slots of its send queue are not handed back", this.sends.taken());
                return violated("P2", text);
            }
        }
        self.count_wire();
        let sent = self.sent;
        let mut seen = std::mem::take(&mut self.model.seen);
        seen.merge(&self.snoop.seen);
        if seen.of(Seen::Marked) == 0 && seen.of(Seen::CnpSent) != 0 && seen.of(Seen::Corrupted) == 0 {
            return violated("CNP", "a CNP was sent though nothing was marked");
        }
        Ok(Summary { hash: self.trace.hash(), seen, end: self.now, sent })
    }
}

/// The plan has drawn from the streams of the seed itself.
fn mixed(seed: u64) -> u64 {
    seed ^ 0x5bd1_e995_0000_0000
}

/// The links behind the switch.
fn last_links(plan: &Plan) -> Vec<LastLink> {
    plan.last_link.iter().flat_map(|last| plan.hosts.iter().map(|_| LastLink::new(Link::new(*last)))).collect()
}

/// The links of all lanes from one host to another.
fn lanes(first: LinkPlan, others: &[LinkPlan]) -> Vec<Link> {
    std::iter::once(&first).chain(others).map(|link| Link::new(*link)).collect()
}
