//! SEND and WRITE at the responder, and the receive requests that they consume.

use super::Exec;
use super::Refusal;
use super::remote::Range;
use crate::memory::{CopyError, Source};
use crate::packet::{Nak, Request};
use crate::platform::{CompletionQueue, Fault, Platform, RecvQueue};
use rdmesh_verbs::{Access, AsyncEvent, Completion, Key, WcFlags, WcOpcode, WcStatus};

impl<P: Platform> Exec<'_, P> {
    pub(crate) fn receive_send<S: Source<P::Memory>>(
        &mut self,
        request: &Request<S>,
        imm: Option<u32>,
        invalidate: Option<Key>,
    ) -> Result<(), Refusal> {
        self.take_recv()?;
        if request.first {
            self.qp.recv.received = 0;
        }
        let sges = &self.qp.recv.current.sges;
        request.payload.scatter(&self.cx.keys, self.qp.pd, sges, self.qp.recv.received).map_err(blame)?;
        self.qp.recv.received += u64::from(request.payload.len());
        if !request.last {
            return Ok(());
        }
        if let Some(key) = invalidate {
            let denied = |_| Refusal::Fatal(Nak::RemoteAccess, WcStatus::LocalQpOperationError);
            self.cx.keys.invalidate(self.qp.pd, Some(self.qp.qpn), key).map_err(denied)?;
        }
        let extra = match (imm, invalidate) {
            (Some(imm), _) => (imm, WcFlags::WITH_IMM),
            (_, Some(key)) => (key.0, WcFlags::WITH_INV),
            _ => (0, WcFlags::empty()),
        };
        self.deliver(request, WcOpcode::Recv, extra)
    }

    pub(crate) fn receive_write<S: Source<P::Memory>>(
        &mut self,
        request: &Request<S>,
        range: &Range,
        imm: Option<u32>,
    ) -> Result<(), Refusal> {
        let place = self.reach(range, Access::REMOTE_WRITE)?;
        let imm = imm.filter(|_| request.last);
        if imm.is_some() {
            self.take_recv()?;
        }
        if request.first {
            self.qp.recv.received = 0;
        }
        if let Some((memory, offset)) = place {
            request.payload.copy_to(&memory, offset).map_err(unreachable)?;
        }
        self.qp.recv.received += u64::from(request.payload.len());
        if !request.last {
            return Ok(());
        }
        if let Some(imm) = imm {
            return self.deliver(request, WcOpcode::RecvRdmaWithImm, (imm, WcFlags::WITH_IMM));
        }
        let len = self.qp.recv.received;
        self.count(request, len);
        if let Some(cq) = self.cx.cqs.get_mut(self.qp.recv_cq) {
            cq.queue.on_write();
        }
        Ok(())
    }

    /// Makes sure that there is a receive request for the present message: the one it has, or the next of the QP's own queue
    /// or the shared one.
    pub(super) fn take_recv(&mut self) -> Result<(), Refusal> {
        if self.qp.recv.busy {
            return Ok(());
        }
        let wr = &mut self.qp.recv.current;
        let taken = match (self.qp.srq, &mut self.qp.recv.queue) {
            (Some(handle), _) => {
                let srq = self.cx.srqs.get_mut(handle).ok_or(Refusal::NotReady)?;
                let taken = srq.queue.take(wr);
                if taken.is_some() && srq.attr.limit != 0 && srq.queue.len() < srq.attr.limit {
                    srq.attr.limit = 0;
                    self.out.async_event(self.qp.context, AsyncEvent::SrqLimitReached, handle);
                }
                taken
            }
            (None, Some(queue)) => queue.take(wr),
            (None, None) => None,
        };
        self.qp.recv.busy = taken.is_some();
        match taken {
            None => Err(Refusal::NotReady),
            Some(Ok(())) => Ok(()),
            Some(Err(bad)) => {
                wr.wr_id = bad.wr_id;
                wr.sges.clear();
                Err(Refusal::Fatal(Nak::RemoteOperation, WcStatus::LocalQpOperationError))
            }
        }
    }

    pub(super) fn deliver<S>(
        &mut self,
        request: &Request<S>,
        opcode: WcOpcode,
        (imm, flags): (u32, WcFlags),
    ) -> Result<(), Refusal> {
        let len = self.qp.recv.received;
        self.count(request, len);
        self.qp.recv.busy = false;
        let completion = Completion {
            byte_len: len as u32,
            imm,
            // As rxe does, for every message that came in an IP packet.
            flags: flags | WcFlags::GRH,
            ..self.received(self.qp.recv.current.wr_id, WcStatus::Success, opcode)
        };
        self.out
            .complete(self.cx, self.qp.context, self.qp.recv_cq, &completion, request.solicited)
            .map_err(|_| Refusal::Fatal(Nak::RemoteOperation, WcStatus::LocalQpOperationError))
    }
}

/// Memory that a peer names, or the peer's own, is gone or slow.
pub(super) fn unreachable(fault: Fault) -> Refusal {
    let (nak, status) = (Nak::RemoteAccess, WcStatus::LocalProtectionError);
    match fault {
        Fault::Gone => Refusal::Fatal(nak, status),
        Fault::Slow => Refusal::Slow(nak, status),
    }
}

fn blame(error: CopyError) -> Refusal {
    match (blame_lasting(error.lasting()), error.is_slow()) {
        (Refusal::Fatal(nak, status), true) => Refusal::Slow(nak, status),
        (refusal, _) => refusal,
    }
}

fn blame_lasting(error: CopyError) -> Refusal {
    match error {
        CopyError::Protection | CopyError::Slow => Refusal::Fatal(Nak::RemoteOperation, WcStatus::LocalProtectionError),
        CopyError::Length => Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalLengthError),
        // The sender's memory was deregistered while it was sent: the error is reported in the sender's own status.
        CopyError::Source | CopyError::SourceSlow => {
            Refusal::Fatal(Nak::RemoteOperation, WcStatus::RemoteOperationError)
        }
    }
}
