//! Envelopes: the destination of packets to another host, and the headers around them.

use super::{ExternalPort, Lane, Route, Routes, Target, TrainKey, Transmits};
use crate::path::{Network, Path};
use crate::wire::{Header, ICRC_LEN, IpUdp, geneve, icrc, padded};
use core::net::IpAddr;
use rdmesh_verbs::{AddressVector, Gid, Qpn, Vni};

/// Destination of packets, and the headers around them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) target: Target,
    pub(crate) vni: Vni,
    pub(crate) ip: IpUdp,
    /// Lane that packets leave by, through the tunnel; the first outside.
    pub(crate) lane: Lane,
}

impl Envelope {
    /// The peer on another host to which packets with this address vector go; none where it is on this one, or out of reach.
    pub(crate) fn find(network: &Network, routes: &Routes, av: &AddressVector, flow: u32) -> Option<Self> {
        let source = network.source(av);
        match routes.find(network.vni, av.dgid) {
            Route::Local => None,
            Route::Host(host) => Some(Self::on_host(host, network.vni, source, av, flow)),
            Route::External if av.dgid.is_multicast() => None,
            Route::External => network.external.map(|external| Self::external(external, network.vni, source, av)),
        }
    }

    /// A peer on the host whose router is at `host`.
    pub(crate) fn on_host(host: IpAddr, vni: Vni, source: Gid, av: &AddressVector, flow: u32) -> Self {
        Self { target: Target::Host(host), vni, ip: ip(source, av, entropy_port(flow)), lane: Lane::default() }
    }

    /// The IP header that a packet to a peer on the same host would have.
    pub(crate) fn ip_within_host(source: Gid, av: &AddressVector, flow: u32) -> IpUdp {
        ip(source, av, entropy_port(flow))
    }

    /// An external peer.
    pub(crate) fn external(external: ExternalPort, vni: Vni, source: Gid, av: &AddressVector) -> Self {
        let target = Target::External { id: external.id, from: source.ip(), to: av.dgid.ip() };
        Self { target, vni, ip: ip(source, av, external.source_port), lane: Lane::default() }
    }

    /// The path to it.
    pub(crate) fn path(&self) -> Path {
        match self.target {
            Target::Host(host) => Path::Host(host),
            Target::External { .. } => Path::External,
        }
    }

    /// Lets routers on the way mark packets instead of dropping them (RFC 3168, ECT(0)).
    pub(crate) fn with_ecn(mut self) -> Self {
        const ECT_0: u8 = 0b10;
        self.ip.traffic_class |= ECT_0;
        self
    }

    /// Appends a packet. `fill` writes the payload; its error leaves nothing behind.
    pub(crate) fn emit<E>(
        &self,
        to: &mut Transmits,
        header: &Header,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let header_len = header.len();
        let udp_len = header_len + padded(payload_len) + ICRC_LEN;
        let geneve = if to.is_sealed() { geneve::SEALED_LEN } else { geneve::LEN };
        let outer = if self.is_tunnel() { geneve + self.ip.len() } else { 0 };
        let total = outer + udp_len;
        let mut ip = self.ip;
        if !self.is_tunnel() {
            // The kernel numbers the segments of a train from 0.
            ip.id = to.position(&self.train_key(), total);
        }
        let is_sealed = self.is_tunnel() && to.is_sealed();
        let packet = &mut to.next()[..total];
        let (around, udp) = packet.split_at_mut(outer);
        header.encode(payload_len, &mut udp[..header_len]);
        fill(&mut udp[header_len..header_len + payload_len])?;
        udp[header_len + payload_len..udp_len - ICRC_LEN].fill(0);
        if self.is_tunnel() {
            let encode = if is_sealed { geneve::encode_sealed } else { geneve::encode };
            encode(self.vni, self.ip.source.as_ipv4().is_none(), &mut around[..geneve]);
            ip.encode(udp_len, &mut around[geneve..]);
        }
        // The tag of a sealed packet covers more than the invariant CRC would.
        let crc = if is_sealed { [0; ICRC_LEN] } else { icrc::icrc(&ip, &udp[..udp_len - ICRC_LEN]) };
        udp[udp_len - ICRC_LEN..].copy_from_slice(&crc);
        to.push(self.train_key(), total);
        Ok(())
    }

    fn train_key(&self) -> TrainKey {
        TrainKey { target: self.target, traffic_class: self.ip.traffic_class, lane: self.lane }
    }

    /// Whether the other end is a router like this one.
    pub(crate) fn is_tunnel(&self) -> bool {
        matches!(self.target, Target::Host(_))
    }
}

/// The number of a flow, for its UDP source port.
pub(crate) fn flow(own: Qpn, peer: Qpn) -> u32 {
    own.value() ^ peer.value().rotate_left(12)
}

fn ip(source: Gid, av: &AddressVector, source_port: u16) -> IpUdp {
    const ECN: u8 = 0b11;
    IpUdp {
        source,
        dest: av.dgid,
        traffic_class: av.traffic_class & !ECN,
        hop_limit: if av.hop_limit == 0 { HOP_LIMIT } else { av.hop_limit },
        flow_label: av.flow_label,
        id: 0,
        source_port,
    }
}

fn entropy_port(flow: u32) -> u16 {
    ENTROPY_PORTS | (mix(flow) as u16 & !ENTROPY_PORTS)
}

fn mix(flow: u32) -> u32 {
    flow.wrapping_mul(0x9e37_79b1) >> 16
}

/// RoCEv2 senders choose their port among these (as `rdma_get_udp_sport` does).
const ENTROPY_PORTS: u16 = 0xc000;
const HOP_LIMIT: u8 = 64;
