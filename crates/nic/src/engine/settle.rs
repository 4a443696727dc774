//! Execution of posted work requests before a command that ends their queue pair.
//!
//! A NIC acts on a doorbell within a microsecond, while a command takes its way through the kernel and the device's firmware: a
//! SEND that was posted before a queue pair is moved to ERR, or destroyed, has long left by then. Here a doorbell waits for the
//! next poll, which the command may precede. So before a command that ends a queue pair's work the engine settles it: posted
//! work requests are executed as far as the receiver and the window allow.

use super::Engine;
use crate::command::ContextId;
use crate::path::Transmits;
use crate::platform::Platform;
use crate::timer::Time;
use rdmesh_verbs::Qpn;

/// Limit on the work of a settlement. A program may post without end, and others wait meanwhile; a NIC, too, would not have
/// sent more by then.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    bytes: u64,
    turns: u32,
}

impl Budget {
    /// The work of a NIC while a command is on its way to it.
    pub const fn of_command() -> Self {
        Self { bytes: 2 << 20, turns: 4096 }
    }

    /// The work of a NIC while a program ends.
    pub const fn of_end() -> Self {
        Self { bytes: 8 << 20, turns: 16_384 }
    }

    /// All that there is.
    pub const fn unlimited() -> Self {
        Self { bytes: u64::MAX, turns: u32::MAX }
    }

    pub(super) fn take(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.turns = self.turns.saturating_sub(1);
    }

    pub(super) fn is_spent(&self) -> bool {
        self.bytes == 0 || self.turns == 0
    }
}

impl<P: Platform> Engine<P> {
    /// Executes the work requests that are posted to `qp`, as far as `budget` goes. Packets to other hosts are appended to
    /// `to`; none where nothing can be sent. Returns whether there is more for `to` when it has room again.
    pub fn settle_qp(
        &mut self,
        now: Time,
        id: ContextId,
        qp: u32,
        budget: &mut Budget,
        mut to: Option<&mut Transmits>,
    ) -> bool {
        self.out.now = now;
        let Some(index) = self.contexts.get(id.0).and_then(|cx| cx.qp(qp)) else { return false };
        while !budget.is_spent() && !self.out.is_full() {
            let moved = self.out.moved();
            self.take_arrived_of(index);
            self.drain_inbox();
            let mut worked = self.send_locally(index);
            if let Some(to) = &mut to {
                let before = to.count();
                worked |= to.has_room() && self.take_turn(index, to);
                worked |= to.count() != before;
                self.wire.sent += (to.count() - before) as u64;
            }
            budget.take(self.out.moved() - moved);
            if !worked {
                break;
            }
            if to.as_ref().is_some_and(|to| !to.has_room()) {
                return true;
            }
        }
        self.take_arrived_of(index);
        self.drain_inbox();
        false
    }

    /// The queue pair with this number: its context, and its handle there.
    pub fn find_qp(&self, qpn: Qpn) -> Option<(ContextId, u32)> {
        let qp = self.qps.get(self.out.index_of(qpn)?)?;
        Some((qp.core().made().context, qp.core().made().handle))
    }

    fn send_locally(&mut self, index: u32) -> bool {
        let Some((qp, env)) = self.qp(index) else { return false };
        // A queue pair in error is flushed by later polls.
        qp.core().is_sending() && qp.send_locally(env)
    }
}
