//! The identifiers of programs, with their channels, endpoints and multicast memberships: all that is known without a peer.

use super::call::Call;
use super::channel::Channel;
use super::channels::Channels;
use super::event::{Event, Kind, Pending};
use super::id::{Device, Id, State};
use super::node::{Group, ID_MEMORY, MAX_GROUPS, Node, NodeSpec};
use super::numbers::Numbers;
use super::places::Places;
use super::queries::{Queries, Query};
use crate::endpoint::EndpointId;
use crate::routes::SharedRoutes;
use rdmesh_nic::ExternalPort;
use rdmesh_uverbs::session::Token;
use rdmesh_verbs::{Psn, Qpn};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// All identifiers, and what they belong to.
pub(super) struct Registry {
    pub(super) places: Places,
    pub(super) channels: Channels,
    /// Identifiers that wait for address resolution of a peer.
    pub(super) queries: Queries,
    ids: HashMap<u32, Id>,
    groups: HashMap<u32, Group>,
    numbers: Numbers,
}

impl Registry {
    pub(super) fn new(seed: u64, routes: SharedRoutes) -> Self {
        Self {
            places: Places::new(routes),
            channels: Channels::default(),
            queries: Queries::default(),
            ids: HashMap::new(),
            groups: HashMap::new(),
            numbers: Numbers::new(seed),
        }
    }

    /// Adds an endpoint.
    pub(super) fn add_node(&mut self, endpoint: EndpointId, spec: NodeSpec) {
        self.places.add(endpoint, Node::new(spec, self.numbers.next()));
    }

    /// Opens a channel; returns its number and the program's descriptor.
    pub(super) fn open(&mut self, endpoint: EndpointId, pid: i32, token: Token) -> Result<(u32, OwnedFd), Errno> {
        let (channel, program) = Channel::new(endpoint, pid, token)?;
        let number = self.numbers.unused(|number| self.channels.get(number).is_some());
        self.channels.add(number, channel);
        Ok((number, program))
    }

    /// Sets a channel's path to external peers.
    pub(super) fn set_external_path(&mut self, channel: u32, external: Option<ExternalPort>) {
        if let Some((endpoint, external)) = self.channels.set_external_path(channel, external).zip(external) {
            self.places.add_external_path(endpoint, external);
        }
    }

    /// The queue pairs of a channel's connections, as far as programs have told their numbers.
    pub(super) fn queue_pairs(&self, channel: u32) -> Vec<Qpn> {
        let Some(channel) = self.channels.get(channel) else { return Vec::new() };
        channel.ids.iter().filter_map(|id| self.ids.get(id)?.connected_qp()).collect()
    }

    /// The identifier that a command names (`ucma_get_ctx`).
    pub(super) fn id(&self, call: &Call<'_>, number: u32) -> Result<&Id, Errno> {
        let id = self.ids.get(&number).filter(|id| self.is_ours(call, id)).ok_or(Errno::NOENT)?;
        if id.channel == call.channel { Ok(id) } else { Err(Errno::INVAL) }
    }

    pub(super) fn id_mut(&mut self, call: &Call<'_>, number: u32) -> Result<&mut Id, Errno> {
        self.id(call, number)?;
        self.ids.get_mut(&number).ok_or(Errno::NOENT)
    }

    /// The same, and the device that it has found (`ucma_get_ctx_dev`).
    pub(super) fn id_with_device(&self, call: &Call<'_>, number: u32) -> Result<(&Id, Device), Errno> {
        let id = self.id(call, number)?;
        id.device.map(|device| (id, device)).ok_or(Errno::INVAL)
    }

    /// The same, and its endpoint, to be changed.
    pub(super) fn id_and_node(&mut self, number: u32) -> Result<(&mut Id, &mut Node), Errno> {
        let id = self.ids.get_mut(&number).ok_or(Errno::NOENT)?;
        let node = self.places.node_mut(id.endpoint)?;
        Ok((id, node))
    }

    /// No program learns which numbers other endpoints use.
    pub(super) fn is_ours(&self, call: &Call<'_>, id: &Id) -> bool {
        self.channels.endpoint_of(call.channel) == Some(id.endpoint)
    }

    /// An identifier of any program.
    pub(super) fn get(&self, number: u32) -> Option<&Id> {
        self.ids.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Id> {
        self.ids.get_mut(&number)
    }

    /// All identifiers, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Id)> {
        self.ids.iter().map(|(number, id)| (*number, id))
    }

    /// The PSN that a new connection begins with.
    pub(super) fn psn(&mut self) -> Psn {
        self.numbers.psn()
    }

    /// Adds an identifier, if its endpoint may have one more.
    pub(super) fn insert(&mut self, id: Id) -> Result<u32, Errno> {
        let node = self.places.node_mut(id.endpoint)?;
        if node.ids >= node.spec.max_ids {
            return Err(Errno::NOMEM);
        }
        if let Some(memory) = &node.spec.memory {
            memory.grow(ID_MEMORY)?;
        }
        node.ids += 1;
        let number = self.numbers.unused(|number| self.ids.contains_key(&number));
        self.channels.move_id(number, None, Some(id.channel));
        self.ids.insert(number, id);
        Ok(number)
    }

