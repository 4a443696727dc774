//! rdma_cm channels of programs, each with a connection of its own.

use super::account::{Account, BudgetCharge};
use super::connection::{Answer, Subject};
use super::context::{random_token, way};
use super::info::{CmTotals, ConnectionInfo};
use super::lookups::Found;
use super::reply::Reply;
use super::server::Server;
use crate::budget::Resource;
use crate::cm::{ConnectionRow, NodeSpec};
use crate::endpoint::EndpointId;
use crate::io::PlainUse;
use rdmesh_nic::{ContextId, ReceivedMad};
use rdmesh_uverbs::session::{OpenCmReply, Token};
use rdmesh_verbs::Qpn;
use rustix::event::Timespec;
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Session state of a channel.
pub(super) struct CmChannel {
    /// The connection that opened it.
    pub(super) opener: u64,
    /// Connections that use it: the opener's, and its forked children's.
    connections: u32,
    /// Its path to external peers.
    pub(super) plain: Option<PlainUse>,
    /// Its charge.
    _charge: BudgetCharge,
}

/// Bytes of the router's memory that a channel takes.
const MEMORY: u64 = 8192;
/// Both ends of its events.
const DESCRIPTORS: u64 = 2;

impl Server {
    /// Adds an endpoint to the connection manager.
    pub(super) fn add_node(&mut self, account: &Account) {
        let (spec, share) = (&account.spec, &account.share);
        // Some more than queue pairs: there are listeners, and those that are about to get theirs or have lost it.
        let max_ids = spec.quota.qps.saturating_mul(2).saturating_add(1024);
        let memory = share.take(Resource::Memory, 0).ok().map(Arc::new);
        let node = NodeSpec { vni: spec.vni, gids: spec.gids.clone(), guid: spec.node_guid(), max_ids, memory };
        self.cm.add_node(spec.id, node);
    }

    pub(super) fn open_cm(&mut self, id: u64) -> Answer {
        let connection = self.clients.get_mut(id).ok_or(Errno::INVAL)?;
        let endpoint = self.accounts.get(connection.endpoint).ok_or(Errno::NODEV)?;
        let charge = BudgetCharge::new(&endpoint.account.share, MEMORY, DESCRIPTORS)?;
        let token = random_token()?;
        let (number, program) = self.cm.open(connection.endpoint, connection.peer.pid, token)?;
        connection.subject = Some(Subject::Channel(number));
        self.cm_channels.insert(number, CmChannel { opener: id, connections: 1, plain: None, _charge: charge });
        let reply = Reply::new(&OpenCmReply { token, number, reserved: 0 }).with_open(program);
        let response = reply.core.clone();
        Ok((reply, response))
    }

    pub(super) fn attach_cm(&mut self, id: u64, body: &[u8]) -> Answer {
        let token = Token::read_from_bytes(body).map_err(|_| Errno::INVAL)?;
        let connection = self.clients.get_mut(id).ok_or(Errno::INVAL)?;
        let number = self.cm.find(connection.endpoint, &token).ok_or(Errno::ACCESS)?;
        self.cm_channels.get_mut(&number).ok_or(Errno::ACCESS)?.connections += 1;
        connection.subject = Some(Subject::Channel(number));
        Ok((Reply::default(), Vec::new()))
    }

    pub(super) fn cm_command(&mut self, id: u64, channel: u32, body: &[u8]) -> Answer {
        self.cm.set_routes(self.devices.shards()[0].routes());
        self.set_way(id, channel);
        if let Some(qpn) = self.cm.ends(channel, body) {
            self.settle_connections(channel, &[qpn]);
        }
        let response = self.cm.command(self.clock.now(), channel, body);
        self.accounts.totals.commands += 1;
        // The absence of an event does not count as a failure.
        self.accounts.totals.commands_failed += u64::from(response.as_ref().is_err_and(|errno| *errno != Errno::AGAIN));
        self.send_cm();
        response.map(|response| (Reply::default(), response))
    }

    /// A connection of a channel is gone.
    pub(super) fn close_cm(&mut self, number: u32) {
        let Some(channel) = self.cm_channels.get_mut(&number) else { return };
        channel.connections -= 1;
        if channel.connections > 0 {
            return;
        }
        self.settle_connections(number, &self.cm.queue_pairs(number));
        self.cm.set_routes(self.devices.shards()[0].routes());
        self.cm.close(self.clock.now(), number);
        // While its sockets are still there.
        self.send_cm();
        self.cm_channels.remove(&number);
    }

