//! Points in time, as arguments: the engine has no clock of its own.

use core::time::Duration;

/// A moment, in nanoseconds since a start that only the caller knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The moment `d` later; the end of time where that cannot be expressed.
    #[must_use]
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}
