//! SEND and WRITE at the responder, and the receive requests that they consume.

use super::remote::Range;
use super::{Exec, Refusal, Request, invalid};
use crate::chain::{Executed, Side, Target};
use crate::memory::{CopyError, Source};
use crate::platform::{Fault, Platform, RecvQueue};
use crate::qp::{MESSAGE_MAX, Message};
use crate::wire::{NakCode, Op, Part};
use rdmesh_verbs::chain::ChainOp;
use rdmesh_verbs::{Access, AsyncEvent, Completion, Key, WcFlags, WcOpcode, WcStatus};

impl<P: Platform> Exec<'_, P> {
    /// Executes a SEND packet.
    pub(crate) fn execute_send<S>(&mut self, request: &Request<'_, S>) -> Result<(), Refusal>
    where
        S: Source<P::Memory> + ?Sized,
    {
        let Op::Send { part, imm, invalidate } = request.op else { return Err(invalid()) };
        self.follow(part, Message::Send)?;
        self.take_recv()?;
        if part.is_first() {
            self.qp.recv.received = 0;
        }
        self.check_length(request.payload.len(), part.is_last())?;
        let sges = &self.qp.recv.current.sges;
        request.payload.scatter(&self.cx.keys, self.qp.made().pd, sges, self.qp.recv.received).map_err(blame)?;
        self.qp.recv.received += u64::from(request.payload.len());
        if part.is_last() {
            self.end_send(imm, invalidate, request.solicited)?;
        }
        self.qp.recv.message = if part.is_last() { Message::None } else { Message::Send };
        Ok(())
    }

    /// A message for a managed queue has exactly the declared length: a short one would leave the last sender's bytes in place.
    fn check_length(&self, len: u32, is_last: bool) -> Result<(), Refusal> {
        if self.qp.recv.chain.is_none() || !is_last {
            return Ok(());
        }
        let declared: u64 = self.qp.recv.current.sges.iter().map(|sge| u64::from(sge.length)).sum();
        if self.qp.recv.received + u64::from(len) == declared { Ok(()) } else { Err(invalid()) }
    }

    fn end_send(&mut self, imm: Option<u32>, invalidate: Option<Key>, solicited: bool) -> Result<(), Refusal> {
        if let Some(key) = invalidate {
            let denied = |_| Refusal::Fatal(NakCode::RemoteAccess, WcStatus::LocalQpOperationError);
            self.cx.keys.invalidate(self.qp.made().pd, Some(self.qp.made().qpn), key).map_err(denied)?;
        }
        let (imm, flags) = match (imm, invalidate) {
            (Some(imm), _) => (imm, WcFlags::WITH_IMM),
            (_, Some(key)) => (key.0, WcFlags::WITH_INV),
            _ => (0, WcFlags::empty()),
        };
        self.deliver(WcOpcode::Recv, imm, flags, solicited)
    }

    /// Executes a WRITE packet.
    pub(crate) fn execute_write<S>(&mut self, request: &Request<'_, S>) -> Result<(), Refusal>
    where
        S: Source<P::Memory> + ?Sized,
    {
        let Op::Write { part, reth, imm } = request.op else { return Err(invalid()) };
        let (addr, rkey, remaining) = match (self.qp.recv.message, reth) {
            (Message::None, Some(reth)) => (reth.addr, reth.rkey, u64::from(reth.len)),
            (Message::Write { addr, rkey, remaining }, None) => (addr, rkey, remaining),
            _ => return Err(invalid()),
        };
        self.follow(part, Message::Write { addr, rkey, remaining })?;
        let len = u64::from(request.payload.len());
        // The length in the first packet is that of the whole message (IBA 9.7.4.1.6).
        if remaining > MESSAGE_MAX || part.is_last() != (len == remaining) || len > remaining {
            return Err(invalid());
        }
        let place = self.reach(&Range { addr, rkey, len: remaining }, Access::REMOTE_WRITE)?;
        if imm.is_some() {
            self.take_recv()?;
        }
        if part.is_first() {
            self.qp.recv.received = 0;
        }
        if let Some((memory, offset)) = place {
            request.payload.copy_to(&memory, offset).map_err(unreachable)?;
        }
        self.qp.recv.received += len;
        if part.is_last() {
            self.end_write(imm, request.solicited)?;
        }
        let rest = Message::Write { addr: addr.wrapping_add(len), rkey, remaining: remaining - len };
        self.qp.recv.message = if part.is_last() { Message::None } else { rest };
        Ok(())
    }

    fn end_write(&mut self, imm: Option<u32>, solicited: bool) -> Result<(), Refusal> {
        if let Some(imm) = imm {
            return self.deliver(WcOpcode::RecvRdmaWithImm, imm, WcFlags::WITH_IMM, solicited);
        }
        self.count_message(self.qp.recv.received);
        if let Some(cq) = self.cx.cq(self.qp.made().recv_cq) {
            cq.on_write();
        }
        Ok(())
    }

    /// Whether `part` of a message may come now (IBA 9.7.4.1.2).
    fn follow(&self, part: Part, kind: Message) -> Result<(), Refusal> {
        let follows = match (self.qp.recv.message, kind) {
            (Message::None, _) => part.is_first(),
            (Message::Send, Message::Send) | (Message::Write { .. }, Message::Write { .. }) => !part.is_first(),
            _ => false,
        };
        if follows { Ok(()) } else { Err(invalid()) }
    }

    /// Makes sure that there is a receive request for the present message: the one it has, or the next of the QP's own queue
    /// or the shared one.
    pub(super) fn take_recv(&mut self) -> Result<(), Refusal> {
        if self.qp.recv.busy {
            return Ok(());
        }
        let (context, srq) = (self.qp.made().context, self.qp.made().srq);
        let wr = &mut self.qp.recv.current;
        if self.qp.recv.chain.is_some() {
            return self.take_managed();
        }
        let taken = match (srq, &mut self.qp.recv.queue) {
            (Some(handle), _) => {
                let srq = self.cx.srq(handle).ok_or(Refusal::NotReady)?;
                let taken = srq.take(wr);
                if taken.is_some() && srq.take_limit_event() {
                    self.out.async_event(context, AsyncEvent::SrqLimitReached, handle);
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
                Err(Refusal::Fatal(NakCode::RemoteOperation, WcStatus::LocalQpOperationError))
            }
        }
    }

    /// The same for a managed receive queue.
    fn take_managed(&mut self) -> Result<(), Refusal> {
        let target = Target { qp: self.qp.made().handle, side: Side::Receive };
        let Some(queue) = &mut self.qp.recv.chain else { return Err(Refusal::NotReady) };
        if !self.cx.chains.may_start(target, queue.next()) {
            return Err(Refusal::NotReady);
        }
        let wr = &mut self.qp.recv.current;
        let taken = queue.take(wr);
        self.qp.recv.busy = true;
        taken.map_err(|unfit| {
            wr.wr_id = unfit.wr_id;
            wr.sges.clear();
            Refusal::Fatal(NakCode::RemoteOperation, WcStatus::LocalQpOperationError)
        })
    }

    fn deliver(&mut self, opcode: WcOpcode, imm: u32, flags: WcFlags, solicited: bool) -> Result<(), Refusal> {
        let len = self.qp.recv.received;
        self.count_message(len);
        self.qp.recv.busy = false;
        self.trace_message(opcode, len);
        let completion = Completion {
            byte_len: len as u32,
            imm,
            // As rxe does, for every message that came in an IP packet.
            flags: flags | WcFlags::GRH,
            ..self.received(self.qp.recv.current.wr_id, WcStatus::Success, opcode)
        };
        self.out
            .complete(self.cx, self.qp.made().context, self.qp.made().recv_cq, &completion, solicited)
            .map_err(|_| Refusal::Fatal(NakCode::RemoteOperation, WcStatus::LocalQpOperationError))
    }
}

impl<P: Platform> Exec<'_, P> {
    /// Records a message of a managed receive queue.
    fn trace_message(&mut self, opcode: WcOpcode, bytes: u64) {
        let Some(queue) = &self.qp.recv.chain else { return };
        let op = if opcode == WcOpcode::Recv { ChainOp::Send } else { ChainOp::WriteImm };
        let (qp, index, at) = (self.qp.made().handle, queue.next().saturating_sub(1), self.out.now);
        self.cx.chains.on_message(Executed { number: 0, qp, is_receive: true, index, op, bytes, at });
    }
}

/// Memory that a peer names, or the peer's own, is gone or slow.
pub(super) fn unreachable(fault: Fault) -> Refusal {
    let (nak, status) = (NakCode::RemoteAccess, WcStatus::LocalProtectionError);
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
        CopyError::Protection | CopyError::Slow => {
            Refusal::Fatal(NakCode::RemoteOperation, WcStatus::LocalProtectionError)
        }
        CopyError::Length => Refusal::Fatal(NakCode::InvalidRequest, WcStatus::LocalLengthError),
        // The sender's memory was deregistered while it was sent: the error is reported in the sender's own status.
        CopyError::Source | CopyError::SourceSlow => {
            Refusal::Fatal(NakCode::RemoteOperation, WcStatus::RemoteOperationError)
        }
    }
}
