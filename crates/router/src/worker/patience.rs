//! For how long a thread that has found no work looks again before it sleeps.
//!
//! Meanwhile it spins, or, where processors are few, yields: three pollers on two processors that never yield would stop
//! each other for whole scheduler slices. Yielding is for pollers among themselves: to a thread that computes it gives a
//! whole slice away, and the scheduler holds that against the poller. So where a yield was slow the thread sleeps instead for
//! a while: who sleeps is woken promptly.

use super::Mode;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The patience of one thread.
#[derive(Debug)]
pub(crate) struct Patience {
    mode: Mode,
    yields: bool,
    spin_for: Duration,
    /// Looks without work since the last one with.
    idle: u32,
    idle_since: u64,
    /// Until when yields are not tried again.
    crowded_until: u64,
}

impl Patience {
    /// Of a thread that looks for `spin_for` while `pollers` threads, itself among them, may do so.
    pub(crate) fn new(mode: Mode, pollers: usize, spin_for: Duration) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { mode, yields: processors < pollers, spin_for, idle: 0, idle_since: 0, crowded_until: 0 }
    }

    /// Whether it yields rather than spins.
    pub(crate) fn yields(&self) -> bool {
        self.yields
    }

    /// There was work, or a sleep.
    pub(crate) fn renew(&mut self) {
        self.idle = 0;
    }

    /// There was nothing. Spins or yields for a moment; returns true where it is time to sleep.
    pub(crate) fn is_over(&mut self) -> bool {
        self.idle = self.idle.saturating_add(1);
        if self.mode == Mode::Sleep {
            return self.idle > 1;
        }
        if self.yields {
            if self.is_crowded() {
                return true;
            }
        } else {
            std::hint::spin_loop();
        }
        if self.mode == Mode::Spin || !self.idle.is_multiple_of(CLOCK_EVERY) {
            return false;
        }
        let now = nanoseconds();
        if self.idle == CLOCK_EVERY {
            self.idle_since = now;
        }
        now.saturating_sub(self.idle_since) > self.spin_for.as_nanos() as u64
    }

    /// Yields, unless it was slow lately; true where it was.
    fn is_crowded(&mut self) -> bool {
        let before = nanoseconds();
        if self.mode == Mode::Adaptive && before < self.crowded_until {
            return true;
        }
        rustix::thread::sched_yield();
        let after = nanoseconds();
        let slow = self.mode == Mode::Adaptive && after - before > SLOW_YIELD.as_nanos() as u64;
        if slow {
            self.crowded_until = after + CROWDED_FOR.as_nanos() as u64;
        }
        slow
    }
}

fn nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Looks between two at the clock.
const CLOCK_EVERY: u32 = 16;
/// Pollers give the processor back sooner than this; whoever computes does not.
const SLOW_YIELD: Duration = Duration::from_millis(1);
/// How long the thread sleeps rather than yields after a slow yield.
const CROWDED_FOR: Duration = Duration::from_millis(20);