    /// Removes an identifier, and returns it with the identifiers of connection requests that its program has not read.
    pub(super) fn remove(&mut self, number: u32) -> Option<(Id, Vec<u32>)> {
        let id = self.ids.remove(&number)?;
        self.queries.remove(number);
        self.channels.move_id(number, Some(id.channel), None);
        let withdrawn = self.channels.unqueue(id.channel, |channel| channel.withdraw(number));
        for group in &id.groups {
            self.groups.remove(group);
        }
        if let Ok(node) = self.places.node_mut(id.endpoint) {
            node.ids -= 1;
            node.spec.memory.iter().for_each(|memory| memory.shrink(ID_MEMORY));
            node.groups -= id.groups.len() as u32;
            if let Some(source) = id.source.filter(|_| id.is_bound) {
                node.ports.release(id.space, source.port(), number);
            }
        }
        Some((id, withdrawn.into_iter().filter_map(|event| event.child).collect()))
    }

    /// Gives an identifier to another channel.
    pub(super) fn hand_over(&mut self, number: u32, to: u32) {
        let Some(id) = self.ids.get_mut(&number) else { return };
        let from = std::mem::replace(&mut id.channel, to);
        self.channels.move_id(number, Some(from), Some(to));
    }

    /// Queues an event for the program that has `number`.
    pub(super) fn post(&mut self, number: u32, event: &Event) {
        let Some(id) = self.ids.get(&number) else { return };
        // A connection that was not accepted yet has no number of the program's.
        let Some(uid) = id.uid else { return };
        let pending = Pending { id: number, group: None, response: event.response(uid, number), child: None };
        self.channels.queue(id.channel, pending);
    }

    /// Refuses commands of an endpoint that cause more events as long as too many wait.
    pub(super) fn has_room_for_events(&self, endpoint: EndpointId) -> Result<(), Errno> {
        self.places.node(endpoint)?.has_room_for_events(self.channels.waiting_in(endpoint))
    }

    /// A multicast group that an identifier has joined.
    pub(super) fn group(&self, number: u32) -> Option<&Group> {
        self.groups.get(&number)
    }

    pub(super) fn group_mut(&mut self, number: u32) -> Option<&mut Group> {
        self.groups.get_mut(&number)
    }

    /// Number of memberships.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Makes an identifier a member of a group; returns the number of the membership.
    pub(super) fn join(&mut self, owner: u32) -> Result<u32, Errno> {
        let endpoint = self.get(owner).ok_or(Errno::NOENT)?.endpoint;
        if self.places.node(endpoint)?.groups >= MAX_GROUPS {
            return Err(Errno::NOMEM);
        }
        self.has_room_for_events(endpoint)?;
        let group = self.numbers.unused(|number| self.groups.contains_key(&number));
        let (id, node) = self.id_and_node(owner)?;
        node.groups += 1;
        id.groups.insert(group);
        self.groups.insert(group, Group { owner, reported: 0 });
        Ok(group)
    }

    /// Ends a membership; returns how many of its events the program has read.
    pub(super) fn leave(&mut self, number: u32) -> u32 {
        let Some(group) = self.groups.remove(&number) else { return 0 };
        if let Ok((id, node)) = self.id_and_node(group.owner) {
            id.groups.remove(&number);
            node.groups -= 1;
            let channel = id.channel;
            self.channels.unqueue(channel, |channel| channel.withdraw_group(group.owner, number));
        }
        group.reported
    }

    /// Queries in progress, by identifier.
    pub(super) fn queries(&self) -> Vec<(u32, Query)> {
        // An identifier may have gone to another channel meanwhile.
        let present = |(number, query): (&u32, &Query)| {
            let channel = self.get(*number).map_or(query.channel, |id| id.channel);
            (*number, Query { channel, ..*query })
        };
        self.queries.iter().map(present).collect()
    }

    /// Ends a query: the peer is present, or unreachable.
    pub(super) fn answer_query(&mut self, number: u32, found: Result<(), Errno>) {
        self.queries.remove(number);
        let Some(id) = self.get_mut(number).filter(|id| id.state == State::AddressQuery) else { return };
        let event = match found {
            Ok(()) => {
                id.state = State::AddressResolved;
                Event::new(Kind::AddressResolved)
            }
            Err(errno) => {
                id.state = State::Bound;
                Event::new(Kind::AddressError).with_status(-errno.raw_os_error())
            }
        };
        self.post(number, &event);
    }

    /// Begins a query. For an endpoint with too many of them the peer is assumed to be present.
    pub(super) fn look_for(&mut self, number: u32, query: Query) {
        let endpoint = |number: u32| self.get(number).map(|id| id.endpoint);
        let mine = endpoint(number);
        if self.queries.iter().filter(|(other, _)| endpoint(**other) == mine).count() >= MOST_AT_ONCE {
            return self.answer_query(number, Ok(()));
        }
        self.queries.insert(number, query);
    }
}

/// Maximum number of an endpoint's queries in progress.
const MOST_AT_ONCE: usize = 64;
