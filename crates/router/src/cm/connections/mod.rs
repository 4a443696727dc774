//! The connections of identifiers: what programs ask of their peers, and what peers ask of them.
//!
//! * [`commands`]: commands of programs.
//! * [`incoming`]: requests and responses of peers, converted into events.

mod commands;
mod incoming;

use super::grace::GracePeriods;
use super::registry::Registry;
use crate::endpoint::EndpointId;
use crate::routes::SharedRoutes;
use rdmesh_nic::Time;
use rdmesh_nic::cm::{Cm, CmCounters, CmState, CommId, Mad};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// The identifiers of a host's programs, and their connections.
pub(super) struct Connections {
    pub(super) registry: Registry,
    protocol: Cm,
    /// The identifier of each connection.
    ids: HashMap<CommId, u32>,
    grace_periods: GracePeriods,
    /// Rejections reported to programs, by reason.
    rejected: BTreeMap<u16, u64>,
    /// Connections that security groups have refused.
    forbidden: u64,
    /// The peer of the last one that a program asked for, until it is recorded.
    refused_peer: Option<IpAddr>,
}

impl Connections {
    /// No identifiers. Numbers that a peer should not guess are drawn from `seed`.
    pub(super) fn new(seed: u64, routes: SharedRoutes) -> Self {
        Self {
            registry: Registry::new(seed, routes),
            protocol: Cm::new(seed),
            ids: HashMap::new(),
            grace_periods: GracePeriods::default(),
            rejected: BTreeMap::new(),
            forbidden: 0,
            refused_peer: None,
        }
    }

    /// Removes an endpoint, whose channels have been closed.
    pub(super) fn remove_node(&mut self, endpoint: EndpointId) {
        for (comm, _) in self.grace_periods.remove(endpoint) {
            self.protocol.forget(comm);
        }
        self.registry.places.remove(endpoint);
    }

    /// Closes a channel, and ends what belongs to it.
    pub(super) fn close(&mut self, now: Time, number: u32) {
        // Its events go with it, and need not be taken out for each identifier.
        let Some(channel) = self.registry.channels.remove(number) else { return };
        for id in &channel.ids {
            self.destroy(now, *id);
        }
        if let Some(Some(external)) = channel.external {
            self.registry.places.remove_external_path(channel.endpoint, external.id);
        }
    }

    /// Takes a message of a peer.
    pub(super) fn receive(&mut self, now: Time, mad: &Mad) {
        self.protocol.handle_mad(now, mad);
    }

    /// Whether a message ends a connection.
    pub(super) fn is_end(&self, mad: &Mad) -> bool {
        self.protocol.is_end(mad)
    }

    /// The next message to a peer. Between two of them the protocol's events become the programs'.
    pub(super) fn poll_mad(&mut self, now: Time) -> Option<Mad> {
        loop {
            if let Some(mad) = self.protocol.poll_mad() {
                return Some(mad);
            }
            let (comm, event) = self.protocol.poll_event()?;
            self.handle_event(now, comm, event);
        }
    }

    /// The next deadline.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.protocol.poll_timeout().into_iter().chain(self.grace_periods.poll_timeout()).min()
    }

    /// Handles expired deadlines.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.protocol.handle_timeout(now);
        for (comm, event) in self.grace_periods.take_due(now) {
            self.handle_now(now, comm, event);
        }
    }

    /// Counters of the protocol.
    pub(super) fn counters(&self) -> CmCounters {
        self.protocol.counters()
    }

    /// Rejections reported to programs, by reason (IBA 12.6.7.2).
    pub(super) fn rejected(&self) -> Vec<(u16, u64)> {
        self.rejected.iter().map(|(reason, count)| (*reason, *count)).collect()
    }

    /// Connections that security groups have refused.
    pub(super) fn forbidden(&self) -> u64 {
        self.forbidden
    }

    /// The peer of the connection that the last command asked for, where security groups have refused it.
    pub(super) fn take_refused_peer(&mut self) -> Option<IpAddr> {
        self.refused_peer.take()
    }

    /// The state of a connection, while it is an identifier's.
    pub(super) fn state(&self, comm: CommId) -> Option<CmState> {
        self.protocol.info(comm).map(|info| info.state)
    }

    /// Whether no identifier has a connection.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Destroys an identifier in any state. Returns how many of its events the program has read.
    fn destroy(&mut self, now: Time, number: u32) -> u32 {
        let Some((id, children)) = self.registry.remove(number) else { return 0 };
        for child in children {
            self.destroy(now, child);
        }
        if let Some(comm) = id.comm {
            self.ids.remove(&comm);
            self.protocol.destroy(now, comm);
        }
        id.reported
    }
}
