//! Paths to peers: routes, received datagrams and their admission, trains of transmitted datagrams.
//!
//! Two kinds of datagram reach other machines. Between routers everything goes through the *tunnel*: Geneve (RFC 8926)
//! whose VNI is the tenant network and whose payload is a complete RoCEv2 packet, IP header included, between the
//! endpoints' own addresses. External peers get *plain* RoCEv2 from a UDP socket in the endpoint's own network namespace. Which
//! one a queue pair uses is looked up in [`Routes`], which the control plane fills, never guessed from packets.

mod access;
mod admit;
mod envelope;
mod routes;
mod transmits;

pub(crate) use access::Verdicts;
pub use access::{AccessRules, ClassRules, Grant, Peers};
pub use admit::{Form, Opened};
pub(crate) use admit::{Integrity, is_from};
pub(crate) use envelope::{Envelope, flow};
pub(crate) use routes::NetworkGid;
pub use routes::{Route, Routes};
pub(crate) use transmits::TrainKey;
pub use transmits::{Lane, Train, Transmits};

pub use crate::wire::ip::ROCE_PORT;

use crate::congestion::CongestionControl;
use crate::timer::Time;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use rdmesh_verbs::{AddressVector, Gid, Mtu, Vni};

/// UDP port of the tunnel between routers (RFC 8926).
pub const TUNNEL_PORT: u16 = 6081;

/// A network namespace's sockets for plain RoCEv2, by the router's number for them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ExternalId(pub u32);

/// Plain RoCEv2 path of a context to external peers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExternalPort {
    /// The sockets.
    pub id: ExternalId,
    /// The UDP port that they send from, which the invariant CRC covers.
    pub source_port: u16,
}

/// Origin of a datagram, as the socket that received it proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Through the tunnel, from the router at this address.
    Host(IpAddr),
    /// From an external peer, through the sockets of a namespace.
    External {
        /// The sockets' number.
        id: ExternalId,
        /// The sender.
        from: IpAddr,
        /// Its UDP port.
        from_port: u16,
        /// The address that it was sent to.
        to: IpAddr,
    },
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The sender.
    pub origin: Origin,
    /// The outer IP header's traffic class: DSCP and, in the low two bits, ECN.
    pub traffic_class: u8,
    /// Time at which the kernel received it, where that is known.
    pub received: Option<Time>,
    /// The UDP payload.
    pub bytes: &'a [u8],
}

/// Destination of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Through the tunnel, to the router at this address.
    Host(IpAddr),
    /// To an external peer, through the sockets of a namespace.
    External {
        /// The sockets' number.
        id: ExternalId,
        /// The address to send from.
        from: IpAddr,
        /// The address to send to, at [`ROCE_PORT`].
        to: IpAddr,
    },
}

/// Recovery from the loss of packets between routers. External peers know only go-back-N.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LossRecovery {
    /// Only what is lost is sent again, where the other router can do so too.
    #[default]
    Selective,
    /// Everything from the lost packet on is sent again (IBA 9.7.5.1).
    GoBackN,
}

/// Configuration of connections to other routers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NativeConfig {
    /// Recovery from losses.
    pub recovery: LossRecovery,
    /// UDP source ports of the tunnel that a connection's packets may leave by, from 1 to [`MOST_LANES`](crate::MOST_LANES).
    pub lanes: u8,
    /// Congestion control of what is sent.
    pub congestion: CongestionControl,
    /// Rate in Mb/s at which packets of other routers can arrive; 0 if it is not known. Told to routers with [`CongestionControl::Hpcc`].
    pub link_rate: u32,
    /// Time in which this router usually comes to handle a packet: one that has waited for no longer has met no queue.
    pub wake_up: Duration,
}

impl Default for NativeConfig {
    fn default() -> Self {
        Self {
            recovery: LossRecovery::default(),
            lanes: 1,
            congestion: CongestionControl::default(),
            link_rate: 0,
            wake_up: Duration::from_micros(100),
        }
    }
}

/// Network of a context: its tenant network and its addresses there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Network {
    /// The tenant network.
    pub vni: Vni,
    /// The endpoint, by a number that is unique on this host: its share of a worker does not grow with its contexts.
    pub endpoint: u32,
    /// The GID table of port 1. Empty slots are zero GIDs.
    pub gids: Vec<Gid>,
    /// Its plain RoCEv2 path to external peers, if it has one.
    pub external: Option<ExternalPort>,
    /// The largest path MTU: that of its interface.
    pub mtu: Mtu,
}

impl Network {
    /// The address that packets with this address vector come from.
    pub(crate) fn source(&self, av: &AddressVector) -> Gid {
        self.gids.get(usize::from(av.sgid_index)).copied().unwrap_or_default()
    }

    /// One of its addresses.
    pub(crate) fn own(&self) -> Gid {
        self.gids.iter().find(|gid| !gid.is_zero()).copied().unwrap_or_default()
    }
}

/// Path of a queue pair's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// To a peer on this host: one copy, no packet.
    Local,
    /// Through the tunnel, to the host whose router has this address.
    Host(IpAddr),
    /// An external peer, by plain RoCEv2.
    External,
}
