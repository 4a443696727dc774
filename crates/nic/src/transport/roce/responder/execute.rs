//! Execution of request packets: conversion into requests of the engine.

use super::replies::{Reply, Result as Stored};
use crate::exec::{Range, Refusal};
use crate::packet::{Nak, Request, RequestOp};
use crate::platform::Platform;
use crate::qp::MESSAGE_MAX;
use crate::transport::roce::Responder;
use crate::transport::roce::connection::Message;
use crate::wire::{Header, Op, Part, Reth};
use rdmesh_verbs::{Access, Key, QpType, WcStatus};

type Executed<T> = std::result::Result<T, Refusal>;

impl<P: Platform> Responder<'_, P> {
    /// Executes a request packet. Returns how many PSNs it takes.
    pub(super) fn execute_packet(&mut self, header: &Header, payload: &[u8]) -> Executed<u32> {
        match header.op {
            Op::Send { part, imm, invalidate } => self.execute_send(header, payload, part, (imm, invalidate)),
            Op::Write { part, reth, imm } => self.execute_write(header, payload, part, (reth, imm)),
            _ if self.message() != Message::None || self.qp.qp_type == QpType::Uc => Err(invalid()),
            Op::ReadRequest(reth) => self.execute_read(header, reth),
            Op::CompareSwap { addr, rkey, compare, swap } => {
                self.execute_stored(header, RequestOp::CompareSwap { addr, rkey, compare, swap })
            }
            Op::FetchAdd { addr, rkey, add } => self.execute_stored(header, RequestOp::FetchAdd { addr, rkey, add }),
            Op::AtomicWrite { reth } => {
                let value = payload.try_into().map_err(|_| invalid())?;
                self.execute_stored(header, RequestOp::AtomicWrite { addr: reth.addr, rkey: reth.rkey, value })
            }
            Op::Flush { kind, selectivity, reth: Reth { addr, rkey, len: length } } => {
                let range = selectivity == FLUSH_RANGE;
                self.execute_stored(header, RequestOp::Flush { addr, rkey, length, kind, range })
            }
            _ => Err(invalid()),
        }
    }

    fn execute_send(
        &mut self,
        header: &Header,
        payload: &[u8],
        part: Part,
        (imm, invalidate): (Option<u32>, Option<Key>),
    ) -> Executed<u32> {
        self.check_part(part, payload, Message::Send)?;
        let request = self.request(header, part, payload, RequestOp::Send { imm, invalidate });
        self.exec().receive_send(&request, imm, invalidate)?;
        self.on_part(part, Message::Send);
        Ok(1)
    }

    fn execute_write(
        &mut self,
        header: &Header,
        payload: &[u8],
        part: Part,
        (reth, imm): (Option<Reth>, Option<u32>),
    ) -> Executed<u32> {
        let (addr, rkey, remaining) = match (self.message(), reth) {
            (Message::None, Some(reth)) => (reth.addr, reth.rkey, u64::from(reth.len)),
            (Message::Write { addr, rkey, remaining }, None) => (addr, rkey, remaining),
            _ => return Err(invalid()),
        };
        self.check_part(part, payload, Message::Write { addr, rkey, remaining })?;
        let len = payload.len() as u64;
        // The length in the first packet is that of the whole message (IBA 9.7.4.1.6).
        if remaining > MESSAGE_MAX || part.is_last() != (len == remaining) || len > remaining {
            return Err(invalid());
        }
        let request = self.request(header, part, payload, RequestOp::Write { addr, rkey, remaining, imm });
        self.exec().receive_write(&request, &Range { addr, rkey, len: remaining }, imm)?;
        self.on_part(part, Message::Write { addr: addr.wrapping_add(len), rkey, remaining: remaining - len });
        Ok(1)
    }

    fn execute_read(&mut self, header: &Header, reth: Reth) -> Executed<u32> {
        let len = u64::from(reth.len);
        if len > MESSAGE_MAX || !self.takes_reads() {
            return Err(invalid());
        }
        self.exec().reach(&Range { addr: reth.addr, rkey: reth.rkey, len }, Access::REMOTE_READ)?;
        let psns = reth.len.div_ceil(self.qp.attr.path_mtu.bytes()).max(1);
        self.store(Reply::read(header.psn, psns, reth))?;
        self.qp.counters.rx_messages += 1;
        self.qp.counters.rx_bytes += len;
        self.qp.counters.served_bytes += len;
        Ok(psns)
    }

    /// Executes an operation that must not be executed twice: the result is kept for duplicates (IBA 9.7.5.1.3).
    fn execute_stored(&mut self, header: &Header, op: RequestOp) -> Executed<u32> {
        let is_flush = matches!(op, RequestOp::Flush { .. });
        if !is_flush && !self.takes_reads() {
            return Err(invalid());
        }
        if !self.has_reply_room() {
            return Err(invalid());
        }
        let request = self.request(header, Part::Only, &[], op);
        let result = match self.exec().execute_atomic(&request)? {
            Some(original) => Stored::Original(original),
            None => Stored::Done,
        };
        self.store(Reply::stored(header.psn, result))?;
        Ok(1)
    }

    /// A QP that takes no READs and atomics (`max_dest_rd_atomic`) refuses them, as rxe does.
    fn takes_reads(&self) -> bool {
        self.qp.attr.max_dest_rd_atomic != 0
    }

    fn has_reply_room(&self) -> bool {
        self.connection.responder.replies.has_room()
    }

    /// Keeps a reply, to be sent. More than were agreed on are an error of the peer (IBA 9.7.4.1.7).
    fn store(&mut self, reply: Reply) -> Executed<()> {
        if !self.connection.responder.replies.push(reply) {
            return Err(invalid());
        }
        self.connection.responder.msn = (self.connection.responder.msn + 1) & MSN_MASK;
        Ok(())
    }

    fn message(&self) -> Message {
        self.connection.responder.message
    }

    /// Whether `part` may come now, with so much payload (IBA 9.7.4.1.2 and 9.7.4.1.6).
    fn check_part(&self, part: Part, payload: &[u8], kind: Message) -> Executed<()> {
        let follows = match (self.message(), kind) {
            (Message::None, _) => part.is_first(),
            (Message::Send, Message::Send) | (Message::Write { .. }, Message::Write { .. }) => !part.is_first(),
            _ => false,
        };
        let mtu = self.qp.attr.path_mtu.bytes() as usize;
        let fits = match part {
            Part::First | Part::Middle => payload.len() == mtu,
            Part::Last => (1..=mtu).contains(&payload.len()),
            Part::Only => payload.len() <= mtu,
        };
        if follows && fits { Ok(()) } else { Err(invalid()) }
    }

    fn on_part(&mut self, part: Part, next: Message) {
        let responder = &mut self.connection.responder;
        if part.is_last() {
            responder.message = Message::None;
            responder.msn = (responder.msn + 1) & MSN_MASK;
        } else {
            responder.message = next;
        }
    }

    fn request<'b>(&self, header: &Header, part: Part, payload: &'b [u8], op: RequestOp) -> Request<&'b [u8]> {
        Request { op, first: part.is_first(), last: part.is_last(), solicited: header.solicited, payload }
    }
}

fn invalid() -> Refusal {
    Refusal::Fatal(Nak::InvalidRequest, WcStatus::LocalQpOperationError)
}

const FLUSH_RANGE: u8 = 0;
const MSN_MASK: u32 = 0xff_ffff;
