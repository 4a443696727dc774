//! Receive requests: the completions with which they end, and how they are flushed.

use super::Exec;
use super::chain::ends;
use crate::platform::{Platform, RecvQueue};
use crate::schedule::FLUSH_TURN;
use crate::wire::NakCode;
use rdmesh_verbs::{AsyncEvent, Completion, QpState, Qpn, WcFlags, WcOpcode, WcStatus};

impl<P: Platform> Exec<'_, P> {
    /// The responder's half of a fatal error (IBA table 61). Where a receive request reports it, there is no event (classes A
    /// and C).
    pub(crate) fn fail_receive(&mut self, nak: NakCode, status: WcStatus) {
        self.qp.counters.errors += 1;
        ends::blame_receive(self, nak, status);
        if core::mem::take(&mut self.qp.recv.busy) {
            let completion = self.received(self.qp.recv.current.wr_id, status, WcOpcode::Recv);
            // A queue that is full has raised its own event.
            let _ = self.out.complete(self.cx, self.qp.made().context, self.qp.made().recv_cq, &completion, false);
            return self.enter(QpState::Error);
        }
        let event = match nak {
            NakCode::RemoteAccess => AsyncEvent::QpAccessError,
            NakCode::InvalidRequest | NakCode::InvalidRd | NakCode::Sequence => AsyncEvent::QpRequestError,
            NakCode::RemoteOperation => AsyncEvent::QpFatal,
        };
        // A managed queue's group has one event for all.
        if !self.qp.is_managed() {
            self.out.async_event(self.qp.made().context, event, self.qp.made().handle);
        }
        self.enter(QpState::Error);
    }

    pub(super) fn received(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Completion {
        Completion {
            wr_id,
            status,
            opcode,
            byte_len: 0,
            imm: 0,
            qpn: self.qp.made().qpn,
            src_qp: self.qp.attr.dest_qpn,
            sl: 0,
            flags: WcFlags::empty(),
        }
    }

    /// A message of `len` bytes has been received.
    pub(super) fn count_message(&mut self, len: u64) {
        self.qp.counters.rx_messages += 1;
        self.qp.counters.rx_bytes += len;
    }

    /// Ends the receive requests of a QP in error with a flush error (IBA 10.3.1.7): some now, the rest in later polls. Those
    /// of an SRQ stay: they are not its own.
    pub(crate) fn flush_receives(&mut self) {
        if core::mem::take(&mut self.qp.recv.busy) {
            self.flush_receive();
        }
        let most = if self.qp.recv.chain.is_some() { 0 } else { FLUSH_TURN };
        for _ in 0..most {
            let taken = self.qp.recv.queue.as_mut().and_then(|queue| queue.take(&mut self.qp.recv.current));
            let Some(taken) = taken else { break };
            if let Err(bad) = taken {
                self.qp.recv.current.wr_id = bad.wr_id;
            }
            self.flush_receive();
        }
    }

    fn flush_receive(&mut self) {
        let flushed = self.received(self.qp.recv.current.wr_id, WcStatus::FlushError, WcOpcode::Recv);
        let completion = Completion { src_qp: Qpn::default(), ..flushed };
        // A queue that is full has raised its own event.
        let _ = self.out.complete(self.cx, self.qp.made().context, self.qp.made().recv_cq, &completion, false);
    }
}

/// Reason why a request is not executed.
pub(crate) enum Refusal {
    NotReady,
    /// Memory cannot be reached at present. With the error where that lasts.
    Slow(NakCode, WcStatus),
    /// Requester and responder both fail; the responder's receive request, if any, ends with the status.
    Fatal(NakCode, WcStatus),
}

/// Refusal of a request that is wrong in itself.
pub(crate) fn invalid() -> Refusal {
    Refusal::Fatal(NakCode::InvalidRequest, WcStatus::LocalQpOperationError)
}

/// Status with which a request ends that the peer refuses for good (IBA table 58).
pub(crate) fn failure(nak: NakCode) -> WcStatus {
    match nak {
        NakCode::InvalidRequest | NakCode::InvalidRd | NakCode::Sequence => WcStatus::RemoteInvalidRequest,
        NakCode::RemoteAccess => WcStatus::RemoteAccessError,
        NakCode::RemoteOperation => WcStatus::RemoteOperationError,
    }
}
