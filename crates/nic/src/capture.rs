//! Packet capture: copies of an endpoint's packets, for analysers.
//!
//! Every copy is an IP packet with RoCEv2 in it, whichever way the packet went: from the tunnel without the tunnel's header,
//! from a plain path with the headers that the kernel adds, and from the path within the host as it would be on a wire of any
//! MTU. Lengths that do not fit a header's 16 bits are 0 there, as in captures of segmentation offload.

use crate::memory::{Payload, Source};
use crate::packet::{Body, Head, Packet, Reply};
use crate::packet::{Request, RequestOp};
use crate::path::{Target, Transmits};
use crate::platform::Memory;
use crate::time::Time;
use crate::wire::{Aeth, Header, ICRC_LEN, IpUdp, Op, Part, Reth, Service, Syndrome, geneve, icrc, padded};
use rdmesh_verbs::{Gid, QpType, Qpn, Vni};
use std::collections::VecDeque;

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
    /// When it was sent or received.
    pub at: Time,
    /// Bytes of the packet.
    pub len: usize,
    /// The first of them.
    pub bytes: Vec<u8>,
}

/// Copies that were made and not yet read.
pub(crate) struct Capture {
    pub(crate) id: u32,
    filter: CaptureFilter,
    waiting: VecDeque<Captured>,
    waiting_bytes: usize,
    lost: u64,
}

impl Capture {
    pub(crate) fn new(id: u32, filter: CaptureFilter) -> Self {
        Self { id, filter, waiting: VecDeque::new(), waiting_bytes: 0, lost: 0 }
    }

    /// The oldest copy.
    pub(crate) fn next(&mut self) -> Option<Captured> {
        let captured = self.waiting.pop_front()?;
        self.waiting_bytes -= captured.bytes.len();
        Some(captured)
    }

