//! Responder towards another host: packet order, execution and acknowledgements.
//!
//! A request packet with the expected PSN is executed as on one host (see [`crate::exec`]). A later one is
//! reported once by a NAK, an earlier one (a duplicate) is answered from the responses that are kept (IBA 9.7.5.1.2). Answers
//! leave in PSN order with the queue pair's next packets: one acknowledgement covers all packets that arrived since the last.
//! From an rdmesh router later packets are kept until the gap is closed (see [`selective`]).

mod execute;
mod replies;
mod selective;

use replies::Replies;
pub(super) use selective::Selective;

use super::time_wait::MAX_FINAL_ACKS;
use crate::exec::Refusal;
use crate::platform::Platform;
use crate::qp::{Message, Slowness};
use crate::timer::Time;
use crate::transport::roce::Responder;
use crate::wire::{Header, NakCode, Op, Syndrome};
use core::time::Duration;
use rdmesh_verbs::{Psn, QpState, QpType, WcStatus};

/// The receive side. The next PSN expected is the queue pair's own.
pub(super) struct ResponderState {
    /// Messages completed (IBA 9.7.5.1.2).
    msn: u32,
    replies: Replies,
    /// Of the memory that replies are read from.
    slow: Slowness,
    /// A positive acknowledgement is due.
    ack_due: bool,
    /// The last SEND or WRITE packet. A READ or atomic is only acknowledged by its own answer: some take an acknowledgement of
    /// its PSN for that answer.
    acknowledgeable: Option<Psn>,
    /// A negative one is due.
    nak_due: Option<(Psn, Syndrome)>,
    /// The negative one that put the queue pair in error.
    fatal: Option<(Psn, Syndrome)>,
    gap: Gap,
    /// Where the peer takes selective acknowledgements.
    selective: Selective,
    /// Time at which a congestion notification was last sent, and whether one is due.
    notified_at: Option<Time>,
    notify: bool,
    /// Repeats of the final ACK that are left when the connection has ended.
    final_acks_left: u8,
}

/// Last report to the peer about missing packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gap {
    /// Nothing is missing.
    None,
    /// A sequence NAK: its time, and the PSN that last came behind the gap.
    Reported(Time, Psn),
    /// An RNR NAK: the peer waits and then begins with the expected packet, so later packets need no report.
    Waiting,
}

impl ResponderState {
    /// With room for `replies` READs and atomics.
    pub(super) fn new(replies: usize, selective: Selective) -> Self {
        Self {
            msn: 0,
            replies: Replies::new(replies),
            slow: Slowness::default(),
            ack_due: false,
            acknowledgeable: None,
            nak_due: None,
            fatal: None,
            gap: Gap::None,
            selective,
            notified_at: None,
            notify: false,
            final_acks_left: MAX_FINAL_ACKS,
        }
    }

    /// The queue pair is in error: only the NAK is sent any more.
    pub(super) fn fail(&mut self) {
        self.nak_due = self.fatal;
        // Requests before the refused one are still acknowledged.
        if self.fatal.is_none() {
            self.replies.clear();
        }
        self.ack_due = false;
        self.notify = false;
        self.selective.end();
    }

    /// Whether packets behind a gap may be kept, as far as is known of the peer.
    pub(super) fn may_be_selective(&self) -> bool {
        self.selective.is_possible()
    }

    /// Whether a positive acknowledgement is due.
    pub(super) fn is_ack_due(&self) -> bool {
        self.ack_due
    }

    /// Contents of the connection's final ACK: the last SEND or WRITE packet that was executed, messages completed, and how
    /// often it may be repeated. The final answer of a refused connection is a NAK.
    pub(super) fn final_ack(&self) -> Option<(Psn, u32, u8)> {
        let executed = self.acknowledgeable.filter(|_| self.fatal.is_none())?;
        Some((executed, self.msn, self.final_acks_left))
    }
}

