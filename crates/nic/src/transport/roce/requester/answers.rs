//! Acknowledgements, READ responses and atomic responses at the requester.

use super::RequesterState;
use super::timers::timeout;
use crate::congestion::{Acked, Controller};
use crate::exec::failure;
use crate::memory::{CopyError, scatter_bytes};
use crate::platform::Platform;
use crate::timer::{Time, Timer};
use crate::transport::roce::{NATIVE_REPLIES, Requester};
use crate::wire::{Aeth, Header, NakCode, Op, Syndrome};
use core::time::Duration;
use rdmesh_verbs::{Psn, QpType, SendOp, WcStatus, rnr_delay};

impl<P: Platform> Requester<'_, P> {
    /// Takes an acknowledgement, or the data of a READ or atomic.
    pub(in crate::transport::roce) fn handle_answer(&mut self, header: &Header, payload: &[u8]) {
        let requester = &self.connection.requester;
        let psn = header.psn;
        let (behind, ahead) = (psn.since(requester.unacked), psn.since(requester.highest));
        if !self.qp.is_sending() {
            return;
        }
        if header.takes_selective && self.connection.requester.is_selective() {
            self.qp.set_reads_kept(NATIVE_REPLIES);
        }
        if header.op == Op::SelectiveAcknowledge && behind >= 0 && ahead <= 0 {
            return self.selective_ack(header, payload);
        }
        // An answer to a packet that was never sent, or was answered before, is stale.
        if behind < 0 || ahead >= 0 {
            if behind < 0 && matches!(header.op, Op::ReadResponse { .. }) {
                let now = self.out.now;
                self.connection.requester.on_late_answer(now);
            }
            return;
        }
        if self.qp.made().qp_type == QpType::Uc {
            return self.let_go_on(psn);
        }
        let is_selective = self.connection.requester.is_selective();
        match header.op {
            Op::Acknowledge(Aeth { syndrome: Syndrome::Ack { .. }, .. }) => {
                self.end_selection();
                self.acknowledge(psn.add(1));
            }
            Op::Acknowledge(Aeth { syndrome: Syndrome::Rnr { timer }, .. }) => self.peer_not_ready(psn, timer, true),
            Op::Acknowledge(Aeth { syndrome: Syndrome::Slow { timer }, .. }) => self.peer_memory_slow(psn, timer),
            Op::Acknowledge(Aeth { syndrome: Syndrome::Nak(code), .. }) => self.refused(psn, code),
            Op::ReadResponse { .. } if is_selective => self.answered_selectively(header, payload),
            Op::AtomicAcknowledge { original, .. } if is_selective => {
                self.answered_selectively(header, &original.to_ne_bytes());
            }
            Op::ReadResponse { .. } => self.read_response(psn, payload),
            Op::AtomicAcknowledge { original, .. } => self.atomic_response(psn, original),
            _ => {}
        }
    }

    /// The peer of an unreliable connection has received `psn`: more may be sent.
    fn let_go_on(&mut self, psn: Psn) {
        let requester = &mut self.connection.requester;
        let arrived = psn.add(1).after(requester.unacked);
        requester.unacked = psn.add(1);
        self.on_progress(arrived);
    }

    /// Acknowledges all packets before `end`. A READ or atomic among them without an answer has lost its answer (IBA
    /// 9.7.5.1.1).
    fn acknowledge(&mut self, end: Psn) {
        if self.connection.requester.is_selective() {
            return self.acknowledge_selectively(end);
        }
        let requester = &mut self.connection.requester;
        // More than the probe has arrived: where nothing was lost lately, the others are late rather than lost.
        let was_late = requester.probing && end.since(requester.unacked) > 1 && requester.congestion.is_lossless();
        if requester.probing && !was_late {
            requester.timed = None;
            requester.congestion.on_probed_loss();
        }
        // Request by request: one acknowledgement may cover several, and each completes with its own last packet.
        while let acked = end.since(self.connection.requester.unacked)
            && acked > 0
            && let Some(entry) = self.qp.send.window.oldest()
            && entry.started
        {
            if matches!(entry.wr.op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) {
                return self.answer_lost();
            }
            self.advance(acked as u32);
        }
        if was_late {
            self.go_forward();
        }
    }

    /// The oldest request, up to `packets` more of it, is done.
    pub(super) fn advance(&mut self, packets: u32) {
        let mtu = self.qp.attr.path_mtu.bytes();
        let send = &mut self.qp.send;
        let requester = &mut self.connection.requester;
        let entry = &mut send.window[0];
        let done = requester.unacked.after(entry.first_psn);
        let total = entry.packets(mtu);
        let done_now = (done + packets).min(total);
        requester.unacked = entry.first_psn.add(done_now);
        if requester.is_selective() {
            // Its answers come in any order: these are the first of them that are all there.
            entry.answered = (u64::from(done_now) * u64::from(mtu)).min(entry.total);
        }
        let is_behind = requester.unacked.since(send.next_psn) > 0;
        if is_behind {
            // Sending had gone back without need.
            send.next_psn = requester.unacked;
            entry.sent = (u64::from(done_now) * u64::from(mtu)).min(entry.total);
        }
        if done_now == total {
            // After going back the cursor may be at this request, which need not be sent again now.
            send.cursor = send.cursor.max(1);
            (entry.complete, entry.outstanding) = (true, 0);
        }
        // Packets that arrive in any order are counted when they do.
        let counted = if self.connection.requester.is_selective() { 0 } else { done_now - done };
        self.on_progress(counted);
        if done_now == total {
            self.exec().complete_oldest();
        }
    }

    pub(super) fn on_progress(&mut self, packets: u32) {
        let now = self.out.now;
        let longest_queue = timeout(&self.qp.attr).map_or(Duration::MAX, |timeout| timeout / QUEUE_SHARE);
        self.qp.send.slow.end();
        self.qp.send.retries_left = self.qp.attr.retry_cnt;
        self.qp.send.rnr_left = self.qp.attr.rnr_retry;
        let requester = &mut self.connection.requester;
        let timed = requester.timed.take_if(|(psn, _)| requester.unacked.since(*psn) > 0);
        if let Some((_, sent)) = timed {
            requester.rtt.sample(sent, now);
        }
        requester.congestion.on_ack(Acked { packets, is_timed: timed.is_some(), longest_queue }, &requester.rtt);
        (requester.probing, requester.probes) = (false, 0);
        requester.timers.stop(Timer::Retry);
        self.watch_progress();
        self.out.make_wire_ready(self.index);
    }

    /// An answer that must have been sent did not arrive.
    fn answer_lost(&mut self) {
        // Answers that were in flight behind the lost one report the same loss.
        let echo = self.connection.requester.rtt.echo().max(READ_ECHO);
        if !self.connection.requester.went_back_within(self.out.now, echo) {
            self.on_loss();
        }
    }

    fn refused(&mut self, psn: Psn, code: NakCode) {
        if code == NakCode::Sequence {
            // An rdmesh router would have kept what came behind.
            self.end_selection();
        }
        self.acknowledge(psn);
        let requester = &self.connection.requester;
        if requester.unacked != psn || self.qp.send.window.is_empty() {
            return;
        }
        if code != NakCode::Sequence {
            return self.exec().fail_oldest(failure(code));
        }
        // A retransmitted packet cannot have been refused sooner than this: the NAK is an echo of an earlier one.
        let echo = requester.rtt.echo();
        if !requester.timers.is_set(Timer::Rnr) && !self.connection.requester.went_back_within(self.out.now, echo) {
            self.on_loss();
        }
    }

    /// The peer's memory is slow. That is no retry, as long as the peer may believe so.
    fn peer_memory_slow(&mut self, psn: Psn, timer: u8) {
        if self.connection.envelope.is_tunnel() {
            let counts = self.qp.send.slow.next(self.out.now).is_none();
            self.peer_not_ready(psn, timer, counts);
        }
    }

    /// The receiver had no receive request posted (IBA 9.7.5.2.8), or the like. Where that `counts`, it may be so only as often
    /// as the program allows.
    fn peer_not_ready(&mut self, psn: Psn, timer: u8, counts: bool) {
        const FOREVER: u8 = 7;
        self.acknowledge(psn);
        let requester = &self.connection.requester;
        let (is_oldest, is_selective) = (requester.unacked == psn, requester.is_selective());
        if !(is_oldest || is_selective) || requester.timers.is_set(Timer::Rnr) || !self.qp.is_sending() {
            return;
        }
        self.qp.counters.rnr_naks += 1;
        // Earlier requests that wait for their answers complete first.
        if counts && is_oldest && self.qp.attr.rnr_retry != FOREVER {
            if self.qp.send.rnr_left == 0 {
                return self.exec().fail_oldest(WcStatus::RnrRetryExceeded);
            }
            self.qp.send.rnr_left -= 1;
        }
        if is_selective {
            self.connection.requester.lose_from(psn);
        } else {
            self.go_back()
        }
        let at = self.out.now.after(rnr_delay(timer));
        let requester = &mut self.connection.requester;
        requester.timers.set(Timer::Rnr, at);
        requester.timers.stop(Timer::Retry);
        (requester.probing, requester.probes) = (false, 0);
        self.out.timers.set_by(self.index, at);
    }

    fn read_response(&mut self, psn: Psn, payload: &[u8]) {
        self.acknowledge(psn);
        let Some(entry) = self.qp.send.window.oldest() else { return };
        if self.connection.requester.unacked != psn {
            return;
        }
        match entry.wr.op {
            SendOp::Read { .. } => {}
            // Annex A19 answers them with such a response.
            SendOp::AtomicWrite { .. } | SendOp::Flush { .. } if payload.is_empty() => return self.advance(1),
            _ => return,
        }
        let expected = (entry.total - entry.answered).min(u64::from(self.qp.attr.path_mtu.bytes()));
        if payload.len() as u64 != expected {
            return self.exec().fail_oldest(WcStatus::BadResponse);
        }
        let copied = scatter_bytes(&self.cx.keys, self.qp.made().pd, &entry.wr.sges, entry.answered, payload);
        self.answered_with(copied, expected);
    }

    fn atomic_response(&mut self, psn: Psn, original: u64) {
        self.acknowledge(psn);
        let Some(entry) = self.qp.send.window.oldest() else { return };
        let is_atomic = matches!(entry.wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        if self.connection.requester.unacked != psn || !is_atomic {
            return;
        }
        let copied = scatter_bytes(&self.cx.keys, self.qp.made().pd, &entry.wr.sges, 0, &original.to_ne_bytes());
        self.answered_with(copied, entry.total);
    }

    fn answered_with(&mut self, copied: Result<(), CopyError>, len: u64) {
        match copied {
            Ok(()) => {
                self.qp.send.window[0].answered += len;
                self.advance(1);
            }
            // It is asked for again: the peer keeps what it must not execute twice.
            Err(error) if error.is_slow() && self.wait_for_own_memory() => self.go_back(),
            Err(CopyError::Length) => self.exec().fail_oldest(WcStatus::LocalLengthError),
            Err(_) => self.exec().fail_oldest(WcStatus::LocalProtectionError),
        }
    }

    /// A packet was lost: sends again from there.
    fn on_loss(&mut self) {
        let requester = &mut self.connection.requester;
        requester.congestion.on_loss(1, &requester.rtt);
        self.go_back();
        self.out.make_wire_ready(self.index);
    }

    /// Goes back to the oldest packet that was not acknowledged.
    pub(super) fn go_back(&mut self) {
        let mtu = u64::from(self.qp.attr.path_mtu.bytes());
        let requester = &mut self.connection.requester;
        requester.timed = None;
        requester.unrequested = 0;
        requester.went_back = Some((requester.unacked, self.out.now));
        let send = &mut self.qp.send;
        send.cursor = 0;
        send.next_psn = requester.unacked;
        for i in 0..send.window.len() {
            let entry = &mut send.window[i];
            if !entry.started {
                break;
            }
            // Only the oldest can be acknowledged in part: its predecessors have left the window, and acknowledgements are cumulative.
            let done = if i == 0 { u64::from(requester.unacked.after(entry.first_psn)) } else { 0 };
            entry.sent = (done * mtu).min(entry.total);
            entry.complete = false;
        }
    }

    /// Goes on behind the last packet that was ever sent: earlier packets are in flight.
    fn go_forward(&mut self) {
        let mtu = self.qp.attr.path_mtu.bytes();
        let requester = &mut self.connection.requester;
        requester.went_back = None;
        let send = &mut self.qp.send;
        while send.cursor < send.window.len() && send.window[send.cursor].started {
            let entry = &mut send.window[send.cursor];
            let (sent, total) = (requester.highest.after(entry.first_psn), entry.packets(mtu));
            entry.sent = (u64::from(sent) * u64::from(mtu)).min(entry.total);
            entry.complete = sent >= total;
            if !entry.complete {
                break;
            }
            send.cursor += 1;
        }
        send.next_psn = requester.highest;
    }
}

impl RequesterState {
    /// Whether sending went back to where it is now less than `time` before `now`.
    fn went_back_within(&self, now: Time, time: Duration) -> bool {
        self.went_back.is_some_and(|(psn, at)| psn == self.unacked && at.after(time) > now)
    }
}

/// Minimum time in which further gaps in answers count as echoes of the first: they come without being asked for.
const READ_ECHO: Duration = Duration::from_micros(150);
/// Fraction of the ACK time-out that packets may wait in queues. Where both sides send, an answer waits in two of them.
const QUEUE_SHARE: u32 = 8;
