//! rdma_cm channels of programs, each with a connection of its own.

use super::account::Account;
use super::cm_server::CmServer;
use super::cm_state::{CmChannel, Node};
use super::connection::{Answer, Attempt, Flow, Frame, Subject, Until};
use super::context::external_port;
use super::control::Control;
use super::device::OpenDevice;
use super::info::{CmTotals, ConnectionInfo};
use super::lookups::Found;
use super::program::Process;
use super::reply::Reply;
use super::token::random_token;
use crate::budget::Resource;
use crate::cm::{ConnectionRow, NodeSpec};
use crate::endpoint::EndpointId;
use crate::netlink::CmId;
use rdmesh_nic::ReceivedMad;
use rdmesh_uverbs::session::{OpenCmReply, RequestKind, Token};
use rdmesh_verbs::Qpn;
use rustix::event::Timespec;
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::FromBytes;

impl CmServer {
    /// Adds an endpoint.
    pub(super) fn add_node(&mut self, account: Account) {
        let spec = account.spec();
        // Some more than queue pairs: there are listeners, and those that are about to get theirs or have lost it.
        let max_ids = spec.quota.qps.saturating_mul(2).saturating_add(1024);
        let memory = account.share().take(Resource::Memory, 0).ok().map(Arc::new);
        let node = NodeSpec { vni: spec.vni, gids: spec.gids.clone(), guid: spec.node_guid(), max_ids, memory };
        self.cm.add_node(spec.id, node);
        self.nodes.insert(spec.id, Node { account, devices: Vec::new() });
    }

    /// Removes an endpoint, with its channels.
    pub(super) fn remove_node(&mut self, endpoint: EndpointId) {
        let connections: Vec<u64> = self.clients.of_endpoint(endpoint);
        for connection in connections {
            self.close(connection);
        }
        self.nodes.remove(&endpoint);
        self.cm.remove_node(endpoint);
    }

    /// A device was opened.
    pub(super) fn device_opened(&mut self, endpoint: EndpointId, device: OpenDevice) {
        let Some(node) = self.nodes.get_mut(&endpoint) else { return };
        node.devices.push(device);
        self.cm.set_mtu(endpoint, device.mtu);
        if let Some(external) = device.external {
            self.cm.add_external_path(endpoint, external);
        }
    }

    /// A device is about to be closed.
    pub(super) fn device_closed(&mut self, endpoint: EndpointId, device: &OpenDevice) {
        let Some(node) = self.nodes.get_mut(&endpoint) else { return };
        node.devices.retain(|other| other.number != device.number);
        if let Some(external) = device.external {
            self.cm.remove_external_path(endpoint, external.id);
        }
    }

    /// Executes a message and answers it; an error where it has to wait.
    pub(super) fn execute(&mut self, id: u64, bytes: &[u8], attempt: Attempt) -> Result<Flow, Until> {
        let frame = match Frame::parse(bytes) {
            Ok(frame) => frame,
            Err(error) => return Ok(self.clients.expel(id, &error.to_string())),
        };
        let Some(connection) = self.clients.get(id) else { return Ok(Flow::Close) };
        let may_wait = attempt == Attempt::First && frame.may_wait();
        let answer = match (frame.kind, connection.subject()) {
            (RequestKind::OpenCm, None) => self.with_room(id, may_wait, |server| server.open(id))?,
            (RequestKind::AttachCm, None) => self.attach(id, frame.body),
            (RequestKind::CmUnlessEvents, Some(Subject::Channel(channel)))
                if self.cm.takes_events(channel, frame.body) =>
            {
                Err(Errno::AGAIN)
            }
            (RequestKind::Cm | RequestKind::CmUnlessEvents, Some(Subject::Channel(channel))) => {
                match self.look_first(id, channel, frame.body) {
                    Ok(true) => return Err(Until::Lookup),
                    Ok(false) => self.with_room(id, may_wait, |server| server.command(id, channel, frame.body))?,
                    Err(errno) => Err(errno),
                }
            }
            (RequestKind::Verbs | RequestKind::Ioctl | RequestKind::Cm | RequestKind::CmUnlessEvents, None) => {
                return Ok(self.clients.expel(id, "command before the device was opened"));
            }
            _ => Err(Errno::INVAL),
        };
        Ok(self.clients.answer(id, &frame, &answer, None))
    }

    /// Executes a command. Where the endpoint's budget is exhausted, the session thread evicts mappings, and the command has to
    /// wait until they have gone, if it may.
    fn with_room(
        &mut self,
        id: u64,
        may_wait: bool,
        command: impl FnOnce(&mut Self) -> Answer,
    ) -> Result<Answer, Until> {
        let answer = command(self);
        let Some(account) = self.clients.get(id).map(|connection| connection.account().clone()) else {
            return Ok(answer);
        };
        let refused = account.share().take_refusal();
        let Some(resource) = refused.filter(|_| answer.is_err()) else { return Ok(answer) };
        if may_wait {
            self.session.tell(Control::Evict(id));
            return Err(Until::Eviction);
        }
        self.note_exhausted(&account, resource);
        Ok(Err(resource.errno()))
    }

    fn note_exhausted(&mut self, account: &Account, resource: Resource) {
        self.totals.refused_by_quota += 1;
        account.exhausted(resource);
    }

    /// Begins to look for the path to external peers that a command needs. Returns whether the message has to wait for it.
    fn look_first(&mut self, id: u64, channel: u32, body: &[u8]) -> Result<bool, Errno> {
        let connection = self.clients.get(id).ok_or(Errno::INVAL)?;
        if connection.has_found() || !self.cm.needs_external_path(channel, body) {
            return Ok(false);
        }
        let (account, process) = (connection.account().clone(), Arc::clone(connection.program().process()));
        let begun = self.lookups.find_uplink(id, account.seeker(), process, self.external_paths.clone(), 0);
        if begun.is_err() {
            let refused = account.share().take_refusal();
            refused.into_iter().for_each(|resource| self.note_exhausted(&account, resource));
        }
        begun?;
        Ok(true)
    }

