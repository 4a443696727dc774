//! rdma_cm: the router's side of `/dev/infiniband/rdma_cm`.
//!
//! Identifiers, ports, addresses and events of connections, with the kernel's semantics (`cma.c` and `ucma.c` of Linux). The
//! messages between the two sides of a connection, with all their timers, are [`rdmesh_nic::cm`]'s. Two sides on this host
//! exchange the same messages in memory.
//!
//! * [`address`], [`header`]: socket addresses, and their form in a connection request.
//! * [`id`], [`ports`], [`node`]: identifiers, port spaces, and the endpoint that both belong to.
//! * [`queries`]: address resolution of peers that are not endpoints.
//! * [`channel`], [`event`]: event channels and events.
//! * [`commands`]: commands of programs.
//! * [`incoming`]: requests and responses of peers.
//! * [`vacancy`]: the grace period of a closed listener's port.

mod address;
mod census;
mod channel;
mod commands;
mod connection;
mod event;
mod header;
mod id;
mod incoming;
mod node;
mod ports;
mod queries;
#[cfg(test)]
mod tests;
mod vacancy;

pub use census::ConnectionRow;
pub(crate) use commands::peer_of_resolution;
pub(crate) use node::NodeSpec;
pub(crate) use queries::Query;

use crate::endpoint::EndpointId;
use crate::routes::SharedRoutes;
use channel::Channel;
use event::{Event, Pending};
use id::Id;
use node::{Group, ID_MEMORY, Node};
use rdmesh_nic::cm::{Cm, CmPath, CommId, Mad};
use rdmesh_nic::{Plain, PlainId, ReceivedMad, Route, Time};
use rdmesh_uverbs::session::Token;
use rdmesh_verbs::{Gid, Mtu, Psn, Qpn, Vni};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use vacancy::Vacancies;

/// Connection manager of a router: all identifiers of its endpoints, and their connections.
pub(crate) struct ConnectionManager {
    protocol: Cm,
    nodes: HashMap<EndpointId, Node>,
    /// The same by address.
    places: HashMap<(Vni, Gid), EndpointId>,
    channels: HashMap<u32, Channel>,
    ids: HashMap<u32, Id>,
    groups: HashMap<u32, Group>,
    vacancies: Vacancies,
    connections: HashMap<CommId, u32>,
    /// Endpoints that receive from the sockets of a namespace, with the number of channels and devices of each.
    ways: HashMap<PlainId, (Plain, HashMap<EndpointId, u32>)>,
    routes: SharedRoutes,
    /// Identifiers that wait for address resolution of a peer.
    queries: BTreeMap<u32, Query>,
    /// Messages to other machines.
    outgoing: VecDeque<Mad>,
    random: u64,
    /// Rejections reported to programs, by reason.
    rejected: BTreeMap<u16, u64>,
}

impl ConnectionManager {
    /// A manager without endpoints. Numbers that a peer should not guess are drawn from `seed`.
    pub(crate) fn new(seed: u64, routes: SharedRoutes) -> Self {
        Self {
            protocol: Cm::new(seed),
            nodes: HashMap::new(),
            places: HashMap::new(),
            channels: HashMap::new(),
            ids: HashMap::new(),
            groups: HashMap::new(),
            vacancies: Vacancies::default(),
            connections: HashMap::new(),
            ways: HashMap::new(),
            routes,
            queries: BTreeMap::new(),
            outgoing: VecDeque::new(),
            random: seed | 1,
            rejected: BTreeMap::new(),
        }
    }

    /// Adds an endpoint.
    pub(crate) fn add_node(&mut self, endpoint: EndpointId, spec: NodeSpec) {
        for gid in spec.gids.iter().filter(|gid| !gid.is_zero()) {
            self.places.insert((spec.vni, *gid), endpoint);
        }
        let seed = self.random();
        self.nodes.insert(endpoint, Node::new(spec, seed));
    }

    /// Removes an endpoint, whose channels have been closed.
    pub(crate) fn remove_node(&mut self, endpoint: EndpointId) {
        for (comm, _) in self.vacancies.remove(endpoint) {
            self.protocol.forget(comm);
        }
        self.nodes.remove(&endpoint);
        self.places.retain(|_, at| *at != endpoint);
    }

    /// Sets the MTU of the port of an endpoint's device.
    pub(crate) fn set_mtu(&mut self, endpoint: EndpointId, mtu: Mtu) {
        if let Some(node) = self.nodes.get_mut(&endpoint) {
            node.mtu = mtu;
        }
    }

    /// Opens a channel; returns its number and the program's descriptor.
    pub(crate) fn open(&mut self, endpoint: EndpointId, pid: i32, token: Token) -> Result<(u32, OwnedFd), Errno> {
        let (channel, program) = Channel::new(endpoint, pid, token)?;
        let number = self.free_number(|manager, number| manager.channels.contains_key(&number));
        self.channels.insert(number, channel);
        Ok((number, program))
    }

