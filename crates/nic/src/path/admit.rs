//! Admission of received packets: path, address and integrity checks.
//!
//! A packet reaches a queue pair only when it came by the path of the queue pair's peer, from the peer's address to the queue
//! pair's own, intact. The tenant network that a packet names counts only together with the host that it came from (IBA
//! 9.6.1.1).

use super::Envelope;
use super::{Datagram, Origin, Route, Routes, Target};
use crate::timer::Time;
use crate::wire::{DEFAULT_PKEY, Header, IdSolver, IpUdp, Malformed, geneve, icrc};
use core::net::IpAddr;
use rdmesh_verbs::{Gid, Vni};

/// Integrity checks of received packets: invariant CRC or the tunnel's seal.
pub(crate) struct Integrity {
    solver: IdSolver,
    /// Only packets with the right tag are accepted from the tunnel; none there has an invariant CRC.
    pub(crate) is_tunnel_sealed: bool,
}

impl Integrity {
    pub(crate) fn new() -> Self {
        Self { solver: IdSolver::new(), is_tunnel_sealed: false }
    }
}

/// A decapsulated packet. Only its form is checked.
pub struct Opened<'a> {
    pub(crate) origin: Origin,
    /// From the tunnel; plain packets have the network of the queue pair that they reach.
    pub(crate) vni: Option<Vni>,
    pub(crate) ip: IpUdp,
    pub(crate) header: Header,
    pub(crate) payload: &'a [u8],
    /// The packet from the base transport header on, with its invariant CRC.
    pub(crate) udp: &'a [u8],
    /// As [`Datagram::received`].
    pub(crate) received: Option<Time>,
    /// Bytes of the datagram.
    pub(crate) datagram: usize,
}

/// A decapsulated packet without its bytes, which are kept elsewhere: with them it need not be parsed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    origin: Origin,
    vni: Option<Vni>,
    ip: IpUdp,
    header: Header,
    /// Place of the payload in the bytes.
    payload: (usize, usize),
    received: Option<Time>,
    datagram: usize,
}

impl<'a> Opened<'a> {
    /// Parses a datagram.
    pub fn new(datagram: &Datagram<'a>) -> Result<Self, Malformed> {
        let (vni, ip, udp) = match datagram.origin {
            Origin::Host(_) => {
                let (vni, inner) = geneve::decode(datagram.bytes)?;
                let (mut ip, udp) = IpUdp::decode(inner)?;
                // A congestion mark on the outer header counts for the inner packet (RFC 6040).
                ip.traffic_class |= datagram.traffic_class & ECN;
                (Some(vni), ip, udp)
            }
            Origin::External { from, from_port, to, .. } => {
                (None, plain_ip(from, from_port, to, datagram.traffic_class), datagram.bytes)
            }
        };
        let (header, payload) = Header::decode(udp)?;
        Ok(Self {
            origin: datagram.origin,
            vni,
            ip,
            header,
            payload,
            udp,
            received: datagram.received,
            datagram: datagram.bytes.len(),
        })
    }

    /// The packet without its bytes, and those.
    pub fn apart(&self) -> (Form, &'a [u8]) {
        let Self { origin, vni, ip, header, payload, udp, received, datagram } = *self;
        // Behind the payload there are padding and check sum only, so its address tells its place.
        let start = payload.as_ptr().addr() - udp.as_ptr().addr();
        (Form { origin, vni, ip, header, payload: (start, start + payload.len()), received, datagram }, udp)
    }

    /// Whether congestion was met on the way.
    pub(crate) fn met_congestion(&self) -> bool {
        self.ip.traffic_class & ECN == ECN
    }

    /// Whether the packet is as its sender made it.
    pub(crate) fn is_intact(&self, check: &mut Integrity) -> bool {
        match self.vni {
            Some(_) => check.is_tunnel_sealed || icrc::check(&self.ip, self.udp),
            // The kernel does not show the IPv4 identification, which the CRC covers: there must be one that fits.
            None if self.ip.source.as_ipv4().is_some() => check.solver.solve(&self.ip, self.udp).is_some(),
            None => icrc::check(&self.ip, self.udp),
        }
    }

    /// Whether it is in the default partition, which is the only one.
    pub(crate) fn is_in_partition(&self) -> bool {
        const MEMBERSHIP: u16 = 0x8000;
        self.header.pkey | MEMBERSHIP == DEFAULT_PKEY
    }

    /// Whether it came through the tunnel from the host that its sender is on.
    pub(crate) fn is_from_its_host(&self, routes: &Routes) -> bool {
        let (Some(vni), Origin::Host(from)) = (self.vni, self.origin) else { return false };
        routes.find(vni, self.ip.source) == Route::Host(from)
    }
}

impl Form {
    /// The packet with these bytes again: those that it was taken apart from, or a copy; none for fewer bytes.
    pub fn with<'a>(&self, udp: &'a [u8]) -> Option<Opened<'a>> {
        let Self { origin, vni, ip, header, payload: (start, end), received, datagram } = *self;
        Some(Opened { origin, vni, ip, header, payload: udp.get(start..end)?, udp, received, datagram })
    }
}

pub(crate) fn is_from(peer: &Envelope, opened: &Opened<'_>) -> bool {
    let ip = &opened.ip;
    let same_way = match (peer.target, opened.origin) {
        (Target::Host(host), Origin::Host(from)) => host == from,
        (Target::External { id, .. }, Origin::External { id: at, .. }) => id == at,
        _ => false,
    };
    same_way && ip.source == peer.ip.dest && ip.dest == peer.ip.source
}

/// The IP header that a plain packet had, as far as it is known: the invariant CRC does not cover the unknown fields.
fn plain_ip(from: IpAddr, from_port: u16, to: IpAddr, traffic_class: u8) -> IpUdp {
    const HOP_LIMIT: u8 = 64;
    IpUdp {
        source: Gid::from_ip(from),
        dest: Gid::from_ip(to),
        traffic_class,
        hop_limit: HOP_LIMIT,
        flow_label: 0,
        id: 0,
        source_port: from_port,
    }
}

const ECN: u8 = 0b11;