impl<P: Platform> Responder<'_, P> {
    /// Takes a request packet from the peer.
    pub(super) fn handle_request(&mut self, header: &Header, payload: &[u8]) {
        match self.qp.made().qp_type {
            QpType::Rc if self.qp.state() == QpState::Error => self.repeat_final_answer(header),
            QpType::Rc => self.receive_in_order(header, payload),
            QpType::Uc => self.receive_as_it_comes(header, payload),
            QpType::Ud => {}
        }
    }

    fn receive_in_order(&mut self, header: &Header, payload: &[u8]) {
        let expected = self.qp.recv.expected_psn;
        let ahead = header.psn.since(expected);
        self.connection.follow_peer(header);
        self.connection.responder.selective.count_repeat(header);
        if ahead > 0 && self.connection.responder.selective.is_on() {
            self.hold(header, payload);
        } else if ahead > 0 {
            self.out_of_order(header.psn, expected);
        } else if ahead < 0 {
            let now = self.out.now;
            self.connection.on_repeated_request(now);
            self.duplicate(header);
        } else {
            self.receive_next(header, payload);
            if self.qp.recv.expected_psn != expected {
                self.receive_held();
            } else if self.connection.responder.selective.is_parked() {
                self.hold(header, payload);
            }
        }
        self.out.make_wire_ready(self.index);
    }

    fn receive_next(&mut self, header: &Header, payload: &[u8]) {
        let done = self.execute_packet(header, payload);
        let responder = &mut self.connection.responder;
        match done {
            Ok(psns) => {
                self.qp.recv.slow.end();
                self.qp.recv.expected_psn = header.psn.add(psns);
                if matches!(header.op, Op::Send { .. } | Op::Write { .. }) {
                    responder.ack_due |= header.ack_request;
                    responder.acknowledgeable = Some(header.psn);
                }
                (responder.gap, responder.nak_due) = (Gap::None, None);
                responder.selective.unpark();
            }
            Err(Refusal::NotReady) if responder.selective.is_on() => self.park(header.psn),
            Err(Refusal::NotReady) => {
                self.qp.counters.rnr_naks += 1;
                responder.nak_due = Some((header.psn, Syndrome::Rnr { timer: self.qp.attr.min_rnr_timer }));
                responder.gap = Gap::Waiting;
            }
            Err(Refusal::Slow(nak, status)) => {
                match self.qp.recv.slow.put_off(self.out.now, self.connection.envelope.is_tunnel()) {
                    Some(syndrome) => {
                        responder.nak_due = Some((header.psn, syndrome));
                        responder.gap = Gap::Waiting;
                    }
                    None => self.refuse(header.psn, nak, status),
                }
            }
            Err(Refusal::Fatal(nak, status)) => self.refuse(header.psn, nak, status),
        }
    }

    /// A request cannot be executed: the connection ends on both sides.
    fn refuse(&mut self, psn: Psn, nak: NakCode, status: WcStatus) {
        self.connection.responder.fatal = Some((psn, Syndrome::Nak(nak)));
        self.exec().fail_receive(nak, status);
        // What is sent in the present turn is already the NAK.
        self.connection.fail();
        self.out.make_wire_ready(self.index);
    }

    /// A packet before this one was lost. The gap is reported once; again when the peer has gone back and lost it again, and
    /// now and then as long as packets come behind it, because the report may have been lost.
    fn out_of_order(&mut self, psn: Psn, expected: Psn) {
        self.qp.counters.out_of_order += 1;
        let now = self.out.now;
        let responder = &mut self.connection.responder;
        match responder.gap {
            Gap::Waiting => {}
            Gap::Reported(at, last) if psn.since(last) > 0 && at.after(REPORT_EVERY) > now => {
                responder.gap = Gap::Reported(at, psn);
            }
            Gap::None | Gap::Reported(..) => {
                responder.gap = Gap::Reported(now, psn);
                responder.nak_due = Some((expected, Syndrome::Nak(NakCode::Sequence)));
            }
        }
    }

    /// A packet that was executed before (IBA 9.7.5.1.3): its answer may have been lost.
    fn duplicate(&mut self, header: &Header) {
        self.qp.counters.duplicates += 1;
        let mtu = self.qp.attr.path_mtu.bytes();
        let responder = &mut self.connection.responder;
        match header.op {
            Op::Send { .. } | Op::Write { .. } => {
                responder.ack_due = true;
                responder.selective.count_duplicate(header);
            }
            // A copy: the request has been answered, or will be.
            _ if responder.selective.is_on() && !header.is_repeated => {}
            _ => responder.replies.again(header, mtu),
        }
    }

    /// The refusal that ended the connection may have been lost, and answers before it: without them the peer would only see
    /// silence. It acknowledges all before it that need no answer of their own. Where the program has ended the connection,
    /// the acknowledgement of what had arrived before may have been lost (see [`crate::transport::roce::time_wait`]).
    fn repeat_final_answer(&mut self, header: &Header) {
        let mtu = self.qp.attr.path_mtu.bytes();
        let responder = &mut self.connection.responder;
        match responder.fatal {
            Some((psn, _)) if header.psn.since(psn) <= 0 => {
                responder.replies.again(header, mtu);
                responder.nak_due = responder.fatal;
            }
            Some(_) => {}
            None if matches!(header.op, Op::Send { .. } | Op::Write { .. }) && responder.final_acks_left > 0 => {
                let is_known = responder.acknowledgeable.is_some_and(|psn| header.psn.since(psn) <= 0);
                responder.final_acks_left -= u8::from(is_known && !responder.ack_due);
                responder.ack_due |= is_known;
            }
            None => {}
        }
        self.out.make_wire_ready(self.index);
    }

    /// Unreliable connection: a loss drops the rest of its message (IBA 9.8.2.2).
    fn receive_as_it_comes(&mut self, header: &Header, payload: &[u8]) {
        if header.ack_request && self.connection.is_acknowledged(self.qp.made().qp_type) {
            self.hold_sender_back(header.psn);
        }
        let in_sequence = header.psn == self.qp.recv.expected_psn;
        self.qp.recv.expected_psn = header.psn.add(1);
        let (Op::Send { part, .. } | Op::Write { part, .. }) = header.op else { return };
        if part.is_first() {
            // A message that ended early leaves its receive request to the next one.
            self.qp.recv.received = 0;
            self.qp.recv.message = Message::None;
        } else if !in_sequence || self.qp.recv.skipping {
            self.qp.counters.out_of_order += 1;
            self.qp.recv.skipping = true;
            return;
        }
        self.qp.recv.skipping = false;
        match self.execute_packet(header, payload) {
            Ok(_) => {}
            Err(Refusal::Fatal(nak, status)) if self.qp.recv.busy => self.exec().fail_receive(nak, status),
            Err(_) => self.qp.recv.skipping = true,
        }
    }

    fn hold_sender_back(&mut self, arrived: Psn) {
        self.connection.responder.ack_due = true;
        self.connection.responder.acknowledgeable = Some(arrived);
        self.out.make_wire_ready(self.index);
    }

    /// The packet has a congestion mark: the peer is sent a notification, now and then (IBA annex A17.9.3).
    pub(super) fn on_congestion_met(&mut self) {
        let now = self.out.now;
        let responder = &mut self.connection.responder;
        if responder.notified_at.is_none_or(|at| at.after(NOTIFY_EVERY) <= now) {
            responder.notified_at = Some(now);
            responder.notify = true;
            self.out.make_wire_ready(self.index);
        }
    }
}

/// Interval between NAKs for the same gap while packets arrive behind it.
const REPORT_EVERY: Duration = Duration::from_micros(200);
/// Least time between two congestion notifications of a queue pair.
const NOTIFY_EVERY: Duration = Duration::from_micros(50);
