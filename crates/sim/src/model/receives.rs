//! Checks of receive queues and received messages.

use super::{Check, Fault, Kind, Model, Op, violated};
use crate::coverage::Seen;
use crate::layout::GRH;
use crate::platform::Recvs;
use rdmesh_verbs::{Completion, QpType, WcFlags, WcOpcode, WcStatus};
use std::collections::{BTreeMap, VecDeque};

/// A receive queue.
pub struct Queue {
    /// Its ring.
    pub recvs: Recvs,
    /// Several queue pairs take from it.
    pub shared: bool,
    /// The memory of its program.
    pub space: usize,
    /// Buffers that are not posted.
    pub free: Vec<u64>,
    /// Number of the next request.
    pub next: u64,
    posted: VecDeque<Buffer>,
    taken: VecDeque<Buffer>,
    done: BTreeMap<u64, Buffer>,
}

/// A posted receive request.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Its identifier.
    pub wr_id: u64,
    /// The buffer as a whole.
    pub start: u64,
    /// Its pieces: place and length.
    pub pieces: Vec<(u64, u64)>,
}

impl Queue {
    /// A queue whose buffers are `free`.
    pub fn new(recvs: Recvs, shared: bool, space: usize, free: Vec<u64>) -> Self {
        let (posted, taken, done) = Default::default();
        Self { recvs, shared, space, free, next: 0, posted, taken, done }
    }

    /// The program posts a request.
    pub fn post(&mut self, buffer: Buffer) {
        self.posted.push_back(buffer);
    }

    /// Number of receive requests that are posted and not taken.
    pub fn len(&self) -> usize {
        self.posted.len()
    }

    /// Whether none is posted.
    pub fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// The program has seen the completion of a request: it gives the buffer, if it was one of this queue's.
    pub fn polled(&mut self, wr_id: u64) -> Option<u64> {
        let buffer = self.done.remove(&wr_id)?;
        self.free.push(buffer.start);
        Some(buffer.start)
    }

    pub(super) fn close(&mut self) {
        self.posted.clear();
        self.taken.clear();
    }

    pub(super) fn taken(&mut self, wr_id: u64) -> Check {
        match self.posted.pop_front() {
            Some(buffer) if buffer.wr_id == wr_id => {
                self.taken.push_back(buffer);
                Ok(())
            }
            other => violated("P3", format!("receive request {wr_id:#x} was taken, {other:?} is next")),
        }
    }

    pub(super) fn written(&self, offset: u64, len: u64) -> Check {
        let within = |&(at, n): &(u64, u64)| at <= offset && offset + len <= at + n;
        if self.taken.iter().any(|buffer| buffer.pieces.iter().any(within)) {
            return Ok(());
        }
        violated("P6", format!("{len} bytes at {offset:#x}, in no receive request that was taken"))
    }

    fn completed(&mut self, wr_id: u64) -> Check<Buffer> {
        let Some(position) = self.taken.iter().position(|buffer| buffer.wr_id == wr_id) else {
            return violated("P2", format!("receive request {wr_id:#x} completes, but was not taken"));
        };
        if position != 0 && !self.shared {
            return violated("P3", format!("receive request {wr_id:#x} completes before older ones"));
        }
        let buffer = self.taken.remove(position).expect("position is within");
        self.done.insert(wr_id, buffer.clone());
        Ok(buffer)
    }
}

impl Model {
    /// Checks the completion of a receive request of `end`.
    pub(super) fn received(&mut self, end: usize, wc: &Completion) -> Check {
        let queue = self.ends[end].queue;
        let buffer = self.queues[queue].completed(wc.wr_id)?;
        if wc.status != WcStatus::Success {
            return self.receive_failed(end, wc);
        }
        let shared = self.queues[queue].shared;
        match self.ends[end].qp_type {
            QpType::Rc => self.received_reliably(end, wc, &buffer)?,
            QpType::Uc => self.received_unreliably(end, wc, &buffer, 0)?,
            QpType::Ud => self.received_unreliably(end, wc, &buffer, GRH)?,
        }
        if shared {
            self.seen.count(Seen::SharedReceive);
        }
        Ok(())
    }

    fn receive_failed(&mut self, end: usize, wc: &Completion) -> Check {
        let sender = self.ends[end].peer;
        self.advance(sender);
        let next = self.ends[sender].flow.ops.get(self.ends[sender].flow.executed);
        let fault = next.and_then(|op| op.fault);
        let this = &self.ends[end];
        let expected = match wc.status {
            WcStatus::FlushError => this.excused || this.flow.failed || fault.is_some(),
            WcStatus::LocalLengthError => fault == Some(Fault::TooLong),
            _ => false,
        };
        if !expected {
            return violated("P7", format!("end {end}: a receive request ends with {:?}, next is {next:?}", wc.status));
        }
        self.ends[end].excused = true;
        Ok(())
    }

