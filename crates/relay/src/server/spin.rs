//! Polling before a sleep: for as long as a sleep costs, and only while no other thread wants the processor.

use std::time::{Duration, Instant};

/// One stretch of polling.
pub(super) struct Spin {
    found: Instant,
    wanted: u32,
    passes: u32,
}

impl Default for Spin {
    fn default() -> Self {
        Self { found: Instant::now(), wanted: 0, passes: 0 }
    }
}

impl Spin {
    /// There was something.
    pub(super) fn has_found(&mut self) {
        (self.found, self.wanted) = (Instant::now(), 0);
    }

    /// Whether it has polled in vain for long enough. Gives the processor away.
    pub(super) fn is_over(&mut self) -> bool {
        let before = Instant::now();
        std::thread::yield_now();
        self.wanted += u32::from(before.elapsed() > YIELD);
        self.wanted > MOST_WANTED || before.duration_since(self.found) > LIMIT
    }

    /// Whether sockets are to be looked at in this pass.
    pub(super) fn is_time_for_sockets(&mut self) -> bool {
        self.passes = self.passes.wrapping_add(1);
        self.passes.is_multiple_of(PASSES)
    }
}

const LIMIT: Duration = Duration::from_micros(30);
/// A yield that takes longer has given the processor to another thread.
const YIELD: Duration = Duration::from_nanos(1500);
const MOST_WANTED: u32 = 3;
const PASSES: u32 = 64;
