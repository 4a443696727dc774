//! Yields of threads that wait for each other, as long as no other thread keeps the processor.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// Whether yielding is of use at present. Threads that share it learn from each other.
///
/// To a thread that computes a yield gives a whole slice of the scheduler away. One that sleeps instead is run at once when it is
/// woken.
#[derive(Debug)]
pub(super) struct Yields {
    start: Instant,
    /// Nanoseconds from the start to the end of the last slow yield; 0 is none.
    slow_at: AtomicU64,
}

impl Yields {
    /// Yields, unless that was slow a moment ago. Returns whether it did.
    pub(super) fn try_yield(&self) -> bool {
        let slow_at = self.slow_at.load(Ordering::Relaxed);
        let begin = Instant::now();
        if slow_at != 0 && begin < self.start + Duration::from_nanos(slow_at) + REST {
            return false;
        }
        yield_now();
        if begin.elapsed() > SLOW {
            self.slow_at.store(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        true
    }
}

impl Default for Yields {
    fn default() -> Self {
        Self { start: Instant::now(), slow_at: AtomicU64::new(0) }
    }
}

/// Threads that wait for each other give the processor back sooner than this; threads that compute do not.
const SLOW: Duration = Duration::from_millis(1);
/// Time without yields after a slow one.
const REST: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_slow_yield_there_is_none_for_a_while() {
        let long_ago = Instant::now().checked_sub(2 * REST).unwrap();
        let yields = Yields { start: long_ago, slow_at: AtomicU64::new(1) };
        assert!(yields.try_yield());
        let now = u64::try_from(long_ago.elapsed().as_nanos()).unwrap();
        yields.slow_at.store(now, Ordering::Relaxed);
        assert!(!yields.try_yield());
    }
}
