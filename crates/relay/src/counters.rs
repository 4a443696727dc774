//! Counters of a relay.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts since the endpoint was made: one thread adds, others read.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    streams: AtomicU64,
    lost: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    is_busy: AtomicBool,
}

/// Values of a relay's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Connections that have got rings.
    pub streams: u64,
    /// Connections that have gone back to TCP, or ended, because the way to the other endpoint broke.
    pub lost: u64,
    /// Bytes that the endpoint's processes have sent to other endpoints on rings.
    pub sent: u64,
    /// Bytes that have come for them.
    pub received: u64,
}

impl Counters {
    pub(crate) fn add_stream(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether there are processes, or bytes of theirs on their way, from now on.
    pub(crate) fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Release);
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Acquire)
    }

    pub(crate) fn totals(&self) -> Totals {
        let [streams, lost, sent, received] =
            [&self.streams, &self.lost, &self.sent, &self.received].map(|count| count.load(Ordering::Relaxed));
        Totals { streams, lost, sent, received }
    }
}
