//! Requester towards another host: request packets, in order, as far as the window allows.
//!
//! When a packet is lost, sending goes back to the oldest packet without an acknowledgement (go-back-N, IBA 9.7.5.1):
//!
//! * a NAK, or an answer beyond a READ or atomic that was not answered, reports the loss;
//! * after some round trips of silence one packet is sent again as a probe; its acknowledgement shows how far the peer is;
//! * after each ACK time-out of the queue pair (IBA 9.7.6.1.3) a retry is counted, until there are none left.
//!
//! Parts: [`answers`] handles received answers, [`timers`] the time-outs.

mod answers;
mod timers;

use crate::congestion::{Controller, Dcqcn, Rtt};
use crate::memory::{CopyError, gather_bytes};
use crate::path::Transmits;
use crate::platform::{Memory, Platform};
use crate::qp::Inflight;
use crate::schedule::{Order, TURN_COST, TURN_STEPS};
use crate::timer::{Time, Timer, TimerTable};
use crate::transport::roce::Requester;
use crate::wire::{Header, Op, Part, Reth};
use rdmesh_verbs::{Psn, QpType, SendFlags, SendOp, WcStatus};

/// The send side. The next PSN and the work requests on their way are the queue pair's own.
#[derive(Default)]
pub(super) struct RequesterState {
    /// Oldest PSN that is not acknowledged.
    unacked: Psn,
    /// The PSN after the greatest that was ever sent.
    highest: Psn,
    /// Packets since an acknowledgement was last asked for.
    unrequested: u32,
    congestion: Dcqcn,
    rtt: Rtt,
    /// A packet whose round trip is measured.
    timed: Option<(Psn, Time)>,
    /// Whether a probe is in flight: after silence one packet is sent, and its answer shows how far the peer is.
    probing: bool,
    /// Probes since the last progress.
    probes: u32,
    /// Its rates, or those above it, are used up.
    is_limited: bool,
    timers: TimerTable,
    /// From where, and when, sending last went back.
    went_back: Option<(Psn, Time)>,
}

/// Result of an attempt to send a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// There may be more.
    Done,
    /// The queue pair is blocked by an event that will make it ready again.
    Stuck,
}

/// A request packet under construction.
struct Plan {
    op: Op,
    /// Bytes of the payload.
    payload: usize,
    /// Bytes of the message that it moves, in either direction.
    moves: u64,
    /// PSNs that it takes.
    psns: u32,
    last: bool,
    /// Whether the packet asks for an acknowledgement.
    asks: bool,
}

impl RequesterState {
    /// Begins to send with `psn`.
    pub(super) fn start(&mut self, psn: Psn) {
        self.unacked = psn;
        self.highest = psn;
    }

    /// Oldest PSN that is not acknowledged.
    pub(super) fn unacked(&self) -> Psn {
        self.unacked
    }

    /// The peer, or the network before it, is congested.
    pub(super) fn on_notification(&mut self, now: Time, mtu: u32) {
        self.congestion.on_cnp(now, &self.rtt, mtu);
    }

    /// The queue pair is in error: nothing is sent any more.
    pub(super) fn fail(&mut self) {
        self.highest = self.unacked;
        self.timers.stop(Timer::Rnr);
        self.timers.stop(Timer::Slow);
        self.congestion.stop();
    }

    /// Whether anything was sent that is not acknowledged.
    fn is_waiting(&self) -> bool {
        self.unacked != self.highest
    }
}

