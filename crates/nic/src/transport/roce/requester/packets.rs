//! Request packets: what they carry, and whether the window has room for them.

use crate::congestion::Controller;
use crate::device::Context;
use crate::memory::{CopyError, gather_bytes};
use crate::path::{Envelope, Lane, Transmits};
use crate::platform::{Memory, Platform};
use crate::qp::{Core, Inflight};
use crate::transport::roce::{Connection, Requester};
use crate::wire::{Header, Op, Part, Reth, SEQUENCE_WINDOW};
use rdmesh_verbs::{Psn, SendFlags, SendOp};

/// The packets of a queue pair's requests, none of which is sent yet.
pub(super) struct Packets<'a, P: Platform> {
    qp: &'a Core<P>,
    cx: &'a Context<P>,
    connection: &'a Connection,
}

/// A request packet under construction.
pub(super) struct Plan {
    pub(super) op: Op,
    /// Bytes of the payload.
    pub(super) payload: usize,
    /// Bytes of the message that it moves, in either direction.
    pub(super) moves: u64,
    /// PSNs that it takes.
    pub(super) psns: u32,
    pub(super) last: bool,
    /// Whether the packet asks for an acknowledgement.
    pub(super) asks: bool,
}

impl Plan {
    /// Bytes of READ responses that it asks for.
    pub(super) fn asked(&self) -> Option<u64> {
        matches!(self.op, Op::ReadRequest(_)).then_some(self.moves)
    }
}

/// The place of a packet: its work request in the send window, the bytes of that before it, and its number.
pub(super) struct Place {
    pub(super) slot: usize,
    pub(super) sent: u64,
    pub(super) psn: Psn,
    pub(super) is_repeated: bool,
    /// Lane that it leaves by.
    pub(super) lane: Lane,
}

impl<P: Platform> Requester<'_, P> {
    /// The packets that it may send.
    pub(super) fn packets(&self) -> Packets<'_, P> {
        Packets { qp: self.qp, cx: self.cx, connection: self.connection }
    }
}

