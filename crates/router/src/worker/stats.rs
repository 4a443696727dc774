//! Counters of a worker. Only its own thread writes them.

use crate::io::IoStats;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a worker.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) polls: AtomicU64,
    pub(super) busy: AtomicU64,
    pub(super) sleeps: AtomicU64,
    pub(super) wakeups: AtomicU64,
    pub(super) awake_ns: AtomicU64,
    pub(super) packets: AtomicU64,
    pub(super) mads: MadCounters,
}

/// Counters of passed and dropped datagrams.
#[derive(Default)]
pub(super) struct MadCounters {
    pub(super) passed: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// Counters of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerStats {
    /// Passes over the doorbells while there was work.
    pub busy_polls: u64,
    /// All passes.
    pub polls: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Times it was woken, rather than having slept its time.
    pub wakeups: u64,
    /// Nanoseconds that it was awake, up to its last sleep.
    pub busy_ns: u64,
    /// Packets sent to other workers.
    pub packets: u64,
    /// Management datagrams handed to rdma_cm.
    pub mads: u64,
    /// Management datagrams that were not, for want of room.
    pub mads_dropped: u64,
    /// Its sockets.
    pub io: IoStats,
}

impl Counters {
    /// Their values, with those of the sockets.
    pub(super) fn read(&self, io: IoStats) -> WorkerStats {
        WorkerStats {
            busy_polls: self.busy.load(Ordering::Relaxed),
            polls: self.polls.load(Ordering::Relaxed),
            sleeps: self.sleeps.load(Ordering::Relaxed),
            wakeups: self.wakeups.load(Ordering::Relaxed),
            busy_ns: self.awake_ns.load(Ordering::Relaxed),
            packets: self.packets.load(Ordering::Relaxed),
            mads: self.mads.passed.load(Ordering::Relaxed),
            mads_dropped: self.mads.dropped.load(Ordering::Relaxed),
            io,
        }
    }
}

/// Adds 1 to a counter that only this thread writes.
pub(super) fn bump(counter: &AtomicU64) {
    add(counter, 1);
}

/// Adds to a counter that only this thread writes.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
