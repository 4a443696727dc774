//! Shared receive queues of a device.

use crate::command::{CommandError, SrqAttr, SrqEntry, SrqInit};
use crate::platform::{BadEntry, Platform, RecvQueue};
use alloc::vec::Vec;
use rdmesh_verbs::RecvWr;

/// A shared receive queue.
pub(crate) struct Srq<P: Platform> {
    pd: u32,
    queue: P::RecvQueue,
    attr: SrqAttr,
    /// Queue pairs that receive from it.
    users: u32,
}

impl<P: Platform> Srq<P> {
    pub(super) fn new(init: SrqInit<P>) -> Self {
        Self { pd: init.pd, queue: init.queue, attr: init.attr, users: 0 }
    }

    pub(super) fn pd(&self) -> u32 {
        self.pd
    }

    pub(super) fn attr(&self) -> SrqAttr {
        self.attr
    }

    pub(super) fn entry(&self, handle: u32) -> SrqEntry {
        SrqEntry { handle, pd: self.pd, qps: Vec::new() }
    }

    pub(super) fn is_used(&self) -> bool {
        self.users != 0
    }

    /// One more queue pair receives from it.
    pub(super) fn enter(&mut self) {
        self.users += 1;
    }

    /// One queue pair less receives from it.
    pub(super) fn leave(&mut self) {
        self.users -= 1;
    }

    /// Moves posted requests to a new ring with so many entries, sets the limit below which an event is raised, or both.
    pub(super) fn modify(
        &mut self,
        resize: Option<(P::RecvQueue, u32)>,
        limit: Option<u32>,
    ) -> Result<(), CommandError> {
        let max_wr = resize.as_ref().map_or(self.attr.max_wr, |(_, max_wr)| *max_wr);
        if limit.is_some_and(|limit| limit > max_wr) {
            return Err(CommandError::Invalid);
        }
        if let Some((mut queue, max_wr)) = resize {
            self.queue.move_into(&mut queue).map_err(|_| CommandError::Invalid)?;
            self.queue = queue;
            self.attr.max_wr = max_wr;
        }
        if let Some(limit) = limit {
            self.attr.limit = limit;
        }
        Ok(())
    }

    /// Takes the next receive request.
    #[inline]
    pub(crate) fn take(&mut self, wr: &mut RecvWr) -> Option<Result<(), BadEntry>> {
        self.queue.take(wr)
    }

    /// Whether the event is due that the program armed: fewer requests are posted than its limit. It is raised once.
    #[inline]
    pub(crate) fn take_limit_event(&mut self) -> bool {
        let is_due = self.attr.limit != 0 && self.queue.len() < self.attr.limit;
        if is_due {
            self.attr.limit = 0;
        }
        is_due
    }
}
