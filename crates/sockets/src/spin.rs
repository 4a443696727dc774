//! Adaptive polling before a sleep.
//!
//! A sleep costs 30 to 60 us on a virtual machine when the processor idles meanwhile, so it pays to look for an answer that comes
//! sooner. Each look gives the processor away (`sched_yield`): where another thread wants it, that is the peer as like as not. A
//! yield that took long shows that it was wanted; after a few the thread sleeps. Waits that end in vain are counted, and where most
//! do, few are tried.

use rdmesh_preload::settings::settings;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU32, Ordering};

/// History of one waiter: how often polling has paid.
pub(crate) struct Spin {
    /// Share of the polls that found something, in 1/1024, as a moving average.
    hits: AtomicU32,
    skipped: AtomicU32,
}

/// Nanoseconds on the monotonic clock.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Spin {
    pub(crate) const fn new() -> Self {
        Self { hits: AtomicU32::new(FULL), skipped: AtomicU32::new(0) }
    }

    /// Polls for a while, until `is_ready`. Returns whether it was.
    pub(crate) fn until(&self, is_ready: impl Fn() -> bool) -> bool {
        let limit = u64::from(settings().spin_microseconds()) * 1000;
        let hits = self.hits.load(Ordering::Relaxed);
        if limit == 0 || hits < WORTHWHILE && !self.skipped.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRY_EVERY) {
            return false;
        }
        let hit = poll(limit, is_ready);
        self.hits.store(hits - hits / 8 + if hit { FULL / 8 } else { 0 }, Ordering::Relaxed);
        hit
    }
}

fn poll(limit: u64, is_ready: impl Fn() -> bool) -> bool {
    let begin = now();
    let (mut before, mut wanted) = (begin, 0);
    loop {
        if is_ready() {
            return true;
        }
        std::thread::yield_now();
        let after = now();
        wanted += u32::from(after - before > YIELD_NS);
        if wanted > MOST_WANTED || after - begin > limit {
            return is_ready();
        }
        before = after;
    }
}

const FULL: u32 = 1024;
/// Below this share of hits few waits are polled.
const WORTHWHILE: u32 = 300;
const TRY_EVERY: u32 = 16;
/// A yield that takes longer has given the processor to another thread.
const YIELD_NS: u64 = 1500;
const MOST_WANTED: u32 = 3;
