//! Completion queues of a device.

use crate::command::{CommandError, CqEntry, CqInit};
use crate::platform::{CompletionQueue, Platform};
use alloc::vec::Vec;
use rdmesh_verbs::{Completion, WcStatus};

/// A completion queue.
pub(crate) struct Cq<P: Platform> {
    queue: P::CompletionQueue,
    /// Entries that it has room for.
    cqe: u32,
    /// Send and receive queues that report to it.
    users: u32,
    is_overrun: bool,
    ignores_overrun: bool,
    /// Successful completions.
    produced: u64,
    /// Managed queues that wait for a count of them: the count, and the engine's index of the queue pair.
    waiting: Vec<(u64, u32)>,
}

/// Error of a completion that finds no room.
pub(crate) struct Full {
    /// Whether it is the first one: an event is raised once.
    pub(crate) is_first: bool,
}

impl<P: Platform> Cq<P> {
    pub(super) fn new(init: CqInit<P>) -> Self {
        let CqInit { queue, cqe, ignores_overrun } = init;
        Self { queue, cqe, users: 0, is_overrun: false, ignores_overrun, produced: 0, waiting: Vec::new() }
    }

    pub(super) fn queue(&self) -> &P::CompletionQueue {
        &self.queue
    }

    pub(super) fn entry(&self, handle: u32) -> CqEntry {
        CqEntry { handle, cqe: self.cqe, users: self.users, produced: self.produced }
    }

    pub(super) fn is_used(&self) -> bool {
        self.users != 0 || !self.waiting.is_empty()
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
        let failed = completion.status != WcStatus::Success;
        if self.queue.push(completion).is_err() && !self.ignores_overrun {
            self.is_overrun = true;
            return Err(Full { is_first: true });
        }
        self.produced += u64::from(!failed);
        Ok(self.queue.take_arm(handle, solicited || failed))
    }

    /// Successful completions.
    pub(crate) fn produced(&self) -> u64 {
        self.produced
    }

    /// Puts the count to where it would be after a long time.
    #[cfg(test)]
    pub(crate) fn preset(&mut self, produced: u64) {
        self.produced = produced;
    }

    /// The queue pair with this index of the engine's waits until there are so many successful completions.
    pub(crate) fn wait(&mut self, index: u32, count: u64) {
        self.waiting.push((count, index));
    }

    /// The queue pair waits no longer.
    pub(crate) fn forget(&mut self, index: u32) {
        self.waiting.retain(|(_, waiting)| *waiting != index);
    }

    /// Whether any queue pair waits.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes out the queue pairs for which there are enough completions.
    pub(super) fn take_woken(&mut self) -> impl Iterator<Item = u32> {
        let produced = self.produced;
        self.waiting.extract_if(.., move |(count, _)| *count <= produced).map(|(_, index)| index)
    }

    /// Data came by WRITE to a queue pair that reports here.
    pub(crate) fn on_write(&mut self) {
        self.queue.on_write();
    }
}
