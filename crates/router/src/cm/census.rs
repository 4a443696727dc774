//! Object counts and connection lists, for the operator and for tests.

use super::ConnectionManager;
use super::channel::Channel;
use super::id::{Id, PortSpace, State};
use crate::endpoint::EndpointId;
use crate::netlink::CmId;
use rdmesh_nic::cm::{CmCounters, CmState};
use rdmesh_verbs::{QpType, Qpn};
use std::net::SocketAddr;

/// Counts of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Census {
    pub(crate) channels: usize,
    pub(crate) ids: usize,
    pub(crate) listeners: usize,
    pub(crate) waiting_events: usize,
    pub(crate) ports: usize,
    pub(crate) groups: usize,
}

/// An `rdma_cm_id`.
#[derive(Clone, Debug)]
pub struct ConnectionRow {
    /// The endpoint that it belongs to.
    pub endpoint: EndpointId,
    /// The process that opened its channel.
    pub pid: i32,
    /// TCP, UDP, IB or IPOIB.
    pub space: &'static str,
    /// RC, UC or UD.
    pub qp_type: QpType,
    /// Its state.
    pub state: &'static str,
    /// Its local address.
    pub source: Option<SocketAddr>,
    /// Its peer.
    pub dest: Option<SocketAddr>,
    /// Its queue pair.
    pub qpn: Option<Qpn>,
}

/// An identifier as the device's netlink socket tells of it.
fn described(number: u32, id: &Id) -> (u32, CmId) {
    let qp = (id.qpn != Qpn::default()).then_some((id.qpn.value(), id.qp_type));
    let (space, state) = (id.space.number().into(), id.state.kernels_number());
    (id.channel, CmId { number, qp, space, state, source: id.source, dest: id.dest })
}

impl ConnectionManager {
    /// Counts of objects.
    pub(crate) fn census(&self) -> Census {
        let registry = &self.connections.registry;
        Census {
            channels: registry.channels.iter().count(),
            ids: registry.iter().count(),
            listeners: registry.iter().filter(|(_, id)| id.state == State::Listen).count(),
            waiting_events: registry.channels.iter().map(Channel::len).sum(),
            ports: registry.places.ports(),
            groups: registry.groups(),
        }
    }

    /// Counters of the protocol.
    pub(crate) fn counters(&self) -> CmCounters {
        self.connections.counters()
    }

    /// Rejections reported to programs, by reason (IBA 12.6.7.2).
    pub(crate) fn rejected(&self) -> Vec<(u16, u64)> {
        self.connections.rejected()
    }

    /// All identifiers, by endpoint.
    pub(crate) fn rows(&self) -> Vec<ConnectionRow> {
        let mut ids: Vec<_> = self.connections.registry.iter().collect();
        ids.sort_unstable_by_key(|(number, id)| (id.endpoint, *number));
        ids.into_iter().map(|(_, id)| self.row(id)).collect()
    }

    /// Number of identifiers of an endpoint that [`Self::list_ids`] lists.
    pub(crate) fn count_ids(&self, endpoint: EndpointId) -> usize {
        self.listed_ids(endpoint).count()
    }

    /// At most `limit` identifiers of an endpoint that the device serves, each with its channel, from number `from` on.
    pub(crate) fn list_ids(&self, endpoint: EndpointId, from: u32, limit: usize) -> Vec<(u32, CmId)> {
        let mut numbers: Vec<u32> = self.listed_ids(endpoint).filter(|number| *number >= from).collect();
        // There may be many more identifiers than are wanted.
        if numbers.len() > limit {
            numbers.select_nth_unstable(limit);
            numbers.truncate(limit);
        }
        numbers.sort_unstable();
        numbers
            .into_iter()
            .filter_map(|number| Some((number, self.connections.registry.get(number)?)))
            .map(|(number, id)| described(number, id))
            .collect()
    }

    /// The kernel's too is a list of those that have found the device, or wait on it.
    fn listed_ids(&self, endpoint: EndpointId) -> impl Iterator<Item = u32> {
        let registry = &self.connections.registry;
        let channels = registry.channels.iter().filter(move |channel| channel.endpoint == endpoint);
        let numbers = channels.flat_map(|channel| channel.ids.iter().copied());
        let is_listed = |id: &Id| id.device.is_some() || id.state == State::Listen;
        numbers.filter(move |number| registry.get(*number).is_some_and(is_listed))
    }

    fn row(&self, id: &Id) -> ConnectionRow {
        ConnectionRow {
            endpoint: id.endpoint,
            pid: self.connections.registry.channels.get(id.channel).map_or(0, |channel| channel.pid),
            space: match id.space {
                PortSpace::Tcp => "TCP",
                PortSpace::Udp => "UDP",
                PortSpace::Ib => "IB",
                PortSpace::IpoIb => "IPOIB",
            },
            qp_type: id.qp_type,
            state: self.state(id),
            source: id.source,
            dest: id.dest,
            qpn: (id.qpn != Qpn::default()).then_some(id.qpn),
        }
    }

    fn state(&self, id: &Id) -> &'static str {
        match id.state {
            _ if !id.groups.is_empty() => "JOINED",
            State::Idle => "IDLE",
            State::Bound => "BOUND",
            State::AddressQuery => "RESOLVING",
            State::AddressResolved | State::RouteResolved => "RESOLVED",
            State::Listen => "LISTEN",
            State::Disconnect => "DISCONNECTED",
            State::Connect if id.is_datagram() => "SERVICE",
            State::Connect => match id.comm.and_then(|comm| self.connections.state(comm)) {
                Some(CmState::Established) => "CONNECTED",
                Some(CmState::ReqRcvd | CmState::MraReqSent) => "REQUESTED",
                Some(CmState::Idle) | None => "FAILED",
                Some(_) => "CONNECTING",
            },
        }
    }
}
