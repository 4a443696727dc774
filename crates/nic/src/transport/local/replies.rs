//! Replies of a responder on the same host: acknowledgements, READ and atomic responses, NAKs, and packets without a reply.

use super::Local;
use crate::exec::failure;
use crate::memory::{CopyError, Source, scatter_bytes, scatter_zeros};
use crate::packet::{Body, Head};
use crate::platform::Platform;
use crate::qp::Wait;
use crate::wire::{Aeth, NakCode, Op, Syndrome};
use core::time::Duration;
use rdmesh_verbs::{QpType, WcStatus, ack_timeout, rnr_delay};

impl<P: Platform> Local<'_, P> {
    /// Takes the reply to a request packet.
    pub(crate) fn handle_reply(&mut self, head: &Head, body: &mut Body<P::Memory>) {
        if let Body::Ready = body {
            return self.peer_is_ready();
        }
        if head.epoch != self.state.epoch || self.qp.send.window.is_empty() {
            return;
        }
        if self.qp.made().qp_type == QpType::Ud {
            return self.datagram_gone(head);
        }
        if self.state.held.is_empty() {
            self.take_reply(head, body);
        } else {
            self.state.held.push_back((*head, body.take()));
        }
    }

    fn take_reply(&mut self, head: &Head, body: &mut Body<P::Memory>) {
        P::serve(Some(self.qp.packet_id(true, head.header.psn)));
        self.execute_reply(head, body);
        P::serve(None);
    }

    fn execute_reply(&mut self, head: &Head, body: &mut Body<P::Memory>) {
        // Within the host nothing is lost or reordered, so a reply is to the oldest request that lacks one.
        let position = self.qp.send.window.iter().position(|e| e.outstanding != 0);
        let Some(position) = position else { return };
        match (head.header.op, &*body) {
            (Op::Acknowledge(Aeth { syndrome: Syndrome::Slow { .. }, .. }), Body::Data(_)) => self.memory_is_slow(),
            // An unreliable connection has no acknowledgements: a message is done when it was sent.
            _ if self.qp.made().qp_type != QpType::Rc => self.answered(head, position),
            (_, Body::Lost) => self.lost(),
            (Op::Acknowledge(Aeth { syndrome, .. }), _) => self.take_acknowledgement(head, position, syndrome),
            (Op::AtomicAcknowledge { original, .. }, _) => {
                let (entry, bytes) = (&self.qp.send.window[position], original.to_ne_bytes());
                let copied = scatter_bytes(&self.cx.keys, self.qp.made().pd, &entry.wr.sges, 0, &bytes);
                self.result(head, position, body, copied);
            }
            (_, Body::Data(payload)) => {
                let entry = &self.qp.send.window[position];
                let copied = payload.scatter(&self.cx.keys, self.qp.made().pd, &entry.wr.sges, entry.answered);
                self.result(head, position, body, copied);
            }
            (_, Body::Zeros(len)) => {
                let entry = &self.qp.send.window[position];
                let (sges, len) = (&entry.wr.sges, u64::from(*len));
                let copied = scatter_zeros(&self.cx.keys, self.qp.made().pd, sges, entry.answered, len);
                if entry.answered == 0 {
                    self.cx.chains.counts(self.qp.made().handle).into_iter().for_each(|counts| counts.soft_faults += 1);
                }
                self.result(head, position, body, copied);
            }
            (_, Body::Word(_) | Body::Calc(..) | Body::Ready) => {}
        }
    }

    fn take_acknowledgement(&mut self, head: &Head, position: usize, syndrome: Syndrome) {
        match syndrome {
            Syndrome::Ack { .. } => self.answered(head, position),
            Syndrome::Rnr { timer } => self.not_ready(timer),
            Syndrome::Slow { .. } => self.memory_is_slow(),
            // A request before it was not executed.
            Syndrome::Nak(NakCode::Sequence) => self.lost(),
            Syndrome::Nak(code) => self.exec().fail_oldest(failure(code)),
        }
    }

    fn result(&mut self, head: &Head, position: usize, body: &mut Body<P::Memory>, copied: Result<(), CopyError>) {
        match copied {
            Ok(()) => self.answered(head, position),
            // The peer has executed it, and that is not asked for twice: the reply waits.
            Err(error) if error.is_slow() && self.wait_for_memory() => {
                self.state.held.push_front((*head, body.take()));
            }
            Err(CopyError::Protection | CopyError::Slow) => self.exec().fail_oldest(WcStatus::LocalProtectionError),
            Err(CopyError::Length) => self.exec().fail_oldest(WcStatus::LocalLengthError),
            Err(CopyError::Source | CopyError::SourceSlow) => self.exec().fail_oldest(WcStatus::RemoteOperationError),
        }
    }

    /// A packet was executed: progress, so the retry counters start afresh (IBA 9.7.6.1.3).
    fn answered(&mut self, head: &Head, position: usize) {
        self.qp.send.retries_left = self.qp.attr.retry_cnt;
        self.qp.send.rnr_left = self.qp.attr.rnr_retry;
        self.qp.send.slow.end();
        self.state.unanswered -= 1;
        let entry = &mut self.qp.send.window[position];
        entry.outstanding -= 1;
        entry.answered += u64::from(head.len);
        self.exec().complete_oldest();
    }

    /// A datagram was delivered, or dropped; the sender cannot tell.
    fn datagram_gone(&mut self, head: &Head) {
        let found = self.qp.send.window.iter().position(|e| e.first_psn == head.header.psn && e.outstanding != 0);
        let Some(position) = found else { return };
        let entry = &mut self.qp.send.window[position];
        entry.outstanding -= 1;
        if entry.outstanding == 0 {
            entry.answered = entry.total;
            self.state.unanswered -= 1;
        }
        self.exec().complete_oldest();
    }

    /// The receiver had no receive request posted (IBA 9.7.5.2.8).
    fn not_ready(&mut self, timer: u8) {
        const FOREVER: u8 = 7;
        self.qp.counters.rnr_naks += 1;
        if self.qp.attr.rnr_retry != FOREVER {
            if self.qp.send.rnr_left == 0 {
                return self.exec().fail_oldest(WcStatus::RnrRetryExceeded);
            }
            self.qp.send.rnr_left -= 1;
        }
        self.state.go_back(&mut self.qp.send, self.out.next_epoch());
        let at = self.out.now.after(rnr_delay(timer));
        self.qp.send.set_wait(self.index, Wait::Rnr(at), &mut self.out.timers);
    }

    /// The receiver has a receive request now, before the RNR timer has expired.
    fn peer_is_ready(&mut self) {
        if let Wait::Rnr(_) = self.qp.send.wait {
            self.qp.send.set_wait(self.index, Wait::None, &mut self.out.timers);
            self.out.make_ready(self.index, self.qp);
        }
    }

    /// The responder could not execute a packet because memory is slow: it is sent again, as long as the responder wants.
    fn memory_is_slow(&mut self) {
        self.state.go_back(&mut self.qp.send, self.out.next_epoch());
        if !self.wait_for_memory() {
            // The responder ends it in the same moment, or soon: it tells whose memory it is.
            let at = self.out.now.after(AFTER_LIMIT);
            self.qp.send.set_wait(self.index, Wait::Slow(at), &mut self.out.timers);
        }
    }

    /// Stands still because memory is slow; false where it has been so for too long.
    pub(crate) fn wait_for_memory(&mut self) -> bool {
        let Some(interval) = self.qp.send.slow.next(self.out.now) else { return false };
        let at = self.out.now.after(interval);
        self.qp.send.set_wait(self.index, Wait::Slow(at), &mut self.out.timers);
        true
    }

    /// Takes the replies whose data could not be stored, in their order.
    fn take_held(&mut self) {
        while self.qp.send.wait == Wait::None
            && let Some((head, mut body)) = self.state.held.pop_front()
        {
            // An earlier reply may have made it void.
            if head.epoch == self.state.epoch && !self.qp.send.window.is_empty() {
                self.take_reply(&head, &mut body);
            }
        }
    }

    /// A packet was lost: the requester waits for the ACK time-out.
    fn lost(&mut self) {
        self.state.go_back(&mut self.qp.send, self.out.next_epoch());
        let wait =
            ack_timeout(self.qp.attr.timeout).map_or(Wait::Forever, |timeout| Wait::Ack(self.out.now.after(timeout)));
        self.qp.send.set_wait(self.index, wait, &mut self.out.timers);
    }

    /// A deadline has passed that may be this QP's.
    pub(crate) fn handle_timeout(&mut self) {
        match self.qp.send.wait {
            Wait::Rnr(at) | Wait::Slow(at) if at <= self.out.now => {}
            Wait::Ack(at) if at <= self.out.now => {
                self.qp.counters.retries += 1;
                if self.qp.send.retries_left == 0 {
                    self.qp.send.set_wait(self.index, Wait::None, &mut self.out.timers);
                    return self.exec().fail_oldest(WcStatus::RetryExceeded);
                }
                self.qp.send.retries_left -= 1;
            }
            _ => return,
        }
        self.qp.send.set_wait(self.index, Wait::None, &mut self.out.timers);
        self.take_held();
        self.out.make_ready(self.index, self.qp);
    }
}

/// Retry interval for a responder that delays a request for longer than memory may be slow.
const AFTER_LIMIT: Duration = Duration::from_millis(100);
