//! Injected events: death and return of hosts, broken queue pairs; and the end of a run.

use super::serve::Host;
use super::{Happening, World};
use crate::coverage::Seen;
use crate::model::{Check, violated};
use crate::plan::{FaultPlan, HostPlan, PairPlan};
use rdmesh_nic::{Engine, Time};
use rdmesh_verbs::{AttrMask, Psn, QpAttr, QpState};

impl World {
    pub(super) fn fault(&mut self, fault: FaultPlan) -> Check {
        self.note([6, 0, 0], || format!("{fault:?}"));
        match fault {
            FaultPlan::Partition { from, to } => self.links[from][to].iter_mut().for_each(|link| link.down = true),
            FaultPlan::Rejoin { from, to } => self.links[from][to].iter_mut().for_each(|link| link.down = false),
            FaultPlan::Kill { host } => self.kill(host),
            FaultPlan::Revive { host } => return self.revive(host),
            FaultPlan::Recreate { pair } => {
                let side = self.faults.between(0, 2) as usize;
                self.destroy(self.pairs[pair][side])?;
                self.model.seen.count(Seen::Recreated);
                let after = self.faults.scale(1_000, 3_000_000);
                self.connect_later(pair, after);
            }
            FaultPlan::Break { pair, side } => return self.break_(self.pairs[pair][side]),
        }
        Ok(())
    }

    /// A host dies at once, with everything on it.
    fn kill(&mut self, host: usize) {
        self.model.seen.count(Seen::Killed);
        self.count_wire_of(host);
        for end in 0..self.model.ends.len() {
            if self.model.ends[end].alive && self.model.ends[end].host == host {
                self.retire(end);
                self.model.close(end);
            }
        }
        for (node, plan) in self.nodes.iter().zip(&self.plan.nodes) {
            if plan.host == host {
                self.model.by_region.retain(|_, space| *space != node.space);
            }
        }
        let generation = self.hosts[host].generation + 1;
        self.hosts[host] = Host::new(host, HostPlan { shards: 0, ..self.plan.hosts[host] }, 0, generation);
        self.hosts[host].alive = false;
    }

    fn revive(&mut self, host: usize) -> Check {
        self.model.seen.count(Seen::Revived);
        let generation = self.hosts[host].generation;
        self.hosts[host] = Host::new(host, self.plan.hosts[host], self.plan.seed, generation);
        self.set_routes(host);
        for node in 0..self.nodes.len() {
            if self.plan.nodes[node].host == host {
                self.nodes[node] = self.open(node)?;
            }
        }
        for pair in 0..self.pairs.len() {
            if self.plan.pairs[pair].nodes.iter().any(|&node| self.plan.nodes[node].host == host) {
                for end in self.pairs[pair] {
                    self.destroy(end)?;
                }
                let after = self.faults.scale(10_000, 3_000_000);
                self.connect_later(pair, after);
            }
        }
        Ok(())
    }

    /// A program moves its queue pair to ERR.
    pub(super) fn break_(&mut self, end: usize) -> Check {
        if !self.model.ends[end].alive {
            return Ok(());
        }
        self.model.seen.count(Seen::ProgramError);
        self.settle_posted(end)?;
        self.model.ends[end].excused = true;
        let (node, handle) = (self.node_of(end), self.model.ends[end].handle);
        let at = self.plan.nodes[node];
        let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
        let engine = &mut self.hosts[at.host].engines[at.shard as usize];
        let device = engine.device(self.nodes[node].context);
        if let Err(error) = device.and_then(|mut device| device.modify_qp(self.now, handle, &attr, AttrMask::STATE)) {
            return violated("command", format!("to ERR: {error:?}"));
        }
        self.check_effects(at.host)?;
        self.wake(at.host);
        Ok(())
    }

    /// Nothing goes wrong any more.
    pub(super) fn heal(&mut self) {
        self.note([7, 0, 0], || "all is well again");
        self.model.healed = Some(self.now);
        self.plan.stall = 0.0;
        for link in self.links.iter_mut().flatten().flatten() {
            link.down = false;
            link.plan = crate::link::LinkPlan { rate: 0, ..link.plan.healed() };
        }
    }

    /// Time at which everything must be done: the longest retry time, twice, and some time for the programs.
    pub(super) fn deadline(&self) -> Time {
        let longest = self.plan.pairs.iter().map(PairPlan::retry_time).max().unwrap_or(0);
        Time(self.plan.heal + 2 * longest + 2_000_000_000)
    }

