//! Simulated hosts: engines with their received and transmitted datagrams.

use super::{Flying, Happening, Incoming, World};
use crate::coverage::Seen;
use crate::model::{Check, violated};
use crate::plan::HostPlan;
use crate::platform::Sim;
use crate::trace::digest;
use rdmesh_nic::{
    Budget, Config, Datagram, Engine, ExternalId, Numbers, Origin, Owners, Target, Time, Train, Transmits,
};
use rdmesh_verbs::DeviceLimits;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

/// A host.
pub(super) struct Host {
    pub(super) engines: Vec<Engine<Sim>>,
    numbers: Numbers,
    pub(super) alive: bool,
    pub(super) wake: Option<Time>,
    /// Counts its lives.
    pub(super) generation: u32,
    inbox: VecDeque<Incoming>,
    stalled_until: Time,
}

impl Host {
    pub(super) fn new(index: usize, plan: HostPlan, seed: u64, generation: u32) -> Self {
        let HostPlan { shards, native, .. } = plan;
        let limits = DeviceLimits::default();
        let seed = seed.wrapping_mul(31).wrapping_add(index as u64 + u64::from(generation) * 7919);
        let numbers = Numbers::new(shards.max(1));
        let engine = |shard| Engine::new(Config { shard, seed, limits, native }, numbers.clone());
        let engines = (0..shards).map(engine).collect();
        Self { engines, numbers, alive: true, wake: None, generation, inbox: VecDeque::new(), stalled_until: Time(0) }
    }

    /// The address of its router.
    pub(super) fn address(index: usize) -> IpAddr {
        Ipv4Addr::new(192, 168, 0, 1 + index as u8).into()
    }
}

impl World {
    /// Makes sure that a host looks at its inputs soon.
    pub(super) fn wake(&mut self, host: usize) {
        let at = Time(self.now.0 + self.plan.hosts[host].service);
        self.wake_at(host, at);
    }

    fn wake_at(&mut self, host: usize, at: Time) {
        if self.hosts[host].alive && self.hosts[host].wake.is_none_or(|wake| at < wake) {
            self.hosts[host].wake = Some(at);
            self.schedule(at, Happening::Wake(host));
        }
    }

    pub(super) fn arrive(&mut self, host: usize, incoming: Incoming) {
        if !self.hosts[host].alive {
            return;
        }
        self.hosts[host].inbox.push_back(incoming);
        self.wake(host);
    }

    /// Lets a host do what there is to do.
    pub(super) fn serve(&mut self, host: usize) -> Check {
        if !self.hosts[host].alive {
            return Ok(());
        }
        if self.now >= self.hosts[host].stalled_until && self.faults.happens(self.plan.stall) {
            self.hosts[host].stalled_until = Time(self.now.0 + self.faults.scale(10_000, 20_000_000));
            self.model.seen.count(Seen::TxStall);
        }
        while let Some(incoming) = self.hosts[host].inbox.pop_front() {
            self.handle(host, &incoming)?;
        }
        let mut rounds = 0;
        while self.round(host)? {
            rounds += 1;
            if rounds > ROUNDS {
                return violated("P9", format!("host {host} is busy for ever: {}", self.unfinished()));
            }
            if self.sent > FLOOD {
                return violated("P13", format!("{FLOOD} datagrams were sent: {}", self.unfinished()));
            }
        }
        let timeout = self.hosts[host].engines.iter().filter_map(Engine::poll_timeout).min();
        if let Some(at) = timeout.filter(|_| !self.done) {
            self.wake_at(host, Time(at.0.max(self.now.0 + 1)));
        }
        if self.hosts[host].stalled_until > self.now {
            let until = self.hosts[host].stalled_until;
            self.wake_at(host, until);
        }
        Ok(())
    }

    fn handle(&mut self, host: usize, incoming: &Incoming) -> Check {
        let Incoming { origin, traffic_class, bytes, sent, waited } = incoming;
        let received = Some(Time(self.now.0.saturating_sub(*waited)));
        let datagram = Datagram { origin: *origin, traffic_class: *traffic_class, received, bytes };
        let end = self.snoop.arrived(host, &datagram).and_then(|qpn| self.model.by_qpn.get(&(host, qpn)));
        if end.is_some_and(|&end| self.model.ends[end].born > *sent) {
            self.model.seen.count(Seen::StaleToSuccessor);
        }
        self.note([4, host as u64, digest(bytes)], || super::snoop::packet(&format!("→ host {host}"), bytes, origin));
        let Some(opened) = self.hosts[host].engines[0].open_datagram(&datagram) else {
            return self.check_effects(host);
        };
        let owners = Owners::of(&self.hosts[host].numbers, &opened);
        for (shard, engine) in self.hosts[host].engines.iter_mut().enumerate() {
            let is_owner = match owners {
                Owners::Any => shard == 0,
                Owners::One(owner) => shard == owner as usize,
                Owners::All => true,
            };
            if is_owner {
                engine.handle_opened(self.now, &opened);
            }
        }
        self.check_effects(host)
    }

