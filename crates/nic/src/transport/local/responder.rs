//! Responder within the host: order of request packets, and their replies.

use super::Local;
use crate::exec::{Range, Refusal, Request, invalid};
use crate::memory::Payload;
use crate::packet::{Body, Head, Packet, acknowledgement, atomic_response, read_response};
use crate::platform::Platform;
use crate::qp::Message;
use crate::wire::{NakCode, Op, Part, Syndrome};
use rdmesh_verbs::{Access, QpType};

/// Transport header and data of a reply.
type Reply<M> = (Op, Body<M>);

impl<P: Platform> Local<'_, P> {
    /// Executes a request packet and sends its reply.
    pub(crate) fn handle_request(&mut self, head: &Head, body: &Body<P::Memory>) {
        let (op, body) = match self.qp.made().qp_type {
            QpType::Ud => {
                if let Body::Data(payload) = body {
                    let request = Request { op: head.header.op, solicited: head.header.solicited, payload };
                    self.exec().receive_datagram(head.vni, &head.ip, &request);
                }
                ack(Syndrome::ACK)
            }
            _ if !self.is_from_peer(head) => lost(),
            QpType::Rc => self.receive_reliable(head, body),
            QpType::Uc => self.receive_unreliable(head, body),
        };
        self.out.packet(Packet { head: head.reply(op), body });
    }

    /// Whether a packet comes from the QP that this one is connected to (IBA 9.6.1.1).
    fn is_from_peer(&self, head: &Head) -> bool {
        let own = self.cx.network.source(&self.qp.attr.av);
        self.qp.state().can_receive()
            && head.vni == self.cx.network.vni
            && head.src == self.qp.attr.dest_qpn
            && head.ip.source == self.qp.attr.av.dgid
            && head.ip.dest == own
    }

    fn receive_reliable(&mut self, head: &Head, body: &Body<P::Memory>) -> Reply<P::Memory> {
        let psn = head.header.psn;
        if psn != self.qp.recv.expected_psn {
            return ack(Syndrome::Nak(NakCode::Sequence));
        }
        match self.execute(head, body) {
            Ok(reply) => {
                self.qp.recv.slow.end();
                self.qp.recv.expected_psn = psn.add(1);
                reply
            }
            Err(Refusal::Slow(..)) if self.qp.recv.slow.next(self.out.now).is_some() => ack(SLOW),
            Err(Refusal::NotReady) => {
                self.qp.counters.rnr_naks += 1;
                self.refuse_until_ready(head);
                ack(Syndrome::Rnr { timer: self.qp.attr.min_rnr_timer })
            }
            Err(Refusal::Fatal(nak, status) | Refusal::Slow(nak, status)) => {
                self.exec().fail_receive(nak, status);
                ack(Syndrome::Nak(nak))
            }
        }
    }

    /// A managed receive queue tells the sender when it may take the message.
    fn refuse_until_ready(&mut self, head: &Head) {
        if let Some(queue) = &mut self.qp.recv.chain {
            queue.refused = Some(*head);
            self.cx.chains.refuse(self.qp.made().handle);
        }
    }

    /// Unreliable connection: a packet that cannot be executed is dropped with the rest of its message (IBA 9.8.2.2).
    fn receive_unreliable(&mut self, head: &Head, body: &Body<P::Memory>) -> Reply<P::Memory> {
        if self.state.deferred == Some(head.epoch) {
            return lost();
        }
        let psn = head.header.psn;
        let in_sequence = psn == self.qp.recv.expected_psn;
        self.qp.recv.expected_psn = psn.add(1);
        let (Op::Send { part, .. } | Op::Write { part, .. }) = head.header.op else { return lost() };
        if part.is_first() {
            // A message that ended early leaves its receive request to the next one.
            self.qp.recv.received = 0;
            self.qp.recv.message = Message::None;
        } else if !in_sequence || self.qp.recv.skipping {
            self.qp.recv.skipping = true;
            return lost();
        }
        self.qp.recv.skipping = false;
        match self.execute(head, body) {
            Ok(reply) => {
                self.qp.recv.slow.end();
                reply
            }
            Err(Refusal::Slow(..)) if self.qp.recv.slow.next(self.out.now).is_some() => {
                self.qp.recv.expected_psn = psn;
                self.state.deferred = Some(head.epoch);
                ack(SLOW)
            }
            Err(Refusal::Fatal(nak, status) | Refusal::Slow(nak, status)) if self.qp.recv.busy => {
                self.exec().fail_receive(nak, status);
                lost()
            }
            Err(_) => {
                self.qp.recv.skipping = true;
                lost()
            }
        }
    }

    fn execute(&mut self, head: &Head, body: &Body<P::Memory>) -> Result<Reply<P::Memory>, Refusal> {
        let op = head.header.op;
        match (op, body) {
            (Op::Send { part, .. }, Body::Data(payload)) => {
                let request = Request { op, solicited: head.header.solicited, payload };
                self.begin(part);
                self.exec().execute_send(&request)?;
                Ok(ack(Syndrome::ACK))
            }
            (Op::Write { part, .. }, Body::Data(payload)) => {
                let request = Request { op, solicited: head.header.solicited, payload };
                self.begin(part);
                self.exec().execute_write(&request)?;
                Ok(ack(Syndrome::ACK))
            }
            // A QP that takes no READs and atomics (`max_dest_rd_atomic`) refuses them, as rxe does.
            _ if self.qp.attr.max_dest_rd_atomic == 0 && !matches!(op, Op::Flush { .. }) => Err(invalid()),
            (Op::ReadRequest(reth), _) => {
                let range = Range { addr: reth.addr, rkey: reth.rkey, len: head.remaining };
                let found = self.exec().reach(&range, Access::REMOTE_READ);
                // A wrong key is refused all the same: who asks for zeros could try keys until one fits.
                if let (Err(_), Body::Zeros(_)) = (&found, body)
                    && self.exec().opens(reth.rkey, Access::REMOTE_READ)
                {
                    return Ok((read_response(), Body::Zeros(head.len)));
                }
                let payload = match found? {
                    Some((memory, offset)) => Payload::single(memory, offset, head.len),
                    None => Payload::empty(),
                };
                let len = u64::from(head.len);
                self.exec().count_read(len, len == head.remaining);
                Ok((read_response(), Body::Data(payload)))
            }
            (_, Body::Calc(calc, args)) => {
                let original = self.exec().execute_calc(*calc, args)?;
                Ok((atomic_response(original), no_data()))
            }
            _ => {
                let value = if let Body::Word(value) = body { Some(*value) } else { None };
                let original = self.exec().execute_atomic(&op, value)?;
                Ok(original.map_or(ack(Syndrome::ACK), |original| (atomic_response(original), no_data())))
            }
        }
    }

    /// On one host no packet of a message is lost: one that begins has no predecessor that is under way.
    fn begin(&mut self, part: Part) {
        if part.is_first() {
            self.qp.recv.message = Message::None;
        }
    }
}

fn ack<M: crate::platform::Memory>(syndrome: Syndrome) -> Reply<M> {
    (acknowledgement(syndrome), no_data())
}

fn lost<M>() -> Reply<M> {
    (acknowledgement(Syndrome::ACK), Body::Lost)
}

fn no_data<M: crate::platform::Memory>() -> Body<M> {
    Body::Data(Payload::empty())
}

/// Memory of one of the two cannot be reached at present. The requester decides when it tries again.
const SLOW: Syndrome = Syndrome::Slow { timer: 0 };