    fn open(&mut self, id: u64) -> Answer {
        let connection = self.clients.get_mut(id).ok_or(Errno::INVAL)?;
        let channel = CmChannel::new(id, connection.account())?;
        let token = random_token()?;
        let (number, program) = self.cm.open(connection.endpoint(), connection.program().process().pid, token)?;
        connection.set_subject(Subject::Channel(number));
        self.channels.insert(number, channel);
        let reply = Reply::new(&OpenCmReply { token, number, reserved: 0 }).with_open(program);
        let response = reply.core.clone();
        Ok((reply, response))
    }

    fn attach(&mut self, id: u64, body: &[u8]) -> Answer {
        let token = Token::read_from_bytes(body).map_err(|_| Errno::INVAL)?;
        let connection = self.clients.get_mut(id).ok_or(Errno::INVAL)?;
        let number = self.cm.find(connection.endpoint(), &token).ok_or(Errno::ACCESS)?;
        self.channels.get_mut(&number).ok_or(Errno::ACCESS)?.connections += 1;
        connection.set_subject(Subject::Channel(number));
        Ok((Reply::default(), Vec::new()))
    }

    fn command(&mut self, id: u64, channel: u32, body: &[u8]) -> Answer {
        self.set_external_path(id, channel);
        if let Some(qpn) = self.cm.ends(channel, body) {
            self.settle_connections(channel, &[qpn]);
        }
        let response = self.cm.command(self.clock.now(), channel, body);
        if let Some(peer) = self.cm.take_refused_peer()
            && let Some(connection) = self.clients.get(id)
        {
            connection.account().note_forbidden(peer, connection.program());
        }
        self.totals.commands += 1;
        // The absence of an event does not count as a failure.
        self.totals.commands_failed += u64::from(response.as_ref().is_err_and(|errno| *errno != Errno::AGAIN));
        self.send_cm();
        response.map(|response| (Reply::default(), response))
    }

    /// Closes a connection, and its channel when it was the last one.
    pub(super) fn close(&mut self, id: u64) {
        let Some(Subject::Channel(number)) = self.clients.remove(id) else { return };
        let Some(channel) = self.channels.get_mut(&number) else { return };
        channel.connections -= 1;
        if channel.connections > 0 {
            return;
        }
        self.settle_connections(number, &self.cm.queue_pairs(number));
        self.cm.close(self.clock.now(), number);
        // While its sockets are still there.
        self.send_cm();
        self.channels.remove(&number);
    }

    /// Takes a connection manager's message from another machine.
    pub(super) fn receive_mad(&mut self, mad: &ReceivedMad) {
        if self.cm.is_end(mad) {
            // The peer's earlier packets may be with another worker, or in another socket.
            self.settle_workers();
        }
        self.cm.receive(self.clock.now(), mad);
        self.send_cm();
    }

    /// Handles expired timers. Returns the time until the next one.
    pub(super) fn run_timers(&mut self) -> Option<Timespec> {
        let look_again = self.run_cm_queries();
        let now = self.clock.now();
        if self.cm.poll_timeout().is_some_and(|deadline| deadline <= now) {
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
        if self.nodes.get(&endpoint).is_none_or(|node| node.devices.is_empty()) {
            return;
        }
        // The endpoint's devices may be on any worker.
        for shard in &self.shards {
            let qpns = qpns.to_vec();
            shard.settle(move |shard| {
                qpns.iter().fold(false, |is_away, qpn| shard.settle_number(*qpn, endpoint.0) | is_away)
            });
        }
    }

    /// Makes every worker receive the packets that have arrived for it.
    fn settle_workers(&self) {
        // A packet that one of them receives may be for another.
        for _ in 0..self.shards.len().min(2) {
            self.shards.iter().for_each(|shard| shard.call_settled(|_| ()));
        }
    }

    fn send_cm(&mut self) {
        let mads: Vec<_> = std::iter::from_fn(|| self.cm.poll_mad()).collect();
        self.send_mads(mads);
    }

    /// Takes the path of a channel's program to external peers, where it has been looked up for a command.
    fn set_external_path(&mut self, id: u64, number: u32) {
        let Some(connection) = self.clients.get_mut(id) else { return };
        let Some(Found::Uplink(uplink)) = connection.take_found() else { return };
        connection.account().report_external(uplink.external.as_ref().err());
        let external = uplink.external.ok();
        self.cm.set_external_path(number, external.as_ref().map(external_port));
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.external = external;
        }
    }

    /// Every identifier.
    pub(super) fn connection_infos(&self) -> Vec<ConnectionInfo> {
        let named = |row: ConnectionRow| {
            let spec = self.nodes.get(&row.endpoint)?.account.spec();
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
            forbidden: self.cm.forbidden(),
            rejected: self.cm.rejected(),
        }
    }

    /// At most `limit` identifiers of an endpoint, from number `from` on, with the processes that opened their channels.
    pub(super) fn list(&self, endpoint: EndpointId, from: u32, limit: usize) -> Vec<(Option<Arc<Process>>, CmId)> {
        let opener = |channel: u32| {
            let opener = self.channels.get(&channel)?.opener;
            Some(Arc::clone(self.clients.get(opener)?.program().process()))
        };
        self.cm.list_ids(endpoint, from, limit).into_iter().map(|(channel, id)| (opener(channel), id)).collect()
    }
}

const NANOSECONDS: u64 = 1_000_000_000;
