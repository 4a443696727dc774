//! Request packets made from work requests.

use super::Local;
use super::requester::Step;
use crate::memory::{Payload, Source, gather};
use crate::packet::{Body, Head, Packet};
use crate::packet::{Request, RequestOp};
use crate::platform::Platform;
use rdmesh_verbs::{QpType, Qpn, SendFlags, SendOp, WcStatus};

/// A packet under construction: its operation, its payload, and the bytes that it moves.
pub(crate) type Built<M> = (RequestOp, Payload<M>, u32);

impl<P: Platform> Local<'_, P> {
    /// The next packet of the request at `cursor`: operation, payload, and bytes that it moves.
    pub(crate) fn build(&self, cursor: usize) -> Result<Built<P::Memory>, WcStatus> {
        let entry = &self.qp.send.window[cursor];
        let sent = entry.sent;
        let data = || -> Result<Payload<P::Memory>, WcStatus> {
            if let Some((memory, offset)) = &entry.inline {
                return Ok(Payload::single(memory.clone(), *offset, entry.wr.inline_len));
            }
            let whole = self.qp.qp_type == QpType::Ud;
            gather(&self.cx.keys, self.qp.pd, &entry.wr.sges, sent, FRAGMENT, whole)
                .map_err(|_| WcStatus::LocalProtectionError)
        };
        let none = Payload::empty;
        Ok(match entry.wr.op {
            SendOp::Send { imm } => with_data(RequestOp::Send { imm, invalidate: None }, data()?),
            SendOp::SendInvalidate { rkey } => {
                with_data(RequestOp::Send { imm: None, invalidate: Some(rkey) }, data()?)
            }
            SendOp::Write { remote_addr, rkey, imm } => {
                let addr = remote_addr.wrapping_add(sent);
                with_data(RequestOp::Write { addr, rkey, remaining: entry.total - sent, imm }, data()?)
            }
            SendOp::Read { remote_addr, rkey } => {
                let remaining = entry.total - sent;
                let addr = remote_addr.wrapping_add(sent);
                (RequestOp::Read { addr, rkey, remaining }, none(), remaining.min(u64::from(FRAGMENT)) as u32)
            }
            SendOp::CompareSwap { remote_addr: addr, rkey, compare, swap } => {
                (RequestOp::CompareSwap { addr, rkey, compare, swap }, none(), 8)
            }
            SendOp::FetchAdd { remote_addr: addr, rkey, add } => (RequestOp::FetchAdd { addr, rkey, add }, none(), 8),
            SendOp::AtomicWrite { remote_addr: addr, rkey, value } => {
                (RequestOp::AtomicWrite { addr, rkey, value }, none(), 8)
            }
            SendOp::Flush { remote_addr: addr, rkey, length, kind, range } => {
                (RequestOp::Flush { addr, rkey, length, kind, range }, none(), 0)
            }
            SendOp::Datagram { ah, qkey, imm, .. } => {
                let av = self.cx.address(self.qp.pd, ah).ok_or(WcStatus::LocalQpOperationError)?.av;
                let qkey = if qkey.is_controlled() { self.qp.attr.qkey } else { qkey };
                let op = RequestOp::Datagram {
                    qkey,
                    imm,
                    traffic_class: av.traffic_class,
                    hop_limit: av.hop_limit,
                    flow_label: av.flow_label,
                };
                with_data(op, data()?)
            }
            SendOp::LocalInvalidate { .. } | SendOp::BindMw { .. } => return Err(WcStatus::LocalQpOperationError),
        })
    }

    pub(crate) fn transmit(&mut self, op: RequestOp, payload: Payload<P::Memory>, len: u32) -> Step {
        let (dst, av) = match self.qp.send.window[self.qp.send.cursor].wr.op {
            SendOp::Datagram { ah, qpn, .. } => match self.cx.address(self.qp.pd, ah) {
                Some(ah) => (qpn, ah.av),
                None => return Step::Blocked,
            },
            _ => (self.qp.attr.dest_qpn, self.qp.attr.av),
        };
        let sgid = self.cx.network.source(&av);
        let send = &mut self.qp.send;
        let entry = &mut send.window[send.cursor];
        let first = !entry.started;
        let last = entry.sent + u64::from(len) == entry.total || matches!(op, RequestOp::Flush { .. });
        if first {
            entry.first_psn = send.next_psn;
        }
        let group = self.qp.qp_type == QpType::Ud && av.dgid.is_multicast();
        let head = Head {
            vni: self.cx.network.vni,
            qp_type: self.qp.qp_type,
            src: self.qp.qpn,
            dst: if group { Qpn::MULTICAST } else { dst },
            sgid,
            dgid: av.dgid,
            epoch: self.state.epoch,
            psn: send.next_psn,
            len,
            shard: 0,
        };
        entry.started = true;
        entry.sent += u64::from(len);
        self.out.spend(u64::from(len));
        entry.complete = last;
        let solicited = entry.wr.flags.contains(SendFlags::SOLICITED);
        send.next_psn = send.next_psn.add(1);
        if last {
            send.cursor += 1;
            self.state.reached = None;
        }
        let copies = if group { self.out.shards } else { 1 };
        let entry_index = if last { send.cursor - 1 } else { send.cursor };
        send.window[entry_index].outstanding += copies;
        self.state.unanswered += 1;
        if group {
            for shard in 1..self.out.shards {
                let payload = payload.clone();
                let body = Body::Request(Request { op, first, last, solicited, payload });
                self.out.packet(Packet { head: Head { shard, ..head }, body });
            }
        }
        self.out.packet(Packet { head, body: Body::Request(Request { op, first, last, solicited, payload }) });
        if group { Step::DoneForGroup } else { Step::Done }
    }
}

fn with_data<M: crate::platform::Memory>(op: RequestOp, payload: Payload<M>) -> Built<M> {
    let len = payload.len();
    (op, payload, len)
}

/// Bytes of one packet on the local path: large enough that packets cost little beside the copy, small enough that
/// QPs share a worker fairly.
pub(crate) const FRAGMENT: u32 = 64 * 1024;