    /// Messages of a reliable connection come once each, in order, and whole, after everything that was posted before.
    fn received_reliably(&mut self, end: usize, wc: &Completion, buffer: &Buffer) -> Check {
        let sender = self.ends[end].peer;
        self.advance(sender);
        let index = self.ends[sender].flow.executed;
        let Some(op) = self.ends[sender].flow.ops.get(index) else {
            return violated("P2", format!("end {end} received a message that end {sender} has not sent"));
        };
        if !op.takes_receive() || op.fault.is_some() {
            return violated(
                "P2",
                format!("end {end} received a message, but {index} of end {sender} is next: {:?}", op.kind),
            );
        }
        if let Some(difference) = self.difference(end, op, wc, buffer, 0) {
            return violated(
                "P1",
                format!("end {end} received request {index} of end {sender} with wrong {difference}"),
            );
        }
        if matches!(op.kind, Kind::Send { invalidate: Some(_), .. }) {
            self.seen.count(Seen::Invalidated);
        }
        let step = self.step;
        let flow = &mut self.ends[sender].flow;
        flow.ops[index].lower = Some(step);
        flow.executed += 1;
        self.advance(sender);
        Ok(())
    }

    /// Messages without a guarantee may be missing and change places, but they are whole.
    fn received_unreliably(&mut self, end: usize, wc: &Completion, buffer: &Buffer, header: u64) -> Check {
        let once = if self.repeats { u32::MAX } else { 1 };
        let found = self.unreliable_senders(end).find_map(|sender| {
            let ops = &self.ends[sender].flow.ops;
            let matching = |op: &Op| op.delivered < once && self.difference(end, op, wc, buffer, header).is_none();
            Some((sender, ops.iter().position(matching)?))
        });
        let Some((sender, index)) = found else {
            return violated("P1", format!("end {end} received a message that was not sent, or a second time: {wc:?}"));
        };
        self.ends[sender].flow.ops[index].delivered += 1;
        self.seen.count(if header == 0 { Seen::Unreliable } else { Seen::Datagram });
        Ok(())
    }

    /// Possible senders of an unreliable message, the latest first: a late one may have been meant for an earlier queue pair
    /// with this number.
    fn unreliable_senders(&self, end: usize) -> impl Iterator<Item = usize> {
        let qp_type = self.ends[end].qp_type;
        (0..self.ends.len()).rev().filter(move |sender| self.ends[*sender].qp_type == qp_type)
    }

    /// The difference between a received message and `op`, if any.
    fn difference(&self, end: usize, op: &Op, wc: &Completion, buffer: &Buffer, header: u64) -> Option<&'static str> {
        let (opcode, imm, carried) = match op.kind {
            Kind::Send { imm, invalidate: None } | Kind::Datagram { imm } => (WcOpcode::Recv, imm, true),
            Kind::Send { invalidate: Some(key), .. } => {
                let same = wc.flags.contains(WcFlags::WITH_INV) && wc.imm == key.0;
                return if !same {
                    Some("key")
                } else if !self.holds(buffer, header, &op.data) {
                    Some("data")
                } else {
                    (u64::from(wc.byte_len) != op.len).then_some("length")
                };
            }
            Kind::Write { imm: Some(imm), .. } => (WcOpcode::RecvRdmaWithImm, Some(imm), false),
            _ => return Some("kind"),
        };
        let given = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
        let reliable = self.ends[end].qp_type == QpType::Rc;
        if wc.opcode != opcode {
            Some("opcode")
        } else if given != imm {
            Some("immediate")
        } else if u64::from(wc.byte_len) != op.len + header {
            Some("length")
        } else if carried && !self.holds(buffer, header, &op.data) {
            Some("data")
        } else if !carried && (op.done < op.len || (reliable && op.done != op.len)) {
            Some("amount of data")
        } else {
            None
        }
    }

    /// Whether `data` was received into `buffer`, behind `skip` bytes.
    fn holds(&self, buffer: &Buffer, mut skip: u64, mut data: &[u8]) -> bool {
        let region = &self.spaces[self.queues[(buffer.wr_id & !super::RECEIVE) as usize >> 24].space].region;
        for &(at, len) in &buffer.pieces {
            let drop = skip.min(len);
            skip -= drop;
            let n = (len - drop).min(data.len() as u64) as usize;
            if !region.holds(at + drop, &data[..n]) {
                return false;
            }
            data = &data[n..];
        }
        data.is_empty()
    }
}