    /// The channel of `endpoint` with this token.
    pub(crate) fn find(&self, endpoint: EndpointId, token: &Token) -> Option<u32> {
        let mut found = None;
        for (number, channel) in self.channels.iter().filter(|(_, channel)| channel.endpoint == endpoint) {
            // Every token of the endpoint is compared, so that the time leaks nothing.
            if channel.token.0.iter().zip(&token.0).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0 {
                found = Some(*number);
            }
        }
        found
    }

    /// Closes a channel, and ends what belongs to it.
    pub(crate) fn close(&mut self, now: Time, number: u32) {
        // Its events go with it, and need not be taken out for each identifier.
        let Some(channel) = self.channels.remove(&number) else { return };
        if let Some(node) = self.nodes.get_mut(&channel.endpoint) {
            node.events -= channel.len();
        }
        for id in &channel.ids {
            self.destroy(now, *id);
        }
        if let Some(Some(plain)) = channel.plain {
            self.remove_way(channel.endpoint, plain.id);
        }
        self.pump(now);
    }

    /// The endpoint of a channel.
    pub(crate) fn endpoint_of(&self, number: u32) -> Option<EndpointId> {
        self.channels.get(&number).map(|channel| channel.endpoint)
    }

    /// The queue pairs of a channel's connections, as far as programs have told their numbers.
    pub(crate) fn queue_pairs(&self, number: u32) -> Vec<Qpn> {
        let Some(channel) = self.channels.get(&number) else { return Vec::new() };
        channel.ids.iter().filter_map(|id| self.ids.get(id)?.connected_qp()).collect()
    }