    /// One turn of every engine; whether there was anything to do.
    fn round(&mut self, host: usize) -> Check<bool> {
        let mut worked = false;
        let shards = self.hosts[host].engines.len();
        for shard in 0..shards {
            worked |= self.hosts[host].engines[shard].poll(self.now);
            self.check_effects(host)?;
            while let Some((to, packet)) = self.hosts[host].engines[shard].poll_packet() {
                self.hosts[host].engines[to as usize].handle_packet(packet);
                worked = true;
            }
            while self.hosts[host].engines[shard].poll_event().is_some() {}
            if self.hosts[host].stalled_until <= self.now {
                worked |= self.transmit(host, shard)?;
            }
        }
        Ok(worked)
    }

    fn transmit(&mut self, host: usize, shard: usize) -> Check<bool> {
        let mut transmits = self.transmits.take().unwrap_or_default();
        let worked = self.hosts[host].engines[shard].poll_transmit(self.now, &mut transmits);
        self.check_effects(host)?;
        self.send_all(host, transmits);
        Ok(worked)
    }

    /// Makes the engines execute the posted requests of a queue pair, as a router does before a command that ends it.
    pub(super) fn settle_posted(&mut self, end: usize) -> Check {
        let (node, handle) = (self.node_of(end), self.model.ends[end].handle);
        let (at, context) = (self.plan.nodes[node], self.nodes[node].context);
        let is_stalled = self.hosts[at.host].stalled_until > self.now;
        for _ in 0..SETTLE_ROUNDS {
            let mut transmits = self.transmits.take().unwrap_or_default();
            let to = (!is_stalled).then_some(&mut transmits);
            let engine = &mut self.hosts[at.host].engines[at.shard as usize];
            let has_more = engine.settle_qp(self.now, context, handle, &mut Budget::of_command(), to);
            let is_away = engine.device(context).is_ok_and(|device| device.has_packets_away(handle));
            self.check_effects(at.host)?;
            self.send_all(at.host, transmits);
            if is_away {
                self.exchange(at.host)?;
            } else if !has_more {
                break;
            }
        }
        Ok(())
    }

    /// Exchanges packets between the engines of a host.
    fn exchange(&mut self, host: usize) -> Check {
        let shards = self.hosts[host].engines.len();
        for shard in 0..shards {
            while let Some((to, packet)) = self.hosts[host].engines[shard].poll_packet() {
                self.hosts[host].engines[to as usize].handle_packet(packet);
            }
        }
        for shard in 0..shards {
            self.hosts[host].engines[shard].poll(self.now);
            self.check_effects(host)?;
            while let Some((to, packet)) = self.hosts[host].engines[shard].poll_packet() {
                self.hosts[host].engines[to as usize].handle_packet(packet);
            }
        }
        Ok(())
    }

    fn send_all(&mut self, host: usize, mut transmits: Transmits) {
        for train in transmits.trains() {
            for bytes in transmits.bytes(train).chunks(train.segment.max(1)) {
                self.send(host, train, bytes);
            }
        }
        transmits.clear();
        self.transmits = Some(transmits);
    }

    fn send(&mut self, from: usize, train: &Train, bytes: &[u8]) {
        let Train { target, traffic_class, lane, .. } = *train;
        let (host, origin) = match target {
            Target::Host(ip) => {
                let Some(host) = (0..self.hosts.len()).find(|&host| Host::address(host) == ip) else { return };
                (host, Origin::Host(Host::address(from)))
            }
            Target::External { from, to, .. } => {
                let found = self.plan.nodes.iter().position(|node| node.plain && node.gid.ip() == to);
                let Some(node) = found else { return };
                let id = ExternalId(node as u32);
                let from_port = super::setup::SOURCE_PORT;
                (self.plan.nodes[node].host, Origin::External { id, from, from_port, to })
            }
        };
        self.sent += 1;
        self.note([5, from as u64, digest(bytes)], || super::snoop::packet(&format!("host {from} →"), bytes, &origin));
        if let Some(flying) = &mut self.flying {
            let incoming = Incoming { origin, traffic_class, bytes: bytes.to_vec(), sent: self.now, waited: 0 };
            return flying.push(Flying { host, incoming });
        }
        let lanes = &mut self.links[from][host];
        let lane = lane.index() % lanes.len();
        let link = &mut lanes[lane];
        let arrivals = link.send(self.now, bytes, &mut self.network, &mut self.model.seen);
        self.snoop.sent(host, bytes, &origin, arrivals.is_empty());
        for arrival in arrivals {
            let mark = arrival.marked && traffic_class & 3 != 0;
            if mark {
                self.model.seen.count(Seen::Marked);
            }
            let traffic_class = traffic_class | if mark { 3 } else { 0 };
            let incoming = Incoming { origin, traffic_class, bytes: arrival.bytes, sent: self.now, waited: 0 };
            let happening = match self.last_links.is_empty() {
                true => Happening::Arrival { host, incoming },
                false => Happening::Switch { host, incoming },
            };
            self.schedule(arrival.at, happening);
        }
    }
}

/// Turns after which a host that still has work is taken to have it for ever.
const ROUNDS: usize = 20_000;
/// Number of packet exchanges between engines that a command waits for.
const SETTLE_ROUNDS: usize = 4;
/// Datagrams after which a run is taken to be a flood: hundreds of times what most runs send.
const FLOOD: u64 = 300_000;
