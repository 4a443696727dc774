//! rdma_cm: the router's side of `/dev/infiniband/rdma_cm`.
//!
//! Identifiers, ports, addresses and events of connections, with the kernel's semantics (`cma.c` and `ucma.c` of Linux). The
//! messages between the two sides of a connection, with all their timers, are [`rdmesh_nic::cm`]'s. Two sides on this host
//! exchange the same messages in memory.
//!
//! * [`address`], [`header`]: socket addresses, and their form in a connection request.
//! * [`places`], [`node`], [`ports`]: endpoints, their port spaces, and the paths to peers.
//! * [`channels`], [`channel`], [`event`]: event channels and events.
//! * [`registry`], [`id`], [`numbers`]: identifiers.
//! * [`call`], [`commands`]: commands of programs that concern no connection.
//! * [`queries`]: address resolution of peers that are not endpoints.
//! * [`connections`], [`connection`]: connections, and the queue pair attributes that follow from them.
//! * [`tracked`]: connection tracking for security groups.
//! * [`grace`]: the grace period of a closed listener's port.

mod address;
mod call;
mod census;
mod channel;
mod channels;
mod commands;
mod connection;
mod connections;
mod event;
mod grace;
mod header;
mod id;
mod node;
mod numbers;
mod places;
mod ports;
mod queries;
mod registry;
#[cfg(test)]
mod tests;
mod tracked;

pub use census::ConnectionRow;
pub(crate) use commands::peer_of_resolution;
pub(crate) use node::NodeSpec;
pub(crate) use queries::Query;

use crate::endpoint::EndpointId;
use crate::routes::SharedRoutes;
use call::Call;
use connections::Connections;
use rdmesh_nic::cm::{CmPath, Mad};
use rdmesh_nic::{ExternalId, ExternalPort, ReceivedMad, Route, Time};
use rdmesh_uverbs::session::Token;
use rdmesh_verbs::{Mtu, Qpn};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Connection manager of a router: all identifiers of its endpoints, their connections, and the messages between them.
pub(crate) struct ConnectionManager {
    connections: Connections,
    /// Messages to other machines.
    outgoing: VecDeque<Mad>,
}

impl ConnectionManager {
    /// A manager without endpoints. Numbers that a peer should not guess are drawn from `seed`.
    pub(crate) fn new(seed: u64, routes: SharedRoutes) -> Self {
        Self { connections: Connections::new(seed, routes), outgoing: VecDeque::new() }
    }

    /// Adds an endpoint.
    pub(crate) fn add_node(&mut self, endpoint: EndpointId, spec: NodeSpec) {
        self.connections.registry.add_node(endpoint, spec);
    }

    /// Removes an endpoint, whose channels have been closed.
    pub(crate) fn remove_node(&mut self, endpoint: EndpointId) {
        self.connections.remove_node(endpoint);
    }

    /// Sets the MTU of the port of an endpoint's device.
    pub(crate) fn set_mtu(&mut self, endpoint: EndpointId, mtu: Mtu) {
        if let Ok(node) = self.connections.registry.places.node_mut(endpoint) {
            node.mtu = mtu;
        }
    }

    /// Opens a channel; returns its number and the program's descriptor.
    pub(crate) fn open(&mut self, endpoint: EndpointId, pid: i32, token: Token) -> Result<(u32, OwnedFd), Errno> {
        self.connections.registry.open(endpoint, pid, token)
    }

    /// The channel of `endpoint` with this token.
    pub(crate) fn find(&self, endpoint: EndpointId, token: &Token) -> Option<u32> {
        self.connections.registry.channels.find(endpoint, token)
    }

    /// Closes a channel, and ends what belongs to it.
    pub(crate) fn close(&mut self, now: Time, number: u32) {
        self.connections.close(now, number);
        self.pump(now);
    }

    /// The endpoint of a channel.
    pub(crate) fn endpoint_of(&self, number: u32) -> Option<EndpointId> {
        self.connections.registry.channels.endpoint_of(number)
    }

    /// The queue pairs of a channel's connections, as far as programs have told their numbers.
    pub(crate) fn queue_pairs(&self, number: u32) -> Vec<Qpn> {
        self.connections.registry.queue_pairs(number)
    }

    /// Sets a channel's path to external peers.
    pub(crate) fn set_external_path(&mut self, number: u32, external: Option<ExternalPort>) {
        self.connections.registry.set_external_path(number, external);
    }