    /// Sets a channel's path to external peers.
    pub(crate) fn set_way(&mut self, number: u32, plain: Option<Plain>) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        channel.plain = Some(plain);
        let endpoint = channel.endpoint;
        if let Some(plain) = plain {
            self.add_way(endpoint, plain);
        }
    }

    /// Records that a channel or an opened device of an endpoint has a path to external peers.
    pub(crate) fn add_way(&mut self, endpoint: EndpointId, plain: Plain) {
        let (_, users) = self.ways.entry(plain.id).or_insert_with(|| (plain, HashMap::new()));
        *users.entry(endpoint).or_default() += 1;
    }

    /// It has it no longer.
    pub(crate) fn remove_way(&mut self, endpoint: EndpointId, id: PlainId) {
        let Some((_, users)) = self.ways.get_mut(&id) else { return };
        if let Some(count) = users.get_mut(&endpoint) {
            *count -= 1;
            if *count == 0 {
                users.remove(&endpoint);
            }
        }
        if users.is_empty() {
            self.ways.remove(&id);
        }
    }

    /// A message from another machine.
    pub(crate) fn receive(&mut self, now: Time, mad: &ReceivedMad) {
        let Some(mad) = self.locate(mad) else { return };
        self.protocol.handle_mad(now, &mad);
        self.pump(now);
    }

    /// Whether a message from another machine ends a connection.
    pub(crate) fn is_end(&self, mad: &ReceivedMad) -> bool {
        self.locate(mad).is_some_and(|mad| self.protocol.is_end(&mad))
    }

    /// The source and destination of a message; none where no endpoint here has the destination.
    fn locate(&self, mad: &ReceivedMad) -> Option<Mad> {
        let found = match (mad.origin_plain, mad.vni) {
            (None, Some(vni)) => self.places.get(&(vni, mad.dest)).map(|_| (vni, None)),
            // Its sender is not authenticated: it must not use an address to which another path leads.
            (Some(id), _) => {
                let found = self.find_outside(id, mad.dest);
                found.filter(|(vni, _)| self.routes.find(*vni, mad.source) == Route::Outside)
            }
            (None, None) => None,
        };
        let (vni, plain) = found?;
        Some(Mad { path: CmPath { vni, local: mad.dest, remote: mad.source, plain }, bytes: mad.bytes })
    }

    /// The next message to another machine.
    pub(crate) fn poll_mad(&mut self) -> Option<Mad> {
        self.outgoing.pop_front()
    }

    /// The next deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.protocol.poll_timeout().into_iter().chain(self.vacancies.poll_timeout()).min()
    }

    /// Handles expired deadlines.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.protocol.handle_timeout(now);
        for (comm, event) in self.vacancies.take_due(now) {
            self.handle_event(now, comm, event);
        }
        self.pump(now);
    }

    /// The network and sockets by which a message of an external peer reached `dest`.
    fn find_outside(&self, id: PlainId, dest: Gid) -> Option<(Vni, Option<Plain>)> {
        let (plain, users) = self.ways.get(&id)?;
        let mut nodes = users.keys().filter_map(|endpoint| self.nodes.get(endpoint));
        nodes.find(|node| node.spec.gids.contains(&dest)).map(|node| (node.spec.vni, Some(*plain)))
    }

    /// Delivers messages between connections of this host, collects those for other machines, and converts the protocol's
    /// events, until there are no more.
    fn pump(&mut self, now: Time) {
        loop {
            if let Some(mad) = self.protocol.poll_mad() {
                self.forward(now, mad);
            } else if let Some((comm, event)) = self.protocol.poll_event() {
                self.handle_event(now, comm, event);
            } else {
                return;
            }
        }
    }

    fn forward(&mut self, now: Time, mut mad: Mad) {
        let path = mad.path;
        if self.routes.find(path.vni, path.remote) != Route::Local {
            // Sockets that are about to be closed still send the final messages of their connections.
            if path.plain.is_some_and(|plain| !self.ways.contains_key(&plain.id)) {
                mad.path.plain = self.present_way(&path).or(path.plain);
            }
            if self.outgoing.len() < MAX_OUTGOING {
                self.outgoing.push_back(mad);
            }
        } else if self.places.contains_key(&(path.vni, path.remote)) {
            let back = CmPath { local: path.remote, remote: path.local, plain: None, ..path };
            self.protocol.handle_mad(now, &Mad { path: back, bytes: mad.bytes });
        }
    }

    /// The present external path of an address, where the one by which it was connected has gone.
    fn present_way(&self, path: &CmPath) -> Option<Plain> {
        let endpoint = self.places.get(&(path.vni, path.local))?;
        self.ways.values().find(|(_, users)| users.contains_key(endpoint)).map(|(plain, _)| *plain)
    }

    /// Queues an event for the program that has `number`.
    fn post(&mut self, number: u32, event: &Event) {
        let Some(id) = self.ids.get(&number) else { return };
        // A connection that was not accepted yet has no number of the program's.
        let Some(uid) = id.uid else { return };
        let pending = Pending { id: number, group: None, response: event.response(uid, number), child: None };
        self.queue(id.channel, pending);
    }

    /// Queues an event in a channel.
    fn queue(&mut self, channel: u32, event: Pending) {
        let Some(channel) = self.channels.get_mut(&channel) else { return };
        channel.push(event);
        if let Some(node) = self.nodes.get_mut(&channel.endpoint) {
            node.events += 1;
        }
    }

    /// Removes events from a channel.
    fn unqueue<T: Default>(&mut self, channel: u32, take: impl FnOnce(&mut Channel) -> T) -> T {
        let Some(channel) = self.channels.get_mut(&channel) else { return T::default() };
        let len = channel.len();
        let taken = take(channel);
        if let Some(node) = self.nodes.get_mut(&channel.endpoint) {
            node.events -= len - channel.len();
        }
        taken
    }

    /// Destroys an identifier in any state. Returns how many of its events the program has read.
    fn destroy(&mut self, now: Time, number: u32) -> u32 {
        let Some(id) = self.ids.remove(&number) else { return 0 };
        self.queries.remove(&number);
        if let Some(channel) = self.channels.get_mut(&id.channel) {
            channel.ids.remove(&number);
        }
        let withdrawn = self.unqueue(id.channel, |channel| channel.withdraw(number));
        for child in withdrawn.into_iter().filter_map(|event| event.child) {
            self.destroy(now, child);
        }
        for group in &id.groups {
            self.groups.remove(group);
        }
        if let Some(comm) = id.comm {
            self.connections.remove(&comm);
            self.protocol.destroy(now, comm);
        }
        if let Some(node) = self.nodes.get_mut(&id.endpoint) {
            node.ids -= 1;
            node.spec.memory.iter().for_each(|memory| memory.shrink(ID_MEMORY));
            node.groups -= id.groups.len() as u32;
            if let Some(source) = id.source.filter(|_| id.is_bound) {
                node.ports.release(id.space, source.port(), number);
            }
        }
        id.reported
    }

    /// Adds an identifier, if its endpoint may have one more.
    fn insert(&mut self, id: Id) -> Result<u32, Errno> {
        let node = self.nodes.get_mut(&id.endpoint).ok_or(Errno::NODEV)?;
        if node.ids >= node.spec.max_ids {
            return Err(Errno::NOMEM);
        }
        if let Some(memory) = &node.spec.memory {
            memory.grow(ID_MEMORY)?;
        }
        node.ids += 1;
        let number = self.free_number(|manager, number| manager.ids.contains_key(&number));
        if let Some(channel) = self.channels.get_mut(&id.channel) {
            channel.ids.insert(number);
        }
        self.ids.insert(number, id);
        Ok(number)
    }

    /// Gives an identifier to another channel.
    fn hand_over(&mut self, number: u32, to: u32) {
        let Some(id) = self.ids.get_mut(&number) else { return };
        let from = std::mem::replace(&mut id.channel, to);
        if let Some(channel) = self.channels.get_mut(&from) {
            channel.ids.remove(&number);
        }
        if let Some(channel) = self.channels.get_mut(&to) {
            channel.ids.insert(number);
        }
    }

    /// An unused number, which does not reveal how many others there are. Like the kernel's it fits an `int`.
    fn free_number(&mut self, is_used: impl Fn(&Self, u32) -> bool) -> u32 {
        loop {
            let number = (self.random() >> 33) as u32;
            if !is_used(self, number) {
                return number;
            }
        }
    }

    fn random_psn(&mut self) -> Psn {
        Psn::new((self.random() >> 40) as u32)
    }

    /// A number that follows from the seed (splitmix64).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Messages that wait for the workers. More are lost, as on a wire; their senders repeat them.
const MAX_OUTGOING: usize = 4096;
