//! Responder, the receive side of a queue pair: executes a peer's requests.
//!
//! * [`messages`]: SEND and WRITE, and the receive requests that they consume.
//! * [`remote`]: operations on memory behind a remote key: READ, atomics, FLUSH.
//! * [`datagram`]: unreliable datagrams.

mod datagram;
mod messages;
mod remote;

use super::active::Active;
use super::packet::{Body, Head, Nak, Packet, Reply, Request, RequestOp};
use crate::memory::Payload;
use crate::platform::{Platform, RecvQueue};
use crate::schedule::FLUSH_TURN;
use rdmesh_verbs::{Access, AsyncEvent, Completion, QpState, QpType, Qpn, WcFlags, WcOpcode, WcStatus};
pub(crate) use remote::Range;

impl<P: Platform> Active<'_, P> {
    /// Executes a request packet and sends its reply.
    pub(crate) fn handle_request(&mut self, head: &Head, request: &Request<Payload<P::Memory>>) {
        let reply = match self.qp.qp_type {
            QpType::Ud => {
                self.receive_datagram(head, request);
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
                self.fail_receive(nak, status);
                Reply::Nak(nak)
            }
        }
    }

    /// Unreliable connection: a packet that cannot be executed is dropped with the rest of its message (IBA 9.8.2.2).
    fn receive_unreliable(&mut self, head: &Head, request: &Request<Payload<P::Memory>>) -> Reply<P::Memory> {
        if self.qp.recv.deferred == Some(head.epoch) {
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
                self.qp.recv.deferred = Some(head.epoch);
                Reply::Slow
            }
            Err(Refusal::Fatal(nak, status) | Refusal::Slow(nak, status)) if self.qp.recv.busy => {
                self.fail_receive(nak, status);
                Reply::Dropped
            }
            Err(_) => {
                self.qp.recv.skipping = true;
                Reply::Dropped
            }
        }
    }

    /// The responder's half of a fatal error (IBA table 61). Where a receive request reports it, there is no event (classes A
    /// and C).
    pub(crate) fn fail_receive(&mut self, nak: Nak, status: WcStatus) {
        self.qp.counters.errors += 1;
        if std::mem::take(&mut self.qp.recv.busy) {
            let completion = self.received(self.qp.recv.current.wr_id, status, WcOpcode::Recv);
            // A queue that is full has raised its own event.
            let _ = self.out.complete(self.cx, self.qp.context, self.qp.recv_cq, &completion, false);
            return self.enter(QpState::Error);
        }
        let event = match nak {
            Nak::RemoteAccess => AsyncEvent::QpAccessError,
            Nak::InvalidRequest => AsyncEvent::QpRequestError,
            Nak::RemoteOperation => AsyncEvent::QpFatal,
        };
        self.out.async_event(self.qp.context, event, self.qp.handle);
        self.enter(QpState::Error);
    }

    fn execute(&mut self, head: &Head, request: &Request<Payload<P::Memory>>) -> Result<Reply<P::Memory>, Refusal> {
        match request.op {
            RequestOp::Send { imm, invalidate } => {
                self.receive_send(request, imm, invalidate)?;
                Ok(Reply::Ack)
            }
            RequestOp::Write { addr, rkey, remaining, imm } => {
                let place = Range { addr, rkey, len: remaining };
                self.receive_write(request, &place, imm)?;
                Ok(Reply::Ack)
            }
            // A QP that takes no READs and atomics (`max_dest_rd_atomic`) refuses them, as rxe does.
            _ if self.qp.attr.max_dest_rd_atomic == 0 && !matches!(request.op, RequestOp::Flush { .. }) => {
                Err(Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalQpOperationError))
            }
            RequestOp::Read { addr, rkey, remaining } => {
                let payload = match self.reach(&Range { addr, rkey, len: remaining }, Access::REMOTE_READ)? {
                    Some((memory, offset)) => Payload::single(memory, offset, head.len),
                    None => Payload::empty(),
                };
                self.count(request, u64::from(head.len));
                self.qp.counters.served_bytes += u64::from(head.len);
                Ok(Reply::Data(payload))
            }
            _ => self.execute_atomic(request),
        }
    }

    fn received(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Completion {
        Completion {
            wr_id,
            status,
            opcode,
            byte_len: 0,
            imm: 0,
            qpn: self.qp.qpn,
            src_qp: self.qp.attr.dest_qpn,
            sl: 0,
            flags: WcFlags::empty(),
        }
    }

    fn count<S>(&mut self, request: &Request<S>, len: u64) {
        if request.last {
            self.qp.counters.rx_messages += 1;
        }
        self.qp.counters.rx_bytes += len;
    }

    /// Ends the receive requests of a QP in error with a flush error (IBA 10.3.1.7): some now, the rest in later polls. Those
    /// of an SRQ stay: they are not its own.
    pub(crate) fn flush_receives(&mut self) {
        if std::mem::take(&mut self.qp.recv.busy) {
            self.flush_receive();
        }
        for _ in 0..FLUSH_TURN {
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
        let _ = self.out.complete(self.cx, self.qp.context, self.qp.recv_cq, &completion, false);
    }
}

/// Reason why a request is not executed.
pub(crate) enum Refusal {
    NotReady,
    /// Memory cannot be reached at present. With the error where that lasts.
    Slow(Nak, WcStatus),
    /// Requester and responder both fail; the responder's receive request, if any, ends with the status.
    Fatal(Nak, WcStatus),
}
