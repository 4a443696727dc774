//! Packet capture: copies of an endpoint's packets, for analysers.
//!
//! Every copy is an IP packet with RoCEv2 in it, whichever way the packet went: from the tunnel without the tunnel's header,
//! from a plain path with the headers that the kernel adds, and from the path within the host as it would be on a wire of any
//! MTU. Lengths that do not fit a header's 16 bits are 0 there, as in captures of segmentation offload.

use crate::packet::{Body, Head, Packet};
use crate::path::{Target, Transmits};
use crate::platform::Memory;
use crate::timer::Time;
use crate::wire::{Aeth, ICRC_LEN, IpUdp, NakCode, Op, Service, Syndrome, geneve, icrc, padded};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use rdmesh_verbs::{Gid, Qpn, Vni};

/// Selection of the packets to copy, and the maximum length of each copy.
#[derive(Clone, Debug)]
pub struct CaptureFilter {
    /// The tenant network.
    pub vni: Vni,
    /// The endpoint's addresses: packets from and to them are copied.
    pub gids: Vec<Gid>,
    /// Most bytes of a copy.
    pub snap_len: usize,
}

/// A copy of a packet.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Time at which it was sent or received.
    pub at: Time,
    /// Bytes of the packet.
    pub len: usize,
    /// The first of them.
    pub bytes: Vec<u8>,
}

/// Captures in progress.
#[derive(Default)]
pub struct Captures(Vec<Capture>);

impl Captures {
    /// Begins to copy the packets that `filter` describes. Returns a number for [`Captures::poll`].
    pub fn start(&mut self, filter: CaptureFilter) -> u32 {
        let id = self.0.iter().map(|capture| capture.id + 1).max().unwrap_or(0);
        self.0.push(Capture::new(id, filter));
        id
    }

    /// The next copy of a packet.
    pub fn poll(&mut self, id: u32) -> Option<Captured> {
        self.0.iter_mut().find(|capture| capture.id == id)?.next()
    }

    /// Ends a capture. Returns how many packets were not copied because the copies were not read in time.
    pub fn stop(&mut self, id: u32) -> u64 {
        let Some(at) = self.0.iter().position(|capture| capture.id == id) else { return 0 };
        self.0.swap_remove(at).lost
    }

    /// Whether no packet is copied.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies a packet: `ip` and `udp`, which is everything behind the UDP header.
    #[inline]
    pub(crate) fn packet(&mut self, at: Time, vni: Vni, ip: &IpUdp, udp: &[u8]) {
        self.0.iter_mut().for_each(|capture| capture.packet(at, vni, ip, udp));
    }

    /// Copies the packets that were added to `to` since `mark` in network `vni`; plain ones come from `source_port`.
    #[inline]
    pub(crate) fn sent(&mut self, at: Time, vni: Vni, source_port: u16, to: &Transmits, mark: usize) {
        self.0.iter_mut().for_each(|capture| capture.sent(at, vni, source_port, to, mark));
    }

    /// Copies a packet between two queue pairs of this host.
    #[inline]
    pub(crate) fn local<M: Memory>(&mut self, at: Time, packet: &Packet<M>) {
        self.0.iter_mut().for_each(|capture| capture.local(at, packet));
    }
}

/// Copies that were made and not yet read.
struct Capture {
    id: u32,
    filter: CaptureFilter,
    waiting: VecDeque<Captured>,
    waiting_bytes: usize,
    /// Packets that found no room.
    lost: u64,
}

impl Capture {
    fn new(id: u32, filter: CaptureFilter) -> Self {
        Self { id, filter, waiting: VecDeque::new(), waiting_bytes: 0, lost: 0 }
    }

    /// The oldest copy.
    fn next(&mut self) -> Option<Captured> {
        let captured = self.waiting.pop_front()?;
        self.waiting_bytes -= captured.bytes.len();
        Some(captured)
    }

    fn wants(&self, vni: Vni, ip: &IpUdp) -> bool {
        self.filter.vni == vni && (self.filter.gids.contains(&ip.source) || self.filter.gids.contains(&ip.dest))
    }

