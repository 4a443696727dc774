//! Completion queues of a device.

use crate::command::{CommandError, CqEntry, CqInit};
use crate::platform::{CompletionQueue, Platform};
use rdmesh_verbs::{Completion, WcStatus};

/// A completion queue.
pub(crate) struct Cq<P: Platform> {
    queue: P::CompletionQueue,
    /// Entries that it has room for.
    cqe: u32,
    /// Send and receive queues that report to it.
    users: u32,
    is_overrun: bool,
}

/// Error of a completion that finds no room.
pub(crate) struct Full {
    /// Whether it is the first one: an event is raised once.
    pub(crate) is_first: bool,
}

impl<P: Platform> Cq<P> {
    pub(super) fn new(init: CqInit<P>) -> Self {
        Self { queue: init.queue, cqe: init.cqe, users: 0, is_overrun: false }
    }

    pub(super) fn entry(&self, handle: u32) -> CqEntry {
        CqEntry { handle, cqe: self.cqe, users: self.users }
    }

    pub(super) fn is_used(&self) -> bool {
        self.users != 0
    }

    /// One more queue reports to it.
    pub(super) fn enter(&mut self) {
        self.users += 1;
    }

    /// One queue less reports to it.
    pub(super) fn leave(&mut self) {
        self.users -= 1;
    }

    /// Moves entries not yet polled to the ring of `init`. Returns the old ring.
    pub(super) fn resize(&mut self, mut init: CqInit<P>) -> Result<P::CompletionQueue, CommandError> {
        if self.queue.len() > init.cqe {
            return Err(CommandError::Invalid);
        }
        self.queue.move_into(&mut init.queue).map_err(|_| CommandError::Invalid)?;
        self.cqe = init.cqe;
        Ok(core::mem::replace(&mut self.queue, init.queue))
    }

    /// Adds a completion. Returns whether an event is due. After an overrun the queue is in error for good (IBA 10.8.4).
    #[inline]
    pub(super) fn push(&mut self, handle: u32, completion: &Completion, solicited: bool) -> Result<bool, Full> {
        if self.is_overrun {
            return Err(Full { is_first: false });
        }
        if self.queue.push(completion).is_err() {
            self.is_overrun = true;
            return Err(Full { is_first: true });
        }
        let failed = completion.status != WcStatus::Success;
        Ok(self.queue.take_arm(handle, solicited || failed))
    }

    /// Data came by WRITE to a queue pair that reports here.
    pub(crate) fn on_write(&mut self) {
        self.queue.on_write();
    }
}
