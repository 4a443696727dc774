//! Completion of work requests: successful, failed or flushed.

use super::Exec;
use super::chain::ends;
use crate::platform::{Platform, SendQueue};
use crate::schedule::FLUSH_TURN;
use rdmesh_verbs::{AsyncEvent, Completion, QpState, QpType, Qpn, SendFlags, WcFlags, WcOpcode, WcStatus};

impl<P: Platform> Exec<'_, P> {
    /// Completes the finished requests, oldest first.
    pub(crate) fn complete_oldest(&mut self) {
        while let Some(entry) = self.qp.send.window.oldest()
            && entry.complete
            && entry.outstanding == 0
        {
            let (wr_id, flags, opcode) = (entry.wr.wr_id, entry.wr.flags, entry.wr.op.wc_opcode());
            let total = entry.total;
            self.qp.send.window.pop();
            self.qp.send.cursor -= 1;
            self.qp.counters.tx_messages += 1;
            self.qp.counters.tx_bytes += total;
            if matches!(opcode, WcOpcode::RdmaRead | WcOpcode::CompareSwap | WcOpcode::FetchAdd) {
                self.qp.counters.read_bytes += total;
            }
            if !self.finish_send(wr_id, opcode, flags, total as u32, WcStatus::Success) {
                return self.fail_send();
            }
        }
        if self.qp.send.window.is_empty() && self.qp.send.announce_drained {
            self.qp.send.announce_drained = false;
            self.out.async_event(self.qp.made().context, AsyncEvent::SqDrained, self.qp.made().handle);
        }
        if self.qp.can_send() {
            self.out.make_ready(self.index, self.qp);
        }
    }

    /// The oldest request ends in an error, and with it the send queue.
    pub(crate) fn fail_oldest(&mut self, status: WcStatus) {
        self.qp.counters.errors += 1;
        ends::blame_oldest(self, status);
        if let Some(entry) = self.qp.send.window.oldest() {
            let (wr_id, opcode, flags) = (entry.wr.wr_id, entry.wr.op.wc_opcode(), entry.wr.flags);
            self.qp.send.window.pop();
            self.finish_send(wr_id, opcode, flags, 0, status);
        }
        self.fail_send();
    }

    /// A send error: RC fails as a whole, UC and UD only their send side (IBA 10.3.1.6).
    pub(super) fn fail_send(&mut self) {
        let state = if self.qp.made().qp_type == QpType::Rc { QpState::Error } else { QpState::Sqe };
        self.enter(state);
    }

    /// Writes the completion of a send, where one is due, and hands its slot back; false on overrun of the CQ.
    #[allow(clippy::too_many_arguments, reason = "the fields of a completion")]
    pub(super) fn finish_send(
        &mut self,
        wr_id: u64,
        opcode: WcOpcode,
        flags: SendFlags,
        byte_len: u32,
        status: WcStatus,
    ) -> bool {
        self.qp.send.release();
        if status == WcStatus::Success && !self.qp.made().signal_all && !flags.contains(SendFlags::SIGNALED) {
            return true;
        }
        let completion = Completion {
            wr_id,
            status,
            opcode,
            byte_len,
            imm: 0,
            qpn: self.qp.made().qpn,
            src_qp: Qpn::default(),
            sl: 0,
            flags: WcFlags::empty(),
        };
        self.out.complete(self.cx, self.qp.made().context, self.qp.made().send_cq, &completion, false).is_ok()
    }

    /// Ends the requests of a broken send queue, fetched or not, with a flush error (IBA 10.3.1.7): some now, the rest in
    /// later turns, because a program may post as fast as they are flushed.
    pub(crate) fn flush_sends(&mut self) -> bool {
        let mut flushed = false;
        while let Some(entry) = self.qp.send.window.oldest() {
            let (wr_id, opcode) = (entry.wr.wr_id, entry.wr.op.wc_opcode());
            self.qp.send.window.pop();
            self.finish_send(wr_id, opcode, SendFlags::empty(), 0, WcStatus::FlushError);
            flushed = true;
        }
        // Requests of a managed queue that have not started are the chain's, and posted by no one.
        let most = if self.qp.send.chain.is_some() { 0 } else { FLUSH_TURN };
        for _ in 0..most {
            let Some(fetched) = self.qp.send.queue.fetch(self.qp.made().qp_type, &mut self.qp.send.window.next().wr)
            else {
                break;
            };
            let wr = &self.qp.send.window.next().wr;
            let (wr_id, opcode) = match fetched {
                Ok(()) => (wr.wr_id, wr.op.wc_opcode()),
                Err(bad) => (bad.wr_id, WcOpcode::Send),
            };
            self.finish_send(wr_id, opcode, SendFlags::empty(), 0, WcStatus::FlushError);
            self.out.spend(0);
            flushed = true;
        }
        self.qp.send.clear();
        if self.qp.can_send() {
            self.out.make_ready(self.index, self.qp);
        }
        flushed
    }
}
