//! Network interface types: received datagrams, trains of transmitted datagrams, and routes to peers.
//!
//! Two kinds of datagram reach other machines. Between routers everything goes through the *tunnel*: Geneve (RFC 8926)
//! whose VNI is the tenant network and whose payload is a complete RoCEv2 packet, IP header included, between the
//! endpoints' own addresses. External peers get *plain* RoCEv2 from a UDP socket in the endpoint's own network namespace. Which
//! one a queue pair uses is looked up in [`Routes`], which the control plane fills, never guessed from packets.

use crate::schedule::{TURN_COST, TURN_PACKETS};
use crate::time::Time;
use rdmesh_verbs::{Gid, Vni};
use std::collections::HashMap;
use std::net::IpAddr;

/// UDP port of RoCEv2 (IBA annex A17).
pub const ROCE_PORT: u16 = 4791;
/// UDP port of the tunnel between routers (RFC 8926).
pub const TUNNEL_PORT: u16 = 6081;

/// A network namespace's sockets for plain RoCEv2, by the router's number for them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PlainId(pub u32);

/// Plain RoCEv2 path of a context to external peers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Plain {
    /// The sockets.
    pub id: PlainId,
    /// The UDP port that they send from, which the invariant CRC covers.
    pub source_port: u16,
}

/// Origin of a datagram, as the socket that received it proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Through the tunnel, from the router at this address.
    Host(IpAddr),
    /// From an external peer, through the sockets of a namespace.
    Plain {
        /// Which sockets.
        id: PlainId,
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
    /// When the kernel received it, where that is known.
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
    Plain {
        /// Which sockets.
        id: PlainId,
        /// The address to send from.
        from: IpAddr,
        /// The address to send to, at [`ROCE_PORT`].
        to: IpAddr,
    },
}

/// Datagrams of one size, the last one possibly shorter, to one target: one system call with segmentation offload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Train {
    /// Where to.
    pub target: Target,
    /// The outer IP header's traffic class.
    pub traffic_class: u8,
    /// Where the first begins in [`Transmits::buffer`].
    pub start: usize,
    /// Bytes of all.
    pub len: usize,
    /// Bytes of each but the last.
    pub segment: usize,
}

impl Train {
    /// Number of datagrams in it.
    pub fn count(&self) -> usize {
        self.len.div_ceil(self.segment.max(1))
    }
}

/// Datagrams to be sent, in trains. The buffer is allocated once and used again and again.
pub struct Transmits {
    buffer: Box<[u8]>,
    used: usize,
    trains: Vec<Train>,
    count: usize,
    open: bool,
    is_sealed: bool,
    /// The buffer's and the packets' limit in the present turn of a queue pair.
    turn_end: (usize, usize),
}

impl Transmits {
    /// Room for some trains.
    pub fn new() -> Self {
        let (buffer, trains) = (vec![0; BUFFER].into(), Vec::with_capacity(TRAINS));
        Self { buffer, used: 0, trains, count: 0, open: false, is_sealed: false, turn_end: (0, 0) }
    }

    /// The same for a router that seals what it sends through the tunnel: packets there have [room for the
    /// seal](crate::wire::geneve::encode_sealed), and no invariant CRC, because the tag covers more.
    pub fn for_sealing() -> Self {
        Self { is_sealed: true, ..Self::new() }
    }

    /// Whether packets in the tunnel have room for a seal.
    pub(crate) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// The trains, in order.
    pub fn trains(&self) -> &[Train] {
        &self.trains
    }

    /// The bytes of `train`.
    pub fn bytes(&self, train: &Train) -> &[u8] {
        &self.buffer[train.start..train.start + train.len]
    }

    /// The datagrams of the train with number `train`, to be sealed.
    pub fn datagrams_mut(&mut self, train: usize) -> impl Iterator<Item = &mut [u8]> {
        let Train { start, len, segment, .. } = self.trains[train];
        self.buffer[start..start + len].chunks_mut(segment.max(1))
    }

    /// Number of datagrams in all trains.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }

    /// Forgets what was sent.
    pub fn clear(&mut self) {
        self.used = 0;
        self.trains.clear();
        self.count = 0;
        self.open = false;
    }

    /// The present fill level, for [`Transmits::since`].
    pub(crate) fn mark(&self) -> usize {
        self.used
    }

    /// The packets that were added since `mark`, each with its train and its place there.
    pub(crate) fn since(&self, mark: usize) -> impl Iterator<Item = (&Train, u16, &[u8])> {
        let packets = |train: &Train| (0..train.count()).map(|i| train.start + i * train.segment).collect::<Vec<_>>();
        self.trains.iter().filter(move |train| train.start + train.len > mark).flat_map(move |train| {
            packets(train).into_iter().enumerate().filter(move |(_, at)| *at >= mark).map(move |(i, at)| {
                let end = (at + train.segment).min(train.start + train.len);
                (train, i as u16, &self.buffer[at..end])
            })
        })
    }

    /// Whether a packet of any size still fits.
    pub fn has_room(&self) -> bool {
        self.trains.len() < TRAINS && self.buffer.len() - self.used >= MAX_PACKET
    }

    /// A queue pair's turn begins.
    pub(crate) fn begin_turn(&mut self) {
        self.turn_end = (self.used + TURN_COST as usize, self.count + TURN_PACKETS);
    }

    /// Whether the present turn goes on, and a packet of any size still fits.
    pub(crate) fn has_turn(&self) -> bool {
        let (used, count) = self.turn_end;
        self.used < used && self.count < count && self.has_room()
    }

