//! Identifiers: the state of an `rdma_cm_id`.

use super::tracked::Tracked;
use crate::endpoint::EndpointId;
use rdmesh_nic::cm::CommId;
use rdmesh_uverbs::abi::cm_port_space;
use rdmesh_verbs::{Gid, Psn, QpType, Qpn};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// `enum rdma_ucm_port_space`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum PortSpace {
    Tcp,
    Udp,
    Ib,
    IpoIb,
}

impl PortSpace {
    pub(super) fn from_number(number: u16) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Ib, Self::IpoIb].into_iter().find(|space| space.number() == number)
    }

    pub(super) fn number(self) -> u16 {
        match self {
            Self::Tcp => cm_port_space::TCP,
            Self::Udp => cm_port_space::UDP,
            Self::Ib => cm_port_space::IB,
            Self::IpoIb => cm_port_space::IPOIB,
        }
    }

    /// The queue pair type of an identifier of this space (`ucma_get_qp_type`).
    pub(super) fn qp_type(self, asked: u8) -> Result<QpType, Errno> {
        match self {
            Self::Tcp => Ok(QpType::Rc),
            Self::Udp | Self::IpoIb => Ok(QpType::Ud),
            Self::Ib => QpType::from_number(asked).ok_or(Errno::INVAL),
        }
    }
}

/// State of an identifier (`enum rdma_cm_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Idle,
    Bound,
    /// Address resolution of its peer is in progress.
    AddressQuery,
    AddressResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
}

impl State {
    /// The same in the kernel's `enum rdma_cm_state`.
    pub(super) fn kernels_number(self) -> u8 {
        match self {
            Self::Idle => 0,
            Self::AddressQuery => 1,
            Self::AddressResolved => 2,
            Self::RouteResolved => 4,
            Self::Connect => 5,
            Self::Disconnect => 6,
            Self::Bound => 7,
            Self::Listen => 8,
        }
    }
}

/// The device of an identifier, with the local and the remote address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Device {
    /// Index of the own GID.
    pub(super) sgid_index: u8,
    pub(super) local: Gid,
    /// Zero as long as there is no peer.
    pub(super) remote: Gid,
}

/// An identifier.
#[derive(Debug)]
pub(super) struct Id {
    pub(super) endpoint: EndpointId,
    /// The channel of its events.
    pub(super) channel: u32,
    /// The program's own number for it. An identifier that a connection request made has none before it is accepted.
    pub(super) uid: Option<u64>,
    pub(super) space: PortSpace,
    pub(super) qp_type: QpType,
    pub(super) state: State,
    pub(super) source: Option<SocketAddr>,
    pub(super) dest: Option<SocketAddr>,
    /// Whether it holds the port of `source`.
    pub(super) is_bound: bool,
    /// It was bound to a loopback address.
    pub(super) only_self: bool,
    pub(super) device: Option<Device>,
    /// The connection, or the SIDR request.
    pub(super) comm: Option<CommId>,
    pub(super) psn: Psn,
    pub(super) qpn: Qpn,
    pub(super) qkey: Option<u32>,
    pub(super) options: Options,
    /// Connection requests that may still wait, for a listener.
    pub(super) backlog: u32,
    /// Events that the program has read.
    pub(super) reported: u32,
    /// Multicast groups that it has joined.
    pub(super) groups: BTreeSet<u32>,
    /// Lets the packets of its connection through, whoever sends them.
    pub(super) tracked: Option<Tracked>,
}

/// Options that SET_OPTION sets.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Options {
    pub(super) tos: u8,
    pub(super) reuse: bool,
    pub(super) only_family: Option<bool>,
    /// The local ACK time-out, as 4.096 µs times two to this power.
    pub(super) ack_timeout: Option<u8>,
}

impl Id {
    /// A new identifier.
    pub(super) fn new(endpoint: EndpointId, channel: u32, space: PortSpace, qp_type: QpType, psn: Psn) -> Self {
        Self {
            endpoint,
            channel,
            uid: None,
            space,
            qp_type,
            state: State::Idle,
            source: None,
            dest: None,
            is_bound: false,
            only_self: false,
            device: None,
            comm: None,
            psn,
            qpn: Qpn::default(),
            qkey: None,
            options: Options::default(),
            backlog: 0,
            reported: 0,
            groups: BTreeSet::new(),
            tracked: None,
        }
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    /// The queue pair of its connection, if the program has told its number.
    pub(super) fn connected_qp(&self) -> Option<Qpn> {
        let is_connected = self.comm.is_some() && !self.is_datagram();
        Some(self.qpn).filter(|qpn| is_connected && *qpn != Qpn::default())
    }

    /// Refuses a command that is valid in one state only.
    pub(super) fn must_be(&self, state: State) -> Result<(), Errno> {
        if self.state == state { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Goes from one state to another.
    pub(super) fn advance(&mut self, from: State, to: State) -> Result<(), Errno> {
        if self.state != from {
            return Err(Errno::INVAL);
        }
        self.state = to;
        Ok(())
    }
}
