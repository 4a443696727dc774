//! Queue of received management datagrams from the workers to the session thread.

use super::stats::{MadCounters, bump};
use super::wait;
use rdmesh_nic::ReceivedMad;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Where a worker puts the management datagrams that it receives: a queue, and an eventfd that says that there is
/// something in it.
#[derive(Clone, Debug)]
pub struct MadSink {
    queue: SyncSender<ReceivedMad>,
    wake: Arc<OwnedFd>,
}

impl MadSink {
    /// A way into `queue`, whose reader `wake` wakes.
    pub fn new(queue: SyncSender<ReceivedMad>, wake: Arc<OwnedFd>) -> Self {
        Self { queue, wake }
    }

    /// Passes on as many as fit; the rest is lost, as on a network. Returns whether there was anything.
    pub(super) fn pass(&self, mut mads: impl Iterator<Item = ReceivedMad>, counters: &MadCounters) -> bool {
        let Some(first) = mads.next() else { return false };
        for mad in std::iter::once(first).chain(mads) {
            let passed = self.queue.try_send(mad).is_ok();
            bump(if passed { &counters.passed } else { &counters.dropped });
        }
        wait::notify(&self.wake);
        true
    }
}
