//! Responses kept for duplicate requests: READs and atomics (IBA 9.7.5.1.3).

use super::ResponderState;
use crate::exec::{Range, Refusal};
use crate::path::Transmits;
use crate::platform::{Fault, Memory, Platform};
use crate::schedule::TURN_STEPS;
use crate::transport::roce::Responder;
use crate::wire::{Aeth, Header, NakCode, Op, Part, Reth, Service, Syndrome};
use alloc::collections::VecDeque;
use rdmesh_verbs::{Access, Psn, WcStatus};

/// The newest replies, oldest first: as many as the queue pair has agreed to have under way.
pub(super) struct Replies {
    ring: VecDeque<Reply>,
    /// How many were agreed on, and how many times that are kept.
    size: usize,
    times: usize,
    /// All before this one are sent.
    unsent: usize,
    /// Packets of replies that an rdmesh router has asked for again.
    repeats: VecDeque<Repeat>,
}

/// Packets of a reply that are to be sent again.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    /// PSN of the reply.
    psn: Psn,
    first: u32,
    next: u32,
    end: u32,
}

/// A reply, and how much of it is still to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    /// The request's PSN.
    psn: Psn,
    /// PSNs that it takes.
    psns: u32,
    result: Result,
    /// The packets to be sent, counted from the request's: those of the whole request, or of what is asked for again.
    first: u32,
    next: u32,
    end: u32,
    /// It was sent as a whole: a newer request proves that the peer has it, even if it asked for it again meanwhile.
    answered: bool,
    /// The request was sent before, or the answer is asked for again.
    is_repeated: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Result {
    /// The data is read when it is sent.
    Read(Reth),
    /// The original value of an atomic.
    Original(u64),
    /// An ATOMIC WRITE or FLUSH is done.
    Done,
}

impl Reply {
    /// To a READ request, which may have been sent before and lost.
    pub(super) fn read(request: &Header, psns: u32, reth: Reth) -> Self {
        Self { psns, end: psns, ..Self::stored(request, Result::Read(reth)) }
    }

    /// To another request, likewise.
    pub(super) fn stored(request: &Header, result: Result) -> Self {
        let Header { psn, is_repeated, .. } = *request;
        Self { psn, psns: 1, result, first: 0, next: 0, end: 1, answered: false, is_repeated }
    }

    fn is_sent(&self) -> bool {
        self.next == self.end
    }

    /// The packets that the duplicate request `header` asks for, if that is nothing else than the original did.
    fn asked_again(&self, header: &Header, mtu: u32) -> Option<(u32, u32)> {
        let from = header.psn.after(self.psn);
        let end = match (header.op, self.result) {
            (Op::ReadRequest(again), Result::Read(reth)) => {
                let skipped = u64::from(from) * u64::from(mtu);
                let same = again.rkey == reth.rkey
                    && again.addr == reth.addr.wrapping_add(skipped)
                    && skipped + u64::from(again.len) <= u64::from(reth.len);
                if same { from + again.len.div_ceil(mtu).max(1) } else { return None }
            }
            (Op::CompareSwap { .. } | Op::FetchAdd { .. }, Result::Original(_)) => 1,
            (Op::AtomicWrite { .. } | Op::Flush { .. }, Result::Done) => 1,
            _ => return None,
        };
        Some((from, end.min(self.psns)))
    }
}

impl Replies {
    pub(super) fn new(size: usize) -> Self {
        let size = size.max(1);
        Self { ring: VecDeque::new(), size, times: 1, unsent: 0, repeats: VecDeque::new() }
    }

    /// Keeps so many times as many as were agreed on.
    pub(super) fn keep(&mut self, times: u32) {
        self.times = times as usize;
    }

    pub(super) fn has_room(&self) -> bool {
        self.ring.len() < self.size * self.times || self.ring.front().is_some_and(|oldest| oldest.answered)
    }

    /// Keeps `reply`; false where the oldest was never sent as a whole.
    pub(super) fn push(&mut self, reply: Reply) -> bool {
        if !self.has_room() {
            return false;
        }
        while self.ring.len() >= self.size * self.times {
            self.ring.pop_front();
            self.unsent = self.unsent.saturating_sub(1);
        }
        self.ring.push_back(reply);
        true
    }