    /// Whether all requests have ended.
    pub(super) fn is_done(&self) -> bool {
        let connecting =
            self.happenings.iter().flatten().any(|h| matches!(h, Happening::Connect(_) | Happening::Fault(_)));
        self.model.healed.is_some() && !connecting && self.model.ends.iter().all(|end| !end.alive || end.is_done())
    }

    /// Unfinished requests, in words.
    pub(crate) fn unfinished(&self) -> String {
        let stuck = self.model.ends.iter().enumerate().filter(|(_, end)| end.alive && !end.is_done());
        let words = stuck.map(|(index, end)| {
            let flow = &end.flow;
            let next = flow.ops.get(flow.completed).map(|op| op.kind);
            let (posted, left) = (flow.ops.len(), end.left);
            let receives = self.model.queues[self.model.ends[end.peer].queue].len();
            format!(
                "end {index}: {} of {posted} requests completed, {} executed, {left} to come; next is {next:?}; \
                 the peer has {receives} receives posted",
                flow.completed, flow.executed
            )
        });
        words.collect::<Vec<_>>().join("; ")
    }

    /// Checks that hosts come to rest: no timer of a host without queue pairs in error goes on for ever.
    pub(super) fn settle(&mut self) -> Check {
        for host in 0..self.hosts.len() {
            // The engine polls for requests that are posted to a queue pair in error.
            if (0..self.model.ends.len()).any(|end| self.model.ends[end].host == host && self.is_in_error(end)) {
                continue;
            }
            let mut timers = 0;
            while let Some(at) = self.hosts[host].engines.iter().filter_map(Engine::poll_timeout).min() {
                self.now = Time(at.0.max(self.now.0 + 1));
                self.serve(host)?;
                timers += 1;
                if timers > 1000 {
                    return violated("P13", format!("host {host} has timers though there is nothing to do"));
                }
            }
        }
        Ok(())
    }

    fn is_in_error(&mut self, end: usize) -> bool {
        let (this, node) = (&self.model.ends[end], self.node_of(end));
        let engine = self.hosts[this.host].engines.get_mut(self.plan.nodes[node].shard as usize).filter(|_| this.alive);
        let device = engine.and_then(|engine| engine.device(self.nodes[node].context).ok());
        let info = device.and_then(|device| device.query_qp(this.handle).ok());
        info.is_some_and(|info| info.state() == QpState::Error)
    }

    /// Adds a queue pair's counters to the coverage, before it is destroyed.
    pub(super) fn retire(&mut self, end: usize) {
        let this = &self.model.ends[end];
        let (node, side) = (self.node_of(end), this.pair.1);
        let at = self.plan.nodes[node];
        let Some(engine) = self.hosts[at.host].engines.get_mut(at.shard as usize).filter(|_| this.alive) else {
            return;
        };
        let device = engine.device(self.nodes[node].context);
        let Ok(info) = device.and_then(|device| device.query_qp(this.handle)) else { return };
        let start: Psn = this.plan.psns[side];
        let counters = info.counters;
        let seen = &mut self.model.seen;
        if info.next_psn.value() < start.value() && info.next_psn.since(start) > 0 {
            seen.count(Seen::PsnWrapped);
        }
        seen.add(Seen::Rnr, counters.rnr_naks);
        seen.add(Seen::Timeout, counters.retries);
        seen.add(Seen::Retransmitted, counters.retransmitted);
        seen.add(Seen::Duplicate, counters.duplicates);
        seen.add(Seen::OutOfOrder, counters.out_of_order);
        seen.add(Seen::CnpSent, counters.cnps_sent);
        seen.add(Seen::CnpReceived, counters.cnps_received);
    }

    pub(super) fn count_wire(&mut self) {
        for host in 0..self.hosts.len() {
            self.count_wire_of(host);
        }
    }

    fn count_wire_of(&mut self, host: usize) {
        for engine in &self.hosts[host].engines {
            let wire = engine.wire_counters();
            self.model.seen.add(Seen::Malformed, wire.malformed);
            self.model.seen.add(Seen::BadIcrc, wire.bad_icrc);
            self.model.seen.add(Seen::UnknownQp, wire.unknown_qp);
            self.model.seen.add(Seen::WrongSource, wire.wrong_source);
        }
    }
}
