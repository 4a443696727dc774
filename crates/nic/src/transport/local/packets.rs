//! Request packets made from work requests.

use super::Local;
use super::requester::Step;
use crate::memory::{Payload, Source, gather};
use crate::packet::{Body, Head, Packet};
use crate::path::{Envelope, flow};
use crate::platform::Platform;
use crate::wire::{Header, Op, Part, Reth, Service};
use rdmesh_verbs::{AddressVector, Key, QpType, Qpn, SendFlags, SendOp, WcStatus};

/// A packet under construction.
pub(crate) struct Built<M> {
    op: Op,
    body: Body<M>,
    /// Bytes that it moves.
    len: u32,
    last: bool,
}

impl<P: Platform> Local<'_, P> {
    /// The next packet of the request at `cursor`.
    pub(crate) fn build(&self, cursor: usize) -> Result<Built<P::Memory>, WcStatus> {
        let entry = &self.qp.send.window[cursor];
        let (sent, remaining) = (entry.sent, entry.total - entry.sent);
        let (first, payload) = (!entry.started, self.payload(cursor)?);
        let len = payload.len();
        let last = u64::from(len) == remaining;
        let part = Part::of(first, last);
        let body = Body::Data(payload);
        let data = |op| Built { op, body, len, last };
        let single = |op, len| Built { op, body: Body::Data(Payload::empty()), len, last: true };
        let with = |op, body, len| Built { op, body, len, last: true };
        Ok(match entry.wr.op {
            SendOp::Send { imm } => data(Op::Send { part, imm: imm.filter(|_| last), invalidate: None }),
            SendOp::SendInvalidate { rkey } => {
                data(Op::Send { part, imm: None, invalidate: Some(rkey).filter(|_| last) })
            }
            SendOp::Write { remote_addr: addr, rkey, imm } => {
                let reth = Reth { addr, rkey, len: entry.total as u32 };
                data(Op::Write { part, reth: Some(reth).filter(|_| first), imm: imm.filter(|_| last) })
            }
            SendOp::Read { remote_addr, rkey } => {
                let len = remaining.min(u64::from(FRAGMENT)) as u32;
                let reth = Reth { addr: remote_addr.wrapping_add(sent), rkey, len };
                let body = if entry.soft { Body::Zeros(0) } else { Body::Data(Payload::empty()) };
                Built { last: u64::from(len) == remaining, ..with(Op::ReadRequest(reth), body, len) }
            }
            SendOp::CompareSwap { remote_addr: addr, rkey, compare, swap } => {
                single(Op::CompareSwap { addr, rkey, compare, swap }, WORD)
            }
            SendOp::FetchAdd { remote_addr: addr, rkey, add } => single(Op::FetchAdd { addr, rkey, add }, WORD),
            SendOp::AtomicWrite { remote_addr: addr, rkey, value } => {
                let op = Op::AtomicWrite { reth: Reth { addr, rkey, len: WORD } };
                with(op, Body::Word(value), WORD)
            }
            SendOp::Calc { op: calc, args } => {
                let (addr, rkey) = (args.remote_addr, Key(args.rkey));
                with(Op::FetchAdd { addr, rkey, add: args.compare_add }, Body::Calc(calc, args), WORD)
            }
            SendOp::Flush { remote_addr: addr, rkey, length, kind, range } => {
                let reth = Reth { addr, rkey, len: length };
                single(Op::Flush { kind, selectivity: u8::from(!range), reth }, 0)
            }
            SendOp::Datagram { qkey, imm, .. } => {
                let qkey = if qkey.is_controlled() { self.qp.attr.qkey } else { qkey };
                data(Op::Datagram { qkey, source: self.qp.made().qpn, imm })
            }
            SendOp::LocalInvalidate { .. } | SendOp::BindMw { .. } | SendOp::Enable { .. } => {
                return Err(WcStatus::LocalQpOperationError);
            }
        })
    }

    /// Data of the next packet of the request at `cursor`; none where the request carries none.
    fn payload(&self, cursor: usize) -> Result<Payload<P::Memory>, WcStatus> {
        let entry = &self.qp.send.window[cursor];
        if !entry.wr.op.sends_data() {
            return Ok(Payload::empty());
        }
        if let Some((memory, offset)) = &entry.inline {
            return Ok(Payload::single(memory.clone(), *offset, entry.wr.inline_len));
        }
        let whole = self.qp.made().qp_type == QpType::Ud;
        gather(&self.cx.keys, self.qp.made().pd, &entry.wr.sges, entry.sent, FRAGMENT, whole)
            .map_err(|_| WcStatus::LocalProtectionError)
    }

    /// Destination and path of the request at the cursor.
    fn destination(&self) -> Option<(Qpn, &AddressVector)> {
        match self.qp.send.window[self.qp.send.cursor].wr.op {
            SendOp::Datagram { ah, qpn, .. } => self.cx.address(self.qp.made().pd, ah).map(|av| (qpn, av)),
            _ => Some((self.qp.attr.dest_qpn, &self.qp.attr.av)),
        }
    }

    pub(crate) fn transmit(&mut self, built: Built<P::Memory>) -> Step {
        let Built { op, body, len, last } = built;
        let Some((dest, av)) = self.destination() else { return Step::Blocked };
        let is_group = self.qp.made().qp_type == QpType::Ud && av.dgid.is_multicast();
        let head = self.head(op, len, last, if is_group { Qpn::MULTICAST } else { dest }, av);
        let send = &mut self.qp.send;
        let entry = &mut send.window[send.cursor];
        let begins = !entry.started;
        if begins {
            entry.first_psn = send.next_psn;
        }
        entry.started = true;
        entry.sent += u64::from(len);
        entry.complete = last;
        entry.outstanding += if is_group { self.out.numbers().shards() } else { 1 };
        send.next_psn = send.next_psn.add(1);
        if last {
            send.cursor += 1;
            self.state.reached = None;
        }
        self.state.unanswered += 1;
        self.out.spend(u64::from(len));
        self.out.meter(self.index, u64::from(len), begins);
        if !is_group {
            self.out.packet(Packet { head, body });
            return Step::Done;
        }
        if let Body::Data(payload) = &body {
            for shard in 1..self.out.numbers().shards() {
                self.out.packet(Packet { head: Head { shard, ..head }, body: Body::Data(payload.clone()) });
            }
        }
        self.out.packet(Packet { head, body });
        Step::DoneForGroup
    }

    fn head(&self, op: Op, len: u32, last: bool, dest: Qpn, av: &AddressVector) -> Head {
        let send = &self.qp.send;
        let entry = &send.window[send.cursor];
        let service = match self.qp.made().qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
        };
        let header = Header {
            solicited: entry.wr.flags.contains(SendFlags::SOLICITED),
            ack_request: last && service == Service::Rc,
            ..Header::new(service, op, dest, send.next_psn)
        };
        Head {
            vni: self.cx.network.vni,
            ip: Envelope::ip_within_host(self.cx.network.source(av), av, flow(self.qp.made().qpn, dest)),
            header,
            src: self.qp.made().qpn,
            epoch: self.state.epoch,
            len,
            remaining: entry.total - entry.sent,
            shard: 0,
        }
    }
}

/// Bytes of an atomic.
const WORD: u32 = 8;
/// Bytes of one packet on the local path: large enough that packets cost little beside the copy, small enough that
/// QPs share a worker fairly.
pub(crate) const FRAGMENT: u32 = 64 * 1024;