    /// Copies a packet: `ip` and `udp`, which is everything behind the UDP header.
    fn packet(&mut self, at: Time, vni: Vni, ip: &IpUdp, udp: &[u8]) {
        if self.wants(vni, ip) {
            let mut bytes = vec![0; ip.len()];
            ip.encode(udp.len(), &mut bytes);
            let room = self.filter.snap_len.saturating_sub(bytes.len());
            bytes.extend_from_slice(&udp[..udp.len().min(room)]);
            if let Some((covered, [0, 0, 0, 0])) = udp.split_last_chunk::<ICRC_LEN>()
                && udp.len() <= room
            {
                // Sealed packets leave it out, which analysers would complain about.
                let at = bytes.len() - ICRC_LEN;
                bytes[at..].copy_from_slice(&icrc::icrc(ip, covered));
            }
            bytes.truncate(self.filter.snap_len);
            self.keep(Captured { at, len: ip.len() + udp.len(), bytes });
        }
    }

    /// Copies the packets that were added to `to` since `mark` in network `vni`; plain ones come from `source_port`.
    fn sent(&mut self, at: Time, vni: Vni, source_port: u16, to: &Transmits, mark: usize) {
        for (train, id, bytes) in to.since(mark) {
            match train.target {
                Target::Host(_) => {
                    let Ok((ip, udp)) = geneve::decode(bytes).and_then(|(_, inner)| IpUdp::decode(inner)) else {
                        continue;
                    };
                    self.packet(at, vni, &ip, udp);
                }
                Target::External { from, to, .. } => {
                    let ip = IpUdp {
                        source: Gid::from_ip(from),
                        dest: Gid::from_ip(to),
                        traffic_class: train.traffic_class,
                        hop_limit: HOP_LIMIT,
                        flow_label: 0,
                        id,
                        source_port,
                    };
                    self.packet(at, vni, &ip, bytes);
                }
            }
        }
    }

    /// Copies a packet between two queue pairs of this host.
    fn local<M: Memory>(&mut self, at: Time, packet: &Packet<M>) {
        let Head { vni, ip, header, .. } = &packet.head;
        if !self.wants(*vni, ip) || !is_on_a_wire(packet) {
            return;
        }
        let len = packet.body.len();
        let header_len = header.len();
        let udp_len = header_len + padded(len) + ICRC_LEN;
        let (headers, whole) = (ip.len() + header_len, ip.len() + udp_len);
        let is_whole = whole <= self.filter.snap_len;
        let mut bytes = vec![0; if is_whole { whole } else { self.filter.snap_len.max(headers) }];
        encode_ip(ip, udp_len, &mut bytes);
        let udp = &mut bytes[ip.len()..];
        header.encode(len, &mut udp[..header_len]);
        let kept = len.min(udp.len() - header_len);
        packet.body.show(&mut udp[header_len..header_len + kept]);
        if is_whole {
            let crc = icrc::icrc(ip, &udp[..udp_len - ICRC_LEN]);
            udp[udp_len - ICRC_LEN..].copy_from_slice(&crc);
        }
        bytes.truncate(self.filter.snap_len);
        self.keep(Captured { at, len: whole, bytes });
    }

    fn keep(&mut self, captured: Captured) {
        if self.waiting.len() < WAITING && self.waiting_bytes < WAITING_BYTES {
            self.waiting_bytes += captured.bytes.len();
            self.waiting.push_back(captured);
        } else {
            self.lost += 1;
        }
    }
}

fn encode_ip(ip: &IpUdp, udp_len: usize, bytes: &mut [u8]) {
    let fits = ip.len() + udp_len <= usize::from(u16::MAX);
    ip.encode(if fits { udp_len } else { 0 }, bytes);
    if !fits {
        let lengths = if ip.source.as_ipv4().is_some() { [2, 24] } else { [4, 44] };
        lengths.into_iter().for_each(|at| bytes[at..at + 2].fill(0));
    }
}

/// Whether there would be such a packet on a wire.
fn is_on_a_wire<M>(packet: &Packet<M>) -> bool {
    let Head { header, shard, .. } = &packet.head;
    if packet.head.is_reply() {
        // Nothing is answered but on a reliable connection, and what is lost not even there.
        let is_answer = header.service == Service::Rc && !matches!(packet.body, Body::Lost | Body::Ready);
        let Op::Acknowledge(Aeth { syndrome, .. }) = header.op else { return is_answer };
        return is_answer && !matches!(syndrome, Syndrome::Slow { .. } | Syndrome::Nak(NakCode::Sequence));
    }
    // Every engine has a copy of a datagram to a group.
    header.dest != Qpn::MULTICAST || *shard == 0
}

const HOP_LIMIT: u8 = 64;
/// Copies that wait to be read.
const WAITING: usize = 8192;
/// Their bytes.
const WAITING_BYTES: usize = 16 << 20;
