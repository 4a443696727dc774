//! Responder within the host: order of request packets, and their replies.

use super::Local;
use crate::exec::{Range, Refusal};
use crate::memory::Payload;
use crate::packet::{Body, Head, Packet, Reply};
use crate::packet::{Nak, Request, RequestOp};
use crate::platform::Platform;
use rdmesh_verbs::{Access, QpType, WcStatus};

impl<P: Platform> Local<'_, P> {
    /// Executes a request packet and sends its reply.
    pub(crate) fn handle_request(&mut self, head: &Head, request: &Request<Payload<P::Memory>>) {
        let reply = match self.qp.qp_type {
            QpType::Ud => {
                self.exec().receive_datagram(&head.sender(), request);
                Reply::Ack
            }
            _ if !self.is_from_peer(head) => Reply::Dropped,
            QpType::Rc => self.receive_reliable(head, request),
            QpType::Uc => self.receive_unreliable(head, request),
        };
        self.out.packet(Packet { head: head.reply(), body: Body::Reply(reply) });
    }

    /// Whether a packet comes from the QP that this one is connected to (IBA 9.6.1.1).
    fn is_from_peer(&self, head: &Head) -> bool {
        let own = self.cx.network.source(&self.qp.attr.av);
        self.qp.state().can_receive()
            && head.vni == self.cx.network.vni
            && head.src == self.qp.attr.dest_qpn
            && head.sgid == self.qp.attr.av.dgid
            && head.dgid == own
    }

    fn receive_reliable(&mut self, head: &Head, request: &Request<Payload<P::Memory>>) -> Reply<P::Memory> {
        if head.psn != self.qp.recv.expected_psn {
            return Reply::OutOfSequence;
        }
        match self.execute(head, request) {
            Ok(reply) => {
                self.qp.recv.slow.end();
                self.qp.recv.expected_psn = head.psn.add(1);
                reply
            }
            Err(Refusal::Slow(..)) if self.qp.recv.slow.next(self.out.now).is_some() => Reply::Slow,
            Err(Refusal::NotReady) => {
                self.qp.counters.rnr_naks += 1;
                Reply::Rnr { timer: self.qp.attr.min_rnr_timer }
            }
            Err(Refusal::Fatal(nak, status) | Refusal::Slow(nak, status)) => {
                self.exec().fail_receive(nak, status);
                Reply::Nak(nak)
            }
        }
    }

    /// Unreliable connection: a packet that cannot be executed is dropped with the rest of its message (IBA 9.8.2.2).
    fn receive_unreliable(&mut self, head: &Head, request: &Request<Payload<P::Memory>>) -> Reply<P::Memory> {
        if self.state.deferred == Some(head.epoch) {
            return Reply::Dropped;
        }
        let in_sequence = head.psn == self.qp.recv.expected_psn;
        self.qp.recv.expected_psn = head.psn.add(1);
        if request.first {
            // A message that ended early leaves its receive request to the next one.
            self.qp.recv.received = 0;
        } else if !in_sequence || self.qp.recv.skipping {
            self.qp.recv.skipping = true;
            return Reply::Dropped;
        }
        self.qp.recv.skipping = false;
        match self.execute(head, request) {
            Ok(reply) => {
                self.qp.recv.slow.end();
                reply
            }
            Err(Refusal::Slow(..)) if self.qp.recv.slow.next(self.out.now).is_some() => {
                self.qp.recv.expected_psn = head.psn;
                self.state.deferred = Some(head.epoch);
                Reply::Slow
            }
            Err(Refusal::Fatal(nak, status) | Refusal::Slow(nak, status)) if self.qp.recv.busy => {
                self.exec().fail_receive(nak, status);
                Reply::Dropped
            }
            Err(_) => {
                self.qp.recv.skipping = true;
                Reply::Dropped
            }
        }
    }

    fn execute(&mut self, head: &Head, request: &Request<Payload<P::Memory>>) -> Result<Reply<P::Memory>, Refusal> {
        match request.op {
            RequestOp::Send { imm, invalidate } => {
                self.exec().receive_send(request, imm, invalidate)?;
                Ok(Reply::Ack)
            }
            RequestOp::Write { addr, rkey, remaining, imm } => {
                let place = Range { addr, rkey, len: remaining };
                self.exec().receive_write(request, &place, imm)?;
                Ok(Reply::Ack)
            }
            // A QP that takes no READs and atomics (`max_dest_rd_atomic`) refuses them, as rxe does.
            _ if self.qp.attr.max_dest_rd_atomic == 0 && !matches!(request.op, RequestOp::Flush { .. }) => {
                Err(Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalQpOperationError))
            }
            RequestOp::Read { addr, rkey, remaining } => {
                let payload = match self.exec().reach(&Range { addr, rkey, len: remaining }, Access::REMOTE_READ)? {
                    Some((memory, offset)) => Payload::single(memory, offset, head.len),
                    None => Payload::empty(),
                };
                self.exec().count(request, u64::from(head.len));
                self.qp.counters.served_bytes += u64::from(head.len);
                Ok(Reply::Data(payload))
            }
            _ => Ok(self.exec().execute_atomic(request)?.map_or(Reply::Ack, |old| Reply::Atomic { old })),
        }
    }
}