    /// Which packet of its train the next one of `len` bytes would be, from 0: its IPv4 identification on a plain path.
    pub(crate) fn position(&self, target: &Target, traffic_class: u8, len: usize) -> u16 {
        if self.joins(target, traffic_class, len) {
            self.trains.last().map_or(0, |train| train.count() as u16)
        } else {
            0
        }
    }

    /// Room for the next packet, to be kept by [`Transmits::push`]. The caller has asked [`Transmits::has_room`].
    pub(crate) fn next(&mut self) -> &mut [u8] {
        &mut self.buffer[self.used..]
    }

    /// Keeps the packet of `len` bytes that was written to [`Transmits::next`].
    pub(crate) fn push(&mut self, target: Target, traffic_class: u8, len: usize) {
        if self.joins(&target, traffic_class, len) {
            let train = self.trains.last_mut().expect("a packet joins a train");
            train.len += len;
            self.open = len == train.segment;
        } else {
            self.trains.push(Train { target, traffic_class, start: self.used, len, segment: len });
            self.open = true;
        }
        self.used += len;
        self.count += 1;
    }

    fn joins(&self, target: &Target, traffic_class: u8, len: usize) -> bool {
        self.open
            && self.trains.last().is_some_and(|train| {
                train.target == *target
                    && train.traffic_class == traffic_class
                    && len <= train.segment
                    && train.len + len <= MAX_TRAIN
                    && train.count() < MAX_SEGMENTS
            })
    }
}

impl Default for Transmits {
    fn default() -> Self {
        Self::new()
    }
}

/// Route to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// It is on this host.
    Local,
    /// It is on the host whose router has this address.
    Host(IpAddr),
    /// It is an external peer.
    Outside,
}

/// Location of every known address of every tenant network. Unknown addresses are external.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Routes {
    places: HashMap<(Vni, Gid), Route>,
    /// The hosts to which some address of a network leads, in order.
    hosts: HashMap<Vni, Vec<IpAddr>>,
}

impl Routes {
    /// Sets the location of an address.
    pub fn insert(&mut self, vni: Vni, gid: Gid, route: Route) {
        let before = self.places.insert((vni, gid), route);
        if before == Some(route) {
            return;
        }
        if let Route::Host(host) = route {
            let hosts = self.hosts.entry(vni).or_default();
            if let Err(at) = hosts.binary_search(&host) {
                hosts.insert(at, host);
            }
        }
        if let Some(Route::Host(host)) = before {
            self.leave(vni, host);
        }
    }

    /// The location of an address.
    pub fn find(&self, vni: Vni, gid: Gid) -> Route {
        self.places.get(&(vni, gid)).copied().unwrap_or(Route::Outside)
    }

    /// The hosts that the addresses of a tenant network lead to, in order. This host is among them only where its own
    /// addresses lead into the tunnel.
    pub fn hosts(&self, vni: Vni) -> &[IpAddr] {
        self.hosts.get(&vni).map_or(&[], Vec::as_slice)
    }

    /// Forgets that a network has addresses on `host`, if it has none any more.
    fn leave(&mut self, vni: Vni, host: IpAddr) {
        if self.places.iter().any(|((network, _), route)| *network == vni && *route == Route::Host(host)) {
            return;
        }
        let Some(hosts) = self.hosts.get_mut(&vni) else { return };
        hosts.retain(|other| *other != host);
        if hosts.is_empty() {
            self.hosts.remove(&vni);
        }
    }

    /// Marks the addresses on the host at `own` as local.
    #[cfg(test)]
    pub(crate) fn localize(&mut self, own: IpAddr) {
        let places: Vec<_> =
            self.places.iter().filter(|(_, route)| **route == Route::Host(own)).map(|(k, _)| *k).collect();
        places.into_iter().for_each(|(vni, gid)| self.insert(vni, gid, Route::Local));
    }
}

/// Largest packet that the engine makes, with all its headers.
pub(crate) const MAX_PACKET: usize = 4096 + 256;
/// Bytes of a train: the largest UDP datagram over IPv6 with room for extension headers.
const MAX_TRAIN: usize = 65_000;
/// Datagrams of a train (`UDP_MAX_SEGMENTS` of Linux before 6.9).
const MAX_SEGMENTS: usize = 64;
/// Trains that are collected before they are sent.
const TRAINS: usize = 32;
/// Bytes that are collected before they are sent.
const BUFFER: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_on_the_hosts_that_its_addresses_lead_to() {
        let gid = |n| Gid::from_ip([10, 0, 0, n].into());
        let [first, second]: [IpAddr; 2] = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        let mut routes = Routes::default();
        routes.insert(Vni(1), gid(1), Route::Host(second));
        routes.insert(Vni(1), gid(2), Route::Host(first));
        routes.insert(Vni(1), gid(3), Route::Host(second));
        routes.insert(Vni(1), gid(4), Route::Local);
        routes.insert(Vni(2), gid(1), Route::Host(first));
        assert_eq!((routes.hosts(Vni(1)), routes.hosts(Vni(2))), (&[first, second][..], &[first][..]));
        assert_eq!(routes.hosts(Vni(3)), &[] as &[IpAddr]);
        routes.insert(Vni(1), gid(1), Route::Host(first));
        assert_eq!(routes.hosts(Vni(1)), [first, second]);
        routes.insert(Vni(1), gid(3), Route::Host(first));
        assert_eq!(routes.hosts(Vni(1)), [first]);
        routes.localize(first);
        assert_eq!((routes.hosts(Vni(1)), routes.hosts(Vni(2)).len()), (&[] as &[IpAddr], 0));
        assert_eq!(routes.find(Vni(2), gid(1)), Route::Local);
    }
}