    /// Answers a duplicate request from its stored response. A request whose response is no longer stored is not answered.
    pub(super) fn again(&mut self, header: &Header, mtu: u32) {
        // The newest first: PSNs come round.
        let asked = self.ring.iter_mut().enumerate().rev().find(|(_, reply)| header.psn.after(reply.psn) < reply.psns);
        let Some((i, reply)) = asked else { return };
        let Some((first, end)) = reply.asked_again(header, mtu) else { return };
        if !header.takes_selective {
            // Such a peer takes replies in order, and asks for all that it has not got.
            (reply.first, reply.next, reply.end, reply.is_repeated) = (first, first, end, true);
            self.unsent = self.unsent.min(i);
        } else if self.repeats.len() < MAX_REPEATS {
            self.repeats.push_back(Repeat { psn: reply.psn, first, next: first, end });
        }
    }

    /// The next packet that is to be sent again: its reply, and its place there.
    fn next_repeat(&mut self) -> Option<(Reply, u32)> {
        loop {
            let repeat = self.repeats.front_mut()?;
            let Repeat { psn, first, next, end } = *repeat;
            repeat.next += 1;
            if repeat.next >= end {
                self.repeats.pop_front();
            }
            // One that has left the ring was answered: a younger request proves it.
            if let Some(reply) = self.ring.iter().rev().find(|reply| reply.psn == psn) {
                return Some((Reply { first, end, is_repeated: true, ..*reply }, next));
            }
        }
    }

    /// The last packet of a reply has been sent again: of one that was put off, which had never been sent as a whole, for the
    /// first time.
    fn on_answered(&mut self, psn: Psn) {
        if let Some(reply) = self.ring.iter_mut().rev().find(|reply| reply.psn == psn) {
            reply.answered = true;
        }
    }

    /// The rest is sent when the peer requests it again.
    fn put_off(&mut self) {
        self.repeats.clear();
        for reply in self.ring.range_mut(self.unsent..) {
            (reply.first, reply.next) = (reply.end, reply.end);
        }
        self.unsent = self.ring.len();
    }

    /// Nothing is to be sent any more.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.repeats.clear();
        self.unsent = 0;
    }

    /// The oldest reply that is to be sent.
    fn oldest_unsent(&mut self) -> Option<usize> {
        while self.ring.get(self.unsent)?.is_sent() {
            self.unsent += 1;
        }
        Some(self.unsent)
    }
}

