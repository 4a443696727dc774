//! Spin limit of a thread that finds no work: spinning or yielding before it sleeps.
//!
//! A thread without work spins, or, where processors are few, yields: three pollers on two processors that never yield would
//! stop each other for whole scheduler slices. Yielding is for pollers among themselves: to a thread that computes it gives a
//! whole slice away. A worker that serves the network sleeps at once under [`Contention`], and so do its programs: a sleeping
//! thread is woken promptly. A worker that serves programs of its own host only, which answer sooner than a thread is woken,
//! sleeps for a while after a slow yield and then tries again.

use super::contention::{Contention, SLOW};
use super::mode::Mode;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Duration;

/// Spin limit of one thread.
pub(crate) struct SpinLimit {
    mode: Mode,
    yields: bool,
    spin_for: Duration,
    /// Consecutive passes without work.
    idle: u32,
    idle_since: u64,
    /// Time of the last reading of the clock.
    looked_at: u64,
    /// Time until which a thread without network does not yield.
    crowded_until: u64,
    contention: Arc<Contention>,
}

impl SpinLimit {
    /// A limit of `spin_for`, where `pollers` threads, this one included, may poll at a time.
    pub(crate) fn new(mode: Mode, pollers: usize, spin_for: Duration, contention: Arc<Contention>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            mode,
            yields: processors < pollers,
            spin_for,
            idle: 0,
            idle_since: 0,
            looked_at: 0,
            crowded_until: 0,
            contention,
        }
    }

    /// Whether it yields rather than spins.
    pub(crate) fn yields(&self) -> bool {
        self.yields
    }

    /// There was work, or a sleep.
    pub(crate) fn renew(&mut self) {
        self.idle = 0;
    }

    /// A pass found no work. Spins or yields for a moment; returns true where it is time to sleep. `serves_network` says
    /// whether work came from other hosts lately.
    pub(crate) fn is_over(&mut self, serves_network: bool) -> bool {
        self.idle = self.idle.saturating_add(1);
        if self.mode == Mode::Sleep {
            return self.idle > 1;
        }
        if self.mode == Mode::Adaptive && serves_network && self.contention.is_present() {
            return true;
        }
        if self.yields {
            if self.is_crowded(serves_network) {
                return true;
            }
        } else {
            std::hint::spin_loop();
        }
        if self.mode == Mode::Spin || !self.idle.is_multiple_of(CLOCK_EVERY) {
            return false;
        }
        let now = nanoseconds();
        let last = std::mem::replace(&mut self.looked_at, now);
        if self.idle == CLOCK_EVERY {
            self.idle_since = now;
        } else if !self.yields
            && serves_network
            && self.contention.has_taken(Duration::from_nanos(now.saturating_sub(last)))
        {
            // Another thread had the processor meanwhile.
            return true;
        }
        now.saturating_sub(self.idle_since) > self.spin_for.as_nanos() as u64
    }

    /// Yields, unless it was slow lately; true where it was.
    fn is_crowded(&mut self, serves_network: bool) -> bool {
        let before = nanoseconds();
        if !serves_network && before < self.crowded_until {
            return true;
        }
        rustix::thread::sched_yield();
        if self.mode == Mode::Spin {
            return false;
        }
        let after = nanoseconds();
        let time = Duration::from_nanos(after - before);
        if serves_network {
            return self.contention.has_taken(time);
        }
        let is_slow = time > SLOW;
        if is_slow {
            self.crowded_until = after + CROWDED_FOR.as_nanos() as u64;
        }
        is_slow
    }
}

fn nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Passes between two readings of the clock.
const CLOCK_EVERY: u32 = 16;
/// Time after a slow yield in which a thread without network sleeps instead of yielding.
const CROWDED_FOR: Duration = Duration::from_millis(20);
