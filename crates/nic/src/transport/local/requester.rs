//! Requester within the host: sends request packets from the send queue.

use super::Local;
use crate::platform::Platform;
use crate::schedule::{Order, TURN_COST, TURN_PACKETS, TURN_STEPS};
use rdmesh_verbs::WcStatus;

impl<P: Platform> Local<'_, P> {
    /// Lets a QP send for one turn. Returns whether it did anything. Steps of a chain are no packets: their cost alone ends the
    /// turn, so that a request to a chain is mostly answered in one.
    pub(crate) fn run_sends(&mut self) -> bool {
        if self.qp.is_flushing() {
            return self.exec().flush_sends();
        }
        let (mut worked, mut packets) = (false, 0);
        let end = self.out.spent() + TURN_COST;
        for _ in 0..TURN_STEPS {
            if packets == TURN_PACKETS || self.out.spent() >= end {
                break;
            }
            if !self.qp.is_sending() || !self.qp.can_send() || self.state.is_full() {
                break;
            }
            if !self.out.admit(Order::Local, self.index) {
                break;
            }
            if self.qp.send.cursor == self.qp.send.window.len() && !self.exec().fetch() {
                break;
            }
            // An error while fetching leaves nothing to send.
            if self.qp.send.cursor == self.qp.send.window.len() {
                worked = true;
                continue;
            }
            match self.send_next() {
                Step::Blocked => break,
                Step::Done => (worked, packets) = (true, packets + 1),
                // Its cost is known when all members have got it.
                Step::DoneForGroup => return true,
            }
        }
        worked
    }

    /// Sends the next packet of the request at the cursor, or executes a local one.
    fn send_next(&mut self) -> Step {
        let cursor = self.qp.send.cursor;
        let entry = &self.qp.send.window[cursor];
        if !entry.started {
            if self.qp.must_wait(entry.wr.precedence(), cursor) {
                return Step::Blocked;
            }
            if let Err(status) = self.qp.check(cursor, self.cx.network.mtu.bytes()) {
                return self.fail_in_order(cursor, status);
            }
            if entry.wr.op.is_local() {
                self.exec().execute_local();
                return Step::Done;
            }
        }
        if self.is_remote_datagram(cursor) {
            self.out.make_wire_ready(self.index);
            return Step::Blocked;
        }
        match self.build(cursor) {
            Ok(built) => self.transmit(built),
            Err(status) => self.fail_in_order(cursor, status),
        }
    }

    /// Earlier requests complete first: an error waits until its request is the oldest.
    fn fail_in_order(&mut self, cursor: usize, status: WcStatus) -> Step {
        if cursor != 0 {
            return Step::Blocked;
        }
        self.exec().fail_oldest(status);
        Step::Done
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

/// Packets of a QP without a reply.
pub(crate) const MAX_UNANSWERED: u32 = 32;