impl<P: Platform> Requester<'_, P> {
    /// Appends request packets for one turn. Returns whether there may be more at once.
    pub(in crate::transport::roce) fn send_requests(&mut self, to: &mut Transmits) -> bool {
        let mut steps = 0;
        let end = self.out.chains.spent() + TURN_COST;
        while steps < TURN_STEPS
            && self.out.chains.spent() < end
            && to.has_turn()
            && self.may_send()
            && self.send_request(to) == Step::Done
        {
            steps += 1;
        }
        if steps != 0 {
            self.watch_progress();
        }
        // Where it is stuck, the event that it waits for makes it ready again.
        (steps == TURN_STEPS || self.out.chains.spent() >= end || !to.has_turn()) && self.may_send()
    }

    /// Whether there is a request to send, and nothing that forbids it.
    fn may_send(&mut self) -> bool {
        let (now, index) = (self.out.now, self.index);
        if !self.qp.is_sending() {
            return false;
        }
        let requester = &mut self.connection.requester;
        if requester.timers.is_set(Timer::Rnr) || requester.timers.is_ahead(Timer::Slow, now) {
            return false;
        }
        if let Some(at) = requester.congestion.pacing().filter(|at| *at > now) {
            self.out.timers.set_by(index, at);
            return false;
        }
        // What is sent again was allowed once, and its time-out does not know of rates.
        let is_repeated = self.qp.send.next_psn.since(requester.highest) < 0;
        if !self.qp.can_send() {
            return false;
        }
        requester.is_limited = !is_repeated && !self.out.admit(Order::Wire, index);
        !requester.is_limited
    }

    fn send_request(&mut self, to: &mut Transmits) -> Step {
        if self.qp.send.cursor == self.qp.send.window.len() && !self.exec().fetch() {
            return Step::Stuck;
        }
        let cursor = self.qp.send.cursor;
        // A step of a chain leaves nothing to send.
        if cursor == self.qp.send.window.len() {
            return if self.qp.is_sending() { Step::Done } else { Step::Stuck };
        }
        let entry = &self.qp.send.window[cursor];
        if !entry.started {
            if self.qp.must_wait(entry.wr.precedence(), cursor) {
                return Step::Stuck;
            }
            if let Err(status) = self.qp.check(cursor, self.cx.network.mtu.bytes()) {
                return self.fail_in_turn(cursor, status);
            }
            if entry.wr.op.is_local() {
                self.exec().execute_local();
                return if self.qp.is_sending() { Step::Done } else { Step::Stuck };
            }
        }
        let mut plan = self.plan(&self.qp.send.window[cursor]);
        if !self.has_window(&plan) {
            return Step::Stuck;
        }
        plan.asks = self.asks(&plan);
        match self.emit_request(to, &plan) {
            Ok(()) => {
                self.on_request_sent(&plan);
                Step::Done
            }
            Err(error) if error.is_slow() && self.wait_for_own_memory() => Step::Stuck,
            Err(_) => self.fail_in_turn(cursor, WcStatus::LocalProtectionError),
        }
    }

    /// The memory of a request is slow: nothing is sent for a while. False where it has been so for too long.
    fn wait_for_own_memory(&mut self) -> bool {
        let Some(interval) = self.qp.send.slow.next(self.out.now) else { return false };
        let at = self.out.now.after(interval);
        let requester = &mut self.connection.requester;
        requester.timers.set(Timer::Slow, at);
        // The peer is silent because nothing is sent, or because what it sends has no place.
        requester.timers.stop(Timer::Retry);
        self.out.timers.set_by(self.index, at);
        true
    }

    /// Earlier requests complete first: an error waits for its turn.
    fn fail_in_turn(&mut self, cursor: usize, status: WcStatus) -> Step {
        if cursor == 0 {
            self.exec().fail_oldest(status);
        }
        Step::Stuck
    }

    /// The next packet of a work request.
    fn plan(&self, entry: &Inflight<P::Memory>) -> Plan {
        let mtu = u64::from(self.qp.attr.path_mtu.bytes());
        let payload = (entry.total - entry.sent).min(mtu);
        let last = entry.sent + payload == entry.total;
        let part = Part::of(entry.sent == 0, last);
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
                let end = ((entry.sent / chunk + 1) * chunk).min(entry.total);
                let moves = end - entry.sent;
                let reth = Reth { addr: remote_addr.wrapping_add(entry.sent), rkey, len: moves as u32 };
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
    fn has_window(&self, plan: &Plan) -> bool {
        if !self.connection.is_acknowledged(self.qp.qp_type) {
            return true;
        }
        let requester = &self.connection.requester;
        let on_their_way = self.qp.send.next_psn.since(requester.unacked) as u32;
        // The peer's answers to READs are not held up by receive queues that are made for requests.
        let is_read = matches!(plan.op, Op::ReadRequest(_));
        let window = if requester.probing { 1 } else { requester.congestion.window() << u32::from(is_read) };
        if on_their_way != 0 && on_their_way + plan.psns > window {
            return false;
        }
        let is_answered = self.qp.send.window[self.qp.send.cursor].wr.op.is_read_or_atomic();
        !is_answered || self.reads_under_way() < u32::from(self.qp.attr.max_rd_atomic)
    }

    /// An acknowledgement is asked for at the end of a message, now and then, and where nothing more can be sent without.
    fn asks(&self, plan: &Plan) -> bool {
        let requester = &self.connection.requester;
        let on_their_way = self.qp.send.next_psn.since(requester.unacked) as u32 + plan.psns;
        let is_full = requester.probing || on_their_way >= requester.congestion.window();
        plan.last || is_full || requester.unrequested + 1 >= ACK_EVERY
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

    fn emit_request(&self, to: &mut Transmits, plan: &Plan) -> Result<(), CopyError> {
        let entry = &self.qp.send.window[self.qp.send.cursor];
        let solicited = plan.last && entry.wr.flags.contains(SendFlags::SOLICITED);
        let header = Header {
            solicited,
            ack_request: plan.asks && self.connection.is_acknowledged(self.qp.qp_type),
            ..super::header(self.qp, plan.op, self.qp.send.next_psn)
        };
        self.connection.envelope.emit(to, &header, plan.payload, |bytes| self.fill(entry, bytes))
    }

    fn fill(&self, entry: &Inflight<P::Memory>, bytes: &mut [u8]) -> Result<(), CopyError> {
        if let SendOp::AtomicWrite { value, .. } = entry.wr.op {
            bytes.copy_from_slice(&value);
            return Ok(());
        }
        match &entry.inline {
            Some((memory, offset)) => memory.read(offset + entry.sent, bytes).map_err(CopyError::from),
            None => gather_bytes(&self.cx.keys, self.qp.pd, &entry.wr.sges, entry.sent, bytes),
        }
    }

    fn on_request_sent(&mut self, plan: &Plan) {
        let now = self.out.now;
        let send = &mut self.qp.send;
        let requester = &mut self.connection.requester;
        let psn = send.next_psn;
        let entry = &mut send.window[send.cursor];
        let begins = !entry.started;
        if begins {
            (entry.started, entry.first_psn) = (true, psn);
        }
        // Not a count of packets, as within the host: retransmission would spoil it. `unacked` says which have arrived.
        entry.outstanding = 1;
        entry.sent += plan.moves;
        send.next_psn = psn.add(plan.psns);
        self.out.spend(plan.moves);
        self.out.meter(self.index, plan.moves, begins);
        requester.unrequested = if plan.asks { 0 } else { requester.unrequested + 1 };
        if send.next_psn.since(requester.highest) > 0 {
            // Only packets that are sent once have an unambiguous round trip (Karn).
            if plan.asks && requester.timed.is_none() {
                requester.timed = Some((psn, now));
            }
            requester.highest = send.next_psn;
            send.slow.end();
        } else {
            self.qp.counters.retransmitted += 1;
            requester.timed = requester.timed.filter(|(timed, _)| *timed != psn);
        }
        requester.congestion.on_sent(now, plan.payload as u64 + HEADERS);
        if plan.last {
            entry.complete = true;
            send.cursor += 1;
            if self.qp.qp_type == QpType::Uc {
                self.on_unreliable_sent();
            }
        }
    }

    /// An unreliable connection has no acknowledgements: a message is done when it was sent.
    fn on_unreliable_sent(&mut self) {
        if !self.connection.is_acknowledged(self.qp.qp_type) {
            self.connection.requester.unacked = self.qp.send.next_psn;
        }
        let cursor = self.qp.send.cursor;
        self.qp.send.window[cursor - 1].outstanding = 0;
        self.exec().complete_oldest();
    }
}

/// An acknowledgement is asked for at the end of each message and after so many packets.
const ACK_EVERY: u32 = 16;
/// Most packets on their way, READ data included.
const WINDOW_MOST: u32 = 128;
/// Fewest packets of data that one of several READ requests asks for.
const READ_CHUNK: u32 = 32;
/// About what the headers of a packet take, for the rate limit.
const HEADERS: u64 = 64;