    /// Packets that found no room.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    fn wants(&self, vni: Vni, ip: &IpUdp) -> bool {
        self.filter.vni == vni && (self.filter.gids.contains(&ip.source) || self.filter.gids.contains(&ip.dest))
    }

    /// Copies a packet: `ip` and `udp`, which is everything behind the UDP header.
    pub(crate) fn packet(&mut self, at: Time, vni: Vni, ip: &IpUdp, udp: &[u8]) {
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
    pub(crate) fn sent(&mut self, at: Time, vni: Vni, source_port: u16, to: &Transmits, mark: usize) {
        for (train, id, bytes) in to.since(mark) {
            match train.target {
                Target::Host(_) => {
                    let Ok((ip, udp)) = geneve::decode(bytes).and_then(|(_, inner)| IpUdp::decode(inner)) else {
                        continue;
                    };
                    self.packet(at, vni, &ip, udp);
                }
                Target::Plain { from, to, .. } => {
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
    pub(crate) fn local<M: Memory>(&mut self, at: Time, packet: &Packet<M>) {
        let head = &packet.head;
        let ip = around(head);
        if !self.wants(head.vni, &ip) {
            return;
        }
        let Some((header, payload)) = as_on_a_wire(packet) else { return };
        let len = payload.map_or(0, |payload| payload.len() as usize);
        let header_len = header.len();
        let udp_len = header_len + padded(len) + ICRC_LEN;
        let (headers, whole) = (ip.len() + header_len, ip.len() + udp_len);
        let is_whole = whole <= self.filter.snap_len;
        let mut bytes = vec![0; if is_whole { whole } else { self.filter.snap_len.max(headers) }];
        encode_ip(&ip, udp_len, &mut bytes);
        let udp = &mut bytes[ip.len()..];
        header.encode(len, &mut udp[..header_len]);
        let kept = len.min(udp.len() - header_len);
        // Memory that has gone meanwhile shows as zeros.
        let _ = payload.map_or(Ok(()), |payload| payload.read(&mut udp[header_len..header_len + kept]));
        if is_whole {
            let crc = icrc::icrc(&ip, &udp[..udp_len - ICRC_LEN]);
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

/// The IP header that a packet within this host would have.
fn around(head: &Head) -> IpUdp {
    IpUdp {
        source: head.sgid,
        dest: head.dgid,
        traffic_class: 0,
        hop_limit: HOP_LIMIT,
        flow_label: 0,
        id: 0,
        source_port: SOURCE_PORT,
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

/// The header that a packet within this host would have, and its data; none for packets that do not exist on a wire.
fn as_on_a_wire<M>(packet: &Packet<M>) -> Option<(Header, Option<&Payload<M>>)> {
    let head = &packet.head;
    let service = match head.qp_type {
        QpType::Rc => Service::Rc,
        QpType::Uc => Service::Uc,
        QpType::Ud => Service::Ud,
    };
    // Every engine has a copy of a datagram to a group. On a wire there is one, and nothing is answered but on a reliable
    // connection.
    let is_copy = head.dst == Qpn::MULTICAST && head.shard != 0;
    if is_copy || service != Service::Rc && matches!(packet.body, Body::Reply(_)) {
        return None;
    }
    let (op, payload, solicited) = match &packet.body {
        Body::Request(request) => (request_op(head, request), Some(&request.payload), request.solicited),
        Body::Reply(Reply::Data(payload)) => {
            let part = Part::Only;
            (Op::ReadResponse { part, aeth: Some(aeth(Syndrome::ACK)) }, Some(payload), false)
        }
        Body::Reply(reply) => (reply_op(reply)?, None, false),
    };
    let last = matches!(&packet.body, Body::Request(request) if request.last);
    let ack_request = last && service == Service::Rc;
    Some((Header { solicited, ack_request, ..Header::new(service, op, head.dst, head.psn) }, payload))
}

fn request_op<S>(head: &Head, request: &Request<S>) -> Op {
    let part = Part::of(request.first, request.last);
    let at_end = |imm: Option<u32>| imm.filter(|_| request.last);
    match request.op {
        RequestOp::Send { imm, invalidate } => {
            Op::Send { part, imm: at_end(imm), invalidate: invalidate.filter(|_| request.last) }
        }
        RequestOp::Write { addr, rkey, remaining, imm } => {
            let reth = Reth { addr, rkey, len: remaining as u32 };
            Op::Write { part, reth: Some(reth).filter(|_| request.first), imm: at_end(imm) }
        }
        RequestOp::Read { addr, rkey, .. } => Op::ReadRequest(Reth { addr, rkey, len: head.len }),
        RequestOp::CompareSwap { addr, rkey, compare, swap } => Op::CompareSwap { addr, rkey, compare, swap },
        RequestOp::FetchAdd { addr, rkey, add } => Op::FetchAdd { addr, rkey, add },
        RequestOp::AtomicWrite { addr, rkey, .. } => Op::AtomicWrite { reth: Reth { addr, rkey, len: 8 } },
        RequestOp::Flush { addr, rkey, length, kind, range } => {
            Op::Flush { kind, selectivity: u8::from(!range), reth: Reth { addr, rkey, len: length } }
        }
        RequestOp::Datagram { qkey, imm, .. } => Op::Datagram { qkey, source: head.src, imm },
    }
}

fn reply_op<M>(reply: &Reply<M>) -> Option<Op> {
    Some(match reply {
        Reply::Ack => Op::Acknowledge(aeth(Syndrome::ACK)),
        Reply::Atomic { old } => Op::AtomicAcknowledge { aeth: aeth(Syndrome::ACK), original: *old },
        Reply::Rnr { timer } => Op::Acknowledge(aeth(Syndrome::Rnr { timer: *timer })),
        Reply::Nak(nak) => Op::Acknowledge(aeth(Syndrome::Nak((*nak).into()))),
        Reply::Data(_) | Reply::Slow | Reply::Dropped | Reply::OutOfSequence => return None,
    })
}

fn aeth(syndrome: Syndrome) -> Aeth {
    Aeth { syndrome, msn: 0 }
}

const HOP_LIMIT: u8 = 64;
const SOURCE_PORT: u16 = 0xc000;
/// Copies that wait to be read.
const WAITING: usize = 8192;
/// Their bytes.
const WAITING_BYTES: usize = 16 << 20;
