//! Memory of an open device that the router shares with it, and that threads which poll its queues look at.

use rdmesh_uverbs::page::{ContextPage, WorkerFlags};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The shared pages of a device.
pub(crate) struct Polled {
    page: ContextPage,
    workers: WorkerFlags,
    /// Address of a completion queue of the program, by which its functions can be found; 0 for none, all ones for found.
    queue: AtomicU64,
}

impl Polled {
    pub(crate) fn new(page: ContextPage, workers: WorkerFlags) -> Self {
        Self { page, workers, queue: AtomicU64::new(0) }
    }

    pub(crate) fn page(&self) -> &ContextPage {
        &self.page
    }

    pub(crate) fn workers(&self) -> &WorkerFlags {
        &self.workers
    }

    /// Whether the router says that other programs want the processors.
    pub(crate) fn is_contended(&self) -> bool {
        self.workers.is_contended()
    }

    /// Number of completions, and of WRITEs by peers.
    pub(crate) fn arrivals(&self) -> u32 {
        self.page.arrivals()
    }

    /// Sleeps until there are more than `seen`, but not longer than `limit`.
    pub(crate) fn wait_arrival(&self, seen: u32, limit: Duration) {
        self.page.wait_arrival(seen, limit);
    }

    /// The program is making a completion queue at `address`.
    pub(crate) fn has_queue(&self, address: u64) {
        let _ = self.queue.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Address of the program's first completion queue, once: after it was made, and where its functions are not wrapped yet.
    pub(crate) fn take_queue(&self) -> Option<u64> {
        let address = self.queue.load(Ordering::Relaxed);
        if address == 0 || address == u64::MAX {
            return None;
        }
        self.functions_are_wrapped();
        Some(address)
    }

    /// The program's poll functions are wrapped.
    pub(crate) fn functions_are_wrapped(&self) {
        self.queue.store(u64::MAX, Ordering::Relaxed);
    }
}
