//! Requester, the send side of a queue pair: fetches work requests, sends them, and completes them in order.
//!
//! * [`packets`]: request packets made from work requests.
//! * [`replies`]: replies of the responder, and lost packets.
//! * [`finish`]: completion of work requests.

mod finish;
mod packets;
mod replies;

use super::active::Active;
use super::window::Inflight;
use crate::memory::BindRequest;
use crate::platform::{Platform, SendQueue};
use crate::schedule::{TURN_COST, TURN_PACKETS};
use rdmesh_verbs::{QpState, QpType, SendFlags, SendOp, WcStatus};

impl<P: Platform> Active<'_, P> {
    /// Lets a QP send for one turn. Returns whether it did anything.
    pub(crate) fn run_sends(&mut self) -> bool {
        if matches!(self.qp.state(), QpState::Error | QpState::Sqe) {
            return self.flush_sends();
        }
        let mut worked = false;
        let end = self.out.spent + TURN_COST;
        for _ in 0..TURN_PACKETS {
            if self.out.spent >= end
                || !self.qp.is_sending()
                || !self.qp.can_send()
                || self.qp.send.unanswered >= MAX_UNANSWERED
            {
                break;
            }
            if self.qp.send.cursor == self.qp.send.window.len() && !self.fetch() {
                break;
            }
            // An error while fetching leaves nothing to send.
            if self.qp.send.cursor == self.qp.send.window.len() {
                worked = true;
                continue;
            }
            match self.send_next() {
                Step::Blocked => break,
                Step::Done => worked = true,
                // What it costs is known when all members have got it.
                Step::DoneForGroup => return true,
            }
        }
        worked
    }

    /// Takes the next work request from the ring into the window; false where there is none, or no room.
    pub(crate) fn fetch(&mut self) -> bool {
        if self.qp.send.window.is_full() {
            return false;
        }
        let entry = self.qp.send.window.next();
        let Some(fetched) = self.qp.send.queue.fetch(self.qp.qp_type, &mut entry.wr) else { return false };
        if let Err(bad) = fetched {
            // Earlier requests complete first: the error waits for its turn.
            entry.begin(0, None);
            (entry.wr.wr_id, entry.wr.op, entry.bad) = (bad.wr_id, SendOp::Send { imm: None }, true);
            self.qp.send.window.push();
            return true;
        }
        let inline = entry.wr.flags.contains(SendFlags::INLINE).then(|| self.qp.send.queue.inline_data());
        let total = match entry.wr.op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. } => 8,
            SendOp::Flush { .. } | SendOp::LocalInvalidate { .. } | SendOp::BindMw { .. } => 0,
            _ => entry.wr.length(),
        };
        entry.begin(total, inline);
        self.qp.send.window.push();
        true
    }

    /// Sends the next packet of the request at the cursor, or executes a local one.
    fn send_next(&mut self) -> Step {
        let cursor = self.qp.send.cursor;
        let entry = &self.qp.send.window[cursor];
        if !entry.started {
            if self.must_wait(cursor) {
                return Step::Blocked;
            }
            if let Err(status) = self.check(entry) {
                return self.fail_in_order(cursor, status);
            }
            if matches!(entry.wr.op, SendOp::LocalInvalidate { .. } | SendOp::BindMw { .. }) {
                self.execute_local();
                return Step::Done;
            }
        }
        if self.is_remote_datagram(cursor) {
            self.out.make_wire_ready(self.index);
            return Step::Blocked;
        }
        match self.build(cursor) {
            Ok((op, payload, len)) => self.transmit(op, payload, len),
            Err(status) => self.fail_in_order(cursor, status),
        }
    }

    /// Earlier requests complete first: an error waits until its request is the oldest.
    fn fail_in_order(&mut self, cursor: usize, status: WcStatus) -> Step {
        if cursor != 0 {
            return Step::Blocked;
        }
        self.fail_oldest(status);
        Step::Done
    }

    /// Whether the request at the cursor has to wait for earlier ones.
    pub(crate) fn must_wait(&self, cursor: usize) -> bool {
        let wr = &self.qp.send.window[cursor].wr;
        let mut earlier = self.qp.send.window.iter().take(cursor);
        match wr.op {
            // Local operations take effect after everything before them has.
            SendOp::LocalInvalidate { .. } | SendOp::BindMw { .. } => cursor != 0,
            _ if wr.flags.contains(SendFlags::FENCE) => earlier.any(|e| e.wr.op.is_read_or_atomic()),
            _ if wr.op.is_read_or_atomic() => {
                let limit = usize::from(self.qp.attr.max_rd_atomic.max(1));
                earlier.filter(|e| e.wr.op.is_read_or_atomic()).count() >= limit
            }
            _ => false,
        }
    }

    /// Checks a request that is about to start.
    pub(crate) fn check(&self, entry: &Inflight<P::Memory>) -> Result<(), WcStatus> {
        let allowed = match (&entry.wr.op, self.qp.qp_type) {
            (SendOp::Datagram { .. }, t) => t == QpType::Ud,
            (_, QpType::Ud) => false,
            (_, QpType::Rc) => true,
            (op, QpType::Uc) => matches!(
                op,
                SendOp::Send { .. }
                    | SendOp::SendInvalidate { .. }
                    | SendOp::Write { .. }
                    | SendOp::BindMw { .. }
                    | SendOp::LocalInvalidate { .. }
            ),
        };
        if entry.bad || !allowed || entry.wr.sges.len() > self.qp.caps.max_send_sge as usize {
            return Err(WcStatus::LocalQpOperationError);
        }
        if entry.wr.op.is_read_or_atomic() && self.qp.attr.max_rd_atomic == 0 {
            return Err(WcStatus::LocalQpOperationError);
        }
        let datagram_max = u64::from(self.cx.network.mtu.bytes());
        let max = if self.qp.qp_type == QpType::Ud { datagram_max } else { MESSAGE_MAX };
        if entry.total > max { Err(WcStatus::LocalLengthError) } else { Ok(()) }
    }

    /// Executes a local operation, which is the oldest request.
    pub(crate) fn execute_local(&mut self) {
        self.out.spend(0);
        let result = match self.qp.send.window[0].wr.op {
            SendOp::LocalInvalidate { key } => {
                self.cx.keys.invalidate(self.qp.pd, None, key).map_err(|_| WcStatus::LocalQpOperationError)
            }
            SendOp::BindMw { mw, new_key, mr, addr, length, access } => {
                let request = BindRequest { mw, new_key, mr, addr, length, access };
                self.cx.keys.bind(self.qp.pd, self.qp.qpn, &request).map_err(|_| WcStatus::MwBindError)
            }
            _ => Err(WcStatus::LocalQpOperationError),
        };
        match result {
            Ok(()) => {
                let entry = &mut self.qp.send.window[0];
                entry.complete = true;
                entry.started = true;
                self.qp.send.cursor += 1;
                self.complete_oldest();
            }
            Err(status) => self.fail_oldest(status),
        }
    }
}

/// Result of an attempt to send a packet within the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Sent or executed; there may be more.
    Done,
    /// Sent to every member of a group.
    DoneForGroup,
    /// An earlier request, or the queue pair's other path, comes first.
    Blocked,
}

/// Work requests of a QP on their way at once.
pub(crate) const WINDOW: usize = 64;
/// Packets of a QP without a reply.
pub(crate) const MAX_UNANSWERED: u32 = 32;
/// Largest message (IBA 9.7.7).
pub(crate) const MESSAGE_MAX: u64 = 1 << 31;