impl<P: Platform> Responder<'_, P> {
    /// Appends replies and acknowledgements, in order, for one turn. Returns whether there are more.
    pub(in crate::transport::roce) fn send_answers(&mut self, to: &mut Transmits) -> bool {
        for _ in 0..TURN_STEPS {
            if !to.has_turn() {
                return true;
            }
            let responder = &mut self.connection.responder;
            if core::mem::take(&mut responder.notify) {
                self.send_notification(to);
                continue;
            }
            if let Some((reply, at)) = responder.replies.next_repeat() {
                if self.send_reply_packet(to, &reply, at) && at + 1 == reply.psns {
                    self.connection.responder.replies.on_answered(reply.psn);
                }
                continue;
            }
            if let Some(i) = responder.replies.oldest_unsent() {
                self.send_reply(to, i);
                continue;
            }
            let ack_due = core::mem::take(&mut responder.ack_due);
            let acknowledged = responder.acknowledgeable.filter(|_| ack_due);
            let is_selective = ack_due && responder.selective.is_on();
            match responder.nak_due.take() {
                Some((psn, syndrome)) => self.send_ack(to, psn, syndrome),
                None if is_selective => self.send_selective_ack(to),
                None => match acknowledged {
                    Some(psn) => self.send_ack(to, psn, Syndrome::ACK),
                    None => return false,
                },
            }
        }
        true
    }

    fn send_reply(&mut self, to: &mut Transmits, i: usize) {
        let reply = &mut self.connection.responder.replies.ring[i];
        let at = reply.next;
        reply.next += 1;
        let this = *reply;
        if self.send_reply_packet(to, &this, at)
            && let Some(reply) = self.connection.responder.replies.ring.get_mut(i)
        {
            reply.answered |= reply.is_sent();
        }
    }

    /// Sends a packet of a reply; false where its data could not be read.
    fn send_reply_packet(&mut self, to: &mut Transmits, reply: &Reply, at: u32) -> bool {
        let psn = reply.psn.add(at);
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.connection.responder.msn };
        match reply.result {
            Result::Read(reth) => self.send_read_data(to, reply, reth, at, aeth),
            Result::Original(original) => {
                self.send_answer(to, Op::AtomicAcknowledge { aeth, original }, psn, reply.is_repeated);
                true
            }
            // Annex A19 asks for the response of an empty READ.
            Result::Done => {
                let part = Part::Only;
                self.send_answer(to, Op::ReadResponse { part, aeth: Some(aeth) }, psn, reply.is_repeated);
                true
            }
        }
    }

    /// Sends a packet of data; false where it could not be read.
    fn send_read_data(&mut self, to: &mut Transmits, reply: &Reply, reth: Reth, at: u32, aeth: Aeth) -> bool {
        let mtu = u64::from(self.qp.attr.path_mtu.bytes());
        let skipped = u64::from(at) * mtu;
        let len = (u64::from(reth.len) - skipped).min(mtu);
        let range = Range { addr: reth.addr.wrapping_add(skipped), rkey: reth.rkey, len };
        let place = self.exec().reach(&range, Access::REMOTE_READ);
        let part = Part::of(at == reply.first, at + 1 == reply.end);
        let aeth = Some(aeth).filter(|_| part.is_first() || part.is_last());
        let header = Header {
            takes_selective: self.connection.responder.selective.is_on(),
            is_repeated: reply.is_repeated,
            ..crate::transport::roce::header(self.qp, Op::ReadResponse { part, aeth }, reply.psn.add(at))
        };
        let sent = place.and_then(|place| {
            self.connection.envelope.emit(to, &header, len as usize, |bytes| match place {
                Some((memory, offset)) => memory.read(offset, bytes).map_err(unreadable),
                None => Ok(()),
            })
        });
        self.out.spend(len);
        let is_sent = sent.is_ok();
        self.on_read_data(header.psn, sent);
        is_sent
    }

    fn on_read_data(&mut self, psn: Psn, sent: core::result::Result<(), Refusal>) {
        let now = self.out.now;
        let is_tunnel = self.connection.envelope.is_tunnel();
        let responder = &mut self.connection.responder;
        let (nak, status) = match sent {
            Ok(()) => return responder.slow.end(),
            Err(Refusal::Slow(nak, status)) => match responder.slow.put_off(now, is_tunnel) {
                Some(syndrome) => return responder.put_off(psn, syndrome),
                None => (nak, status),
            },
            Err(Refusal::Fatal(nak, status)) => (nak, status),
            Err(Refusal::NotReady) => return,
        };
        // The region was deregistered while it was read. That is no error if the peer had the answer before.
        let was_answered = self.end_reply(psn);
        if !was_answered {
            self.refuse(psn, nak, status);
        }
    }

    /// Sends no more of the reply that `psn` belongs to; returns whether it was sent as a whole before.
    fn end_reply(&mut self, psn: Psn) -> bool {
        let mut newest_first = self.connection.responder.replies.ring.iter_mut().rev();
        let Some(reply) = newest_first.find(|reply| psn.after(reply.psn) < reply.psns) else { return false };
        reply.next = reply.end;
        reply.answered
    }

    fn send_ack(&mut self, to: &mut Transmits, psn: Psn, syndrome: Syndrome) {
        let aeth = Aeth { syndrome, msn: self.connection.responder.msn };
        self.send_answer(to, Op::Acknowledge(aeth), psn, false);
    }

    fn send_answer(&self, to: &mut Transmits, op: Op, psn: Psn, is_repeated: bool) {
        // Only the reliable service has an opcode for it.
        let header = crate::transport::roce::header(self.qp, op, psn);
        let takes_selective = self.connection.responder.selective.is_on();
        let header = Header { service: Service::Rc, takes_selective, is_repeated, ..header };
        let Ok(()) = self.connection.envelope.emit(to, &header, 0, |_| Ok::<_, core::convert::Infallible>(()));
    }

    fn send_notification(&mut self, to: &mut Transmits) {
        self.qp.counters.cnps_sent += 1;
        let header = Header {
            service: Service::Cnp,
            becn: true,
            ..crate::transport::roce::header(self.qp, Op::Notification, Psn::default())
        };
        let Ok(()) = self.connection.envelope.emit(to, &header, 0, |_| Ok::<_, core::convert::Infallible>(()));
    }
}

impl ResponderState {
    /// The data of a reply cannot be read at present. The peer asks again, from `psn` on and after a while, for this and for
    /// what it has asked for since.
    fn put_off(&mut self, psn: Psn, syndrome: Syndrome) {
        self.replies.put_off();
        self.nak_due = Some((psn, syndrome));
        // An acknowledgement of what came behind would say that the answer is lost.
        self.ack_due = false;
    }
}

fn unreadable(fault: Fault) -> Refusal {
    let (nak, status) = (NakCode::RemoteOperation, WcStatus::LocalProtectionError);
    match fault {
        Fault::Gone => Refusal::Fatal(nak, status),
        Fault::Slow => Refusal::Slow(nak, status),
    }
}

/// Pieces of replies that a peer may have asked for again.
const MAX_REPEATS: usize = 256;
