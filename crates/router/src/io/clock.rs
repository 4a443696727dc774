//! Monotonic clock of the engine.

use rdmesh_nic::Time;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Time since the router started. All workers have the same.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The present.
    pub fn now(self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Reads stamps of the kernel's for some moments: the host's own clock may be set meanwhile.
    pub(super) fn reader(self) -> StampReader {
        let host = clock_gettime(ClockId::Realtime);
        let seconds = u64::try_from(host.tv_sec).unwrap_or_default();
        Self::pair(self.now(), seconds * 1_000_000_000 + host.tv_nsec as u64)
    }

    fn pair(now: Time, host: u64) -> StampReader {
        StampReader { now, host }
    }
}

/// The present on the engine's clock and on the one of the kernel's stamps.
#[derive(Clone, Copy, Debug)]
pub(super) struct StampReader {
    pub(super) now: Time,
    host: u64,
}

impl StampReader {
    /// The time at which the kernel's clock showed `stamp`; none where that is not a moment ago.
    pub(super) fn time(self, stamp: u64) -> Option<Time> {
        let age = self.host.saturating_sub(stamp);
        (age < OLD.as_nanos() as u64 && age <= self.now.0).then(|| Time(self.now.0 - age))
    }
}

/// The age of a datagram that has waited longer says nothing about the network.
const OLD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_a_moment_ago_are_believed() {
        let second = 1_000_000_000;
        let reader = Clock::pair(Time(10 * second), 500 * second);
        assert_eq!(reader.time(500 * second - 7), Some(Time(10 * second - 7)));
        assert_eq!(reader.time(500 * second + 7), Some(Time(10 * second)));
        assert_eq!(reader.time(498 * second), None);
        assert_eq!(reader.time(0), None);
    }
}