    /// Records that a device that was opened has a path to external peers.
    pub(crate) fn add_external_path(&mut self, endpoint: EndpointId, external: ExternalPort) {
        self.connections.registry.places.add_external_path(endpoint, external);
    }

    /// It has it no longer.
    pub(crate) fn remove_external_path(&mut self, endpoint: EndpointId, id: ExternalId) {
        self.connections.registry.places.remove_external_path(endpoint, id);
    }

    /// Executes what a program wrote to its channel; returns the response.
    pub(crate) fn command(&mut self, now: Time, channel: u32, bytes: &[u8]) -> Result<Vec<u8>, Errno> {
        let (command, call) = Call::parse(now, channel, bytes)?;
        let done = self.connections.execute(command, &call);
        self.pump(now);
        done
    }

    /// The peer of the connection that the last command asked for, where security groups have refused it.
    pub(crate) fn take_refused_peer(&mut self) -> Option<IpAddr> {
        self.connections.take_refused_peer()
    }

    /// Connections that security groups have refused.
    pub(crate) fn forbidden(&self) -> u64 {
        self.connections.forbidden()
    }

    /// Whether a command needs a channel's path to external peers, which the channel does not have yet.
    pub(crate) fn needs_external_path(&self, channel: u32, bytes: &[u8]) -> bool {
        commands::needs_external_path(&self.connections.registry, channel, bytes)
    }

    /// The queue pair of the connection that a command ends.
    pub(crate) fn ends(&self, channel: u32, bytes: &[u8]) -> Option<Qpn> {
        commands::ends(&self.connections.registry, channel, bytes)
    }

    /// Whether a command takes events from a channel that the program has not read. A command that would fail takes none.
    pub(crate) fn takes_events(&self, channel: u32, bytes: &[u8]) -> bool {
        commands::takes_events(&self.connections.registry, channel, bytes)
    }

    /// Queries in progress, by identifier.
    pub(crate) fn queries(&self) -> Vec<(u32, Query)> {
        self.connections.registry.queries()
    }

    /// Whether there are queries in progress.
    pub(crate) fn has_queries(&self) -> bool {
        !self.connections.registry.queries.is_empty()
    }

    /// Records that a probe has been sent.
    pub(crate) fn probed(&mut self, number: u32) {
        self.connections.registry.queries.probed(number);
    }

    /// Ends a query: the peer is present, or unreachable.
    pub(crate) fn answer_query(&mut self, number: u32, found: Result<(), Errno>) {
        self.connections.registry.answer_query(number, found);
    }

    /// A message from another machine.
    pub(crate) fn receive(&mut self, now: Time, mad: &ReceivedMad) {
        let Some(mad) = self.connections.registry.places.locate(mad) else { return };
        self.connections.receive(now, &mad);
        self.pump(now);
    }

    /// Whether a message from another machine ends a connection.
    pub(crate) fn is_end(&self, mad: &ReceivedMad) -> bool {
        self.connections.registry.places.locate(mad).is_some_and(|mad| self.connections.is_end(&mad))
    }

    /// The next message to another machine.
    pub(crate) fn poll_mad(&mut self) -> Option<Mad> {
        self.outgoing.pop_front()
    }

    /// The next deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.connections.poll_timeout()
    }

    /// Handles expired deadlines.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.connections.handle_timeout(now);
        self.pump(now);
    }

    /// Delivers messages between connections of this host, collects those for other machines, and converts the protocol's
    /// events, until there are no more.
    fn pump(&mut self, now: Time) {
        while let Some(mad) = self.connections.poll_mad(now) {
            self.forward(now, mad);
        }
    }

    fn forward(&mut self, now: Time, mad: Mad) {
        let (path, places) = (mad.path, &self.connections.registry.places);
        if places.route(path.vni, path.remote) != Route::Local {
            let path = places.present(path);
            if self.outgoing.len() < MAX_OUTGOING {
                self.outgoing.push_back(Mad { path, ..mad });
            }
        } else if places.at(path.vni, path.remote).is_some() {
            let back = CmPath { local: path.remote, remote: path.local, external: None, ..path };
            self.connections.receive(now, &Mad { path: back, bytes: mad.bytes });
        }
    }
}

/// Messages that wait for the workers. More are lost, as on a wire; their senders repeat them.
const MAX_OUTGOING: usize = 4096;