impl<P: Platform> Packets<'_, P> {
    /// The packet of a work request of which `sent` bytes are sent.
    pub(super) fn plan(&self, entry: &Inflight<P::Memory>, sent: u64) -> Plan {
        let mtu = u64::from(self.qp.attr.path_mtu.bytes());
        let payload = (entry.total - sent).min(mtu);
        let last = sent + payload == entry.total;
        let part = Part::of(sent == 0, last);
        let asks = false;
        let data = |op| Plan { op, payload: payload as usize, moves: payload, psns: 1, last, asks };
        let single = |op, payload| Plan { op, payload, moves: entry.total, psns: 1, last: true, asks };
        match entry.wr.op {
            SendOp::Send { imm } => data(Op::Send { part, imm: imm.filter(|_| last), invalidate: None }),
            SendOp::SendInvalidate { rkey } => {
                data(Op::Send { part, imm: None, invalidate: Some(rkey).filter(|_| last) })
            }
            SendOp::Write { remote_addr: addr, rkey, imm } => {
                let reth = Reth { addr, rkey, len: entry.total as u32 };
                data(Op::Write { part, reth: Some(reth).filter(|_| part.is_first()), imm: imm.filter(|_| last) })
            }
            SendOp::Read { remote_addr, rkey } => {
                let chunk = mtu * u64::from(self.read_chunk());
                let end = ((sent / chunk + 1) * chunk).min(entry.total);
                let moves = end - sent;
                let reth = Reth { addr: remote_addr.wrapping_add(sent), rkey, len: moves as u32 };
                let psns = moves.div_ceil(mtu).max(1) as u32;
                Plan { op: Op::ReadRequest(reth), payload: 0, moves, psns, last: end == entry.total, asks }
            }
            SendOp::CompareSwap { remote_addr: addr, rkey, compare, swap } => {
                single(Op::CompareSwap { addr, rkey, compare, swap }, 0)
            }
            SendOp::FetchAdd { remote_addr: addr, rkey, add } => single(Op::FetchAdd { addr, rkey, add }, 0),
            SendOp::AtomicWrite { remote_addr: addr, rkey, .. } => {
                single(Op::AtomicWrite { reth: Reth { addr, rkey, len: 8 } }, 8)
            }
            SendOp::Flush { remote_addr: addr, rkey, length, kind, range } => {
                let reth = Reth { addr, rkey, len: length };
                single(Op::Flush { kind, selectivity: u8::from(!range), reth }, 0)
            }
            // Unreachable: datagrams belong to another kind of queue pair, and the other operations are executed or refused
            // before.
            SendOp::Datagram { .. }
            | SendOp::Calc { .. }
            | SendOp::Enable { .. }
            | SendOp::LocalInvalidate { .. }
            | SendOp::BindMw { .. } => single(Op::Send { part: Part::Only, imm: None, invalidate: None }, 0),
        }
    }

    /// Packets of data that one READ request asks for. A long READ is several of them, so that no more data is in flight than
    /// the window allows: the responder has no other back-pressure.
    fn read_chunk(&self) -> u32 {
        (WINDOW_MOST / u32::from(self.qp.attr.max_rd_atomic.max(1))).clamp(READ_CHUNK, WINDOW_MOST)
    }

    /// Whether the window, and the responder's resources for READs and atomics, have room for `plan`.
    pub(super) fn has_window(&self, plan: &Plan) -> bool {
        if !self.connection.is_acknowledged(self.qp.made().qp_type) {
            return true;
        }
        let requester = &self.connection.requester;
        let on_their_way = self.on_their_way();
        // Losses are made good while as many packets follow as the sequence window has room for.
        if requester.is_selective() && self.span() + plan.psns > SEQUENCE_WINDOW {
            return false;
        }
        if on_their_way != 0 && on_their_way + plan.psns > self.window(plan) {
            return false;
        }
        let is_answered = self.qp.send.window[self.qp.send.cursor].wr.op.is_read_or_atomic();
        !is_answered || self.reads_under_way() < self.qp.reads_limit()
    }

    /// Packets that may be in flight.
    fn window(&self, plan: &Plan) -> u32 {
        let requester = &self.connection.requester;
        let window = requester.congestion.window();
        match plan.op {
            _ if requester.probing && !requester.is_selective() => 1,
            // What follows a loss until it is made good has to fit the sequence window.
            _ if requester.is_selective() && !requester.congestion.is_lossless() => window,
            // The peer's answers to READs are not held up by receive queues that are made for requests.
            Op::ReadRequest(_) => requester.congestion.read_window(),
            _ => window,
        }
    }

    /// PSNs from the oldest without an acknowledgement to the next.
    fn span(&self) -> u32 {
        self.qp.send.next_psn.since(self.connection.requester.unacked) as u32
    }

    /// Packets in flight, answers included, as far as is known.
    pub(super) fn on_their_way(&self) -> u32 {
        self.connection.requester.board.as_ref().map_or_else(|| self.span(), |board| board.in_flight())
    }

    /// An acknowledgement is asked for at the end of a message, now and then, and where nothing more can be sent without.
    pub(super) fn asks(&self, plan: &Plan) -> bool {
        let requester = &self.connection.requester;
        let on_their_way = self.on_their_way() + plan.psns;
        let window = requester.congestion.window();
        let is_full = requester.probing || on_their_way >= window;
        // Paced packets may never fill a narrow window.
        plan.last || is_full || requester.unrequested + 1 >= ACK_EVERY.min(window)
    }

    /// READ requests and atomics that the responder has not answered.
    fn reads_under_way(&self) -> u32 {
        let chunk = u64::from(self.read_chunk()) * u64::from(self.qp.attr.path_mtu.bytes());
        let entries = self.qp.send.window.iter().take(self.qp.send.cursor + 1);
        let busy = entries.filter(|entry| entry.outstanding != 0 && entry.wr.op.is_read_or_atomic());
        // The first may be answered in part, and the last shorter: each takes a place all the same.
        let requests = |entry: &Inflight<_>| match entry.sent > entry.answered {
            true => entry.sent.div_ceil(chunk).saturating_sub(entry.answered / chunk) as u32,
            false => 0,
        };
        busy.map(|entry| requests(entry).max(u32::from(entry.complete))).sum()
    }

    /// Appends a packet to `to`.
    pub(super) fn emit(&self, to: &mut Transmits, plan: &Plan, place: &Place) -> Result<(), CopyError> {
        let entry = &self.qp.send.window[place.slot];
        let solicited = plan.last && entry.wr.flags.contains(SendFlags::SOLICITED);
        let header = Header {
            solicited,
            ack_request: plan.asks && self.connection.is_acknowledged(self.qp.made().qp_type),
            takes_selective: self.connection.requester.board.is_some(),
            is_repeated: place.is_repeated,
            has_telemetry: self.connection.requester.congestion.wants_telemetry(),
            ..crate::transport::roce::header(self.qp, plan.op, place.psn)
        };
        let envelope = Envelope { lane: place.lane, ..self.connection.envelope };
        envelope.emit(to, &header, plan.payload, |bytes| self.fill(entry, place.sent, bytes))
    }

    fn fill(&self, entry: &Inflight<P::Memory>, sent: u64, bytes: &mut [u8]) -> Result<(), CopyError> {
        if let SendOp::AtomicWrite { value, .. } = entry.wr.op {
            bytes.copy_from_slice(&value);
            return Ok(());
        }
        match &entry.inline {
            Some((memory, offset)) => memory.read(offset + sent, bytes).map_err(CopyError::from),
            None => gather_bytes(&self.cx.keys, self.qp.made().pd, &entry.wr.sges, sent, bytes),
        }
    }

    /// The packet that was sent as `psn`; of a READ, the request for what is missing from there on.
    pub(super) fn plan_again(&self, psn: Psn, lane: Lane) -> Option<(Plan, Place)> {
        let (slot, packet) = self.find_request(psn)?;
        let mtu = self.qp.attr.path_mtu.bytes();
        let entry = &self.qp.send.window[slot];
        let place = |packet: u32| {
            let sent = (u64::from(packet) * u64::from(mtu)).min(entry.total);
            Place { slot, sent, psn: entry.first_psn.add(packet), is_repeated: true, lane }
        };
        let again = |place: Place| {
            let mut plan = self.plan(entry, place.sent);
            plan.asks = true;
            (plan, place)
        };
        let SendOp::Read { remote_addr, rkey } = entry.wr.op else { return Some(again(place(packet))) };
        let chunk = packet - packet % self.read_chunk();
        let (whole, at) = again(place(chunk));
        let board = self.connection.requester.board.as_ref()?;
        if !board.is_executed(at.psn, whole.psns) {
            // A part of a request that the peer does not know would be a request of its own.
            return Some((whole, at));
        }
        let psns = board.lost_from(psn, whole.psns - (packet - chunk)).max(1);
        let at = place(packet);
        let moves = (u64::from(psns) * u64::from(mtu)).min(entry.total - at.sent);
        let reth = Reth { addr: remote_addr.wrapping_add(at.sent), rkey, len: moves as u32 };
        Some((Plan { op: Op::ReadRequest(reth), psns, moves, ..whole }, at))
    }

    /// The work request that `psn` belongs to, and which packet of it that is.
    pub(super) fn find_request(&self, psn: Psn) -> Option<(usize, u32)> {
        let mtu = self.qp.attr.path_mtu.bytes();
        let started = self.qp.send.window.iter().take_while(|entry| entry.started);
        let places = started.map(|entry| (psn.since(entry.first_psn), entry.packets(mtu)));
        let mut places = places.enumerate().filter(|(_, (at, psns))| (0..*psns as i32).contains(at));
        places.next().map(|(slot, (at, _))| (slot, at as u32))
    }
}

/// An acknowledgement is asked for at the end of each message and after so many packets.
const ACK_EVERY: u32 = 16;
/// Most packets on their way, READ data included.
const WINDOW_MOST: u32 = 128;
/// Fewest packets of data that one of several READ requests asks for.
const READ_CHUNK: u32 = 32;
