//! Time for which an endpoint's queue pairs waited for a rate, by the level of the rate.

use crate::timer::Time;
use core::sync::atomic::{AtomicU64, Ordering};

/// Level of the tree of rates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// The whole host.
    Host,
    /// The tenant on this host.
    Tenant,
    /// The endpoint.
    Endpoint,
    /// A single queue pair.
    Qp,
}

/// Time for which any of an endpoint's queue pairs was held, in nanoseconds by level. All engines of the host add to it; what they
/// hold at the same time counts once.
#[derive(Debug, Default)]
pub struct Held {
    levels: [AtomicU64; Level::ALL.len()],
    /// Time up to which everything has been counted.
    until: AtomicU64,
}

impl Level {
    /// All levels, the highest first.
    pub const ALL: [Self; 4] = [Self::Host, Self::Tenant, Self::Endpoint, Self::Qp];
}

impl Held {
    /// Nanoseconds that rates of a level have cost.
    pub fn by(&self, level: Level) -> u64 {
        self.levels[level as usize].load(Ordering::Relaxed)
    }

    /// A queue pair is held from then to then.
    pub(crate) fn add(&self, level: Level, from: Time, to: Time) {
        let before = self.until.fetch_max(to.0, Ordering::Relaxed);
        let time = to.0.saturating_sub(from.0.max(before));
        self.levels[level as usize].fetch_add(time, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_at_the_same_time_counts_once() {
        let held = Held::default();
        held.add(Level::Tenant, Time(10), Time(30));
        held.add(Level::Qp, Time(15), Time(25));
        held.add(Level::Endpoint, Time(20), Time(50));
        held.add(Level::Tenant, Time(60), Time(61));
        assert_eq!(Level::ALL.map(|level| held.by(level)), [0, 21, 20, 0]);
    }
}
