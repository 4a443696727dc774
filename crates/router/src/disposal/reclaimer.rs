//! Unmapping of memory and dropping of objects, on one thread for all endpoints.

use crate::errands::{Errands, Job};
use rdmesh_uverbs::shared::UnusedMapping;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The memory and the objects that are to go. Clones share the queue.
#[derive(Clone)]
pub struct Reclaimer(Errands);

impl Default for Reclaimer {
    fn default() -> Self {
        Self::new()
    }
}

/// A mapping, and what is kept until it is unmapped.
struct Pages {
    pages: UnusedMapping,
    _keep: Box<dyn Send>,
}

impl Job for Pages {
    fn step(&mut self) -> bool {
        self.pages.unmap(SLICE);
        !self.pages.is_empty()
    }
}

/// An object that is dropped.
struct Object<T>(Option<T>);

impl<T: Send> Job for Object<T> {
    fn step(&mut self) -> bool {
        self.0 = None;
        false
    }
}

impl Reclaimer {
    /// An empty queue.
    pub fn new() -> Self {
        // Its jobs are the end of what endpoints had: then the heap may be mostly free.
        Self(Errands::ending_with("rdmesh-reclaim", super::heap::trim))
    }

    /// Makes the end of the next mapping or object write to the eventfd `wake`. Returns whether there is one.
    pub fn ask_for_wake(&self, wake: &Arc<OwnedFd>) -> bool {
        self.0.ask_for_wake(wake)
    }

    /// Unmaps `pages` in slices, and drops `keep` after that; the groups in turn.
    pub(super) fn unmap(&self, group: u64, pages: UnusedMapping, keep: Box<dyn Send>) {
        self.0.add(group, Pages { pages, _keep: keep });
    }

    pub(super) fn discard(&self, group: u64, value: impl Send + 'static) {
        self.0.add(group, Object(Some(value)));
    }

    /// Does a job, step by step; the groups in turn.
    pub(super) fn add(&self, group: u64, job: impl Job + 'static) {
        self.0.add(group, job);
    }

    /// Number of mappings and objects of a group that have not gone.
    pub(super) fn waiting(&self, group: u64) -> usize {
        self.0.waiting(group)
    }

    /// Waits until everything has gone.
    #[cfg(test)]
    pub(super) fn finish(&self) {
        self.0.finish();
    }
}

/// Bytes unmapped at a time. The kernel locks the address space meanwhile: no other thread of the router can map memory.
pub(super) const SLICE: usize = 32 << 20;