    /// Takes a connection manager's message from another machine.
    pub(super) fn cm_receive(&mut self, mad: ReceivedMad) {
        self.cm.set_routes(self.devices.shards()[0].routes());
        if self.cm.is_end(&mad) {
            // The peer's earlier packets may be with another worker, or in another socket.
            self.settle_workers();
        }
        self.cm.receive(self.clock.now(), &mad);
        self.send_cm();
    }

    /// Handles expired timers. Returns the time until the next one.
    pub(super) fn run_cm_timers(&mut self) -> Option<Timespec> {
        let look_again = self.run_cm_queries();
        let now = self.clock.now();
        if self.cm.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.cm.set_routes(self.devices.shards()[0].routes());
            self.cm.handle_timeout(now);
            self.send_cm();
        }
        let deadline = self.cm.poll_timeout().map(|deadline| deadline.0.saturating_sub(now.0));
        let wait = [look_again, deadline].into_iter().flatten().min()?;
        // Rounded up: woken too early there would be nothing to do.
        let (seconds, nanoseconds) = (wait / NANOSECONDS, wait % NANOSECONDS + 1);
        Some(Timespec { tv_sec: seconds as i64, tv_nsec: nanoseconds.min(NANOSECONDS - 1) as i64 })
    }

    /// Before the peers of queue pairs, which are those of a channel's connections, are told of the end, they are sent what
    /// had been posted.
    fn settle_connections(&self, channel: u32, qpns: &[Qpn]) {
        let Some(endpoint) = self.cm.endpoint_of(channel).filter(|_| !qpns.is_empty()) else { return };
        for (index, shard) in self.devices.shards().iter().enumerate() {
            let of_endpoint = self.devices.of_endpoint(endpoint).filter(|context| context.shard_index == index);
            let contexts: Vec<ContextId> = of_endpoint.map(|context| context.id).collect();
            if !contexts.is_empty() {
                let qpns = qpns.to_vec();
                shard.settle(move |shard| {
                    qpns.iter().fold(false, |is_away, qpn| shard.settle_number(*qpn, &contexts) | is_away)
                });
            }
        }
    }

    /// Makes every worker receive the packets that have arrived for it.
    fn settle_workers(&self) {
        // A packet that one of them receives may be for another.
        for _ in 0..self.devices.shards().len().min(2) {
            self.devices.shards().iter().for_each(|shard| shard.call_settled(|_| ()));
        }
    }

    fn send_cm(&mut self) {
        let mads: Vec<_> = std::iter::from_fn(|| self.cm.poll_mad()).collect();
        self.send_mads(mads);
    }

    /// Takes the path of a channel's program to external peers, where it has been looked up for a command.
    fn set_way(&mut self, id: u64, number: u32) {
        let Some(connection) = self.clients.get_mut(id) else { return };
        let Some(Found::Place(place)) = connection.found.take() else { return };
        if let Some(endpoint) = self.accounts.get(connection.endpoint) {
            endpoint.account.report_outside(place.plain.as_ref().err());
        }
        let plain = place.plain.ok();
        self.cm.set_way(number, plain.as_ref().map(way));
        if let Some(channel) = self.cm_channels.get_mut(&number) {
            channel.plain = plain;
        }
    }

    /// Every identifier.
    pub(super) fn connection_infos(&self) -> Vec<ConnectionInfo> {
        let named = |row: ConnectionRow| {
            let spec = &self.accounts.get(row.endpoint)?.account.spec;
            Some(ConnectionInfo { name: spec.name.clone(), network: spec.network.clone(), row })
        };
        self.cm.rows().into_iter().filter_map(named).collect()
    }

    pub(super) fn cm_totals(&self) -> CmTotals {
        let (census, counters) = (self.cm.census(), self.cm.counters());
        CmTotals {
            channels: census.channels as u64,
            ids: census.ids as u64,
            listeners: census.listeners as u64,
            waiting_events: census.waiting_events as u64,
            connections: counters.live as u64,
            time_wait: counters.time_wait as u64,
            sent: counters.sent.iter().sum(),
            received: counters.received.iter().sum(),
            retried: counters.retried.iter().sum(),
            duplicates: counters.duplicate.iter().sum(),
            unexpected: counters.malformed + counters.unexpected,
            overflow: counters.overflow,
            rejected: self.cm.rejected(),
        }
    }

    /// Removes an endpoint from the connection manager; its channels are closed already.
    pub(super) fn remove_node(&mut self, endpoint: EndpointId) {
        self.cm.remove_node(endpoint);
    }
}

const NANOSECONDS: u64 = 1_000_000_000;
