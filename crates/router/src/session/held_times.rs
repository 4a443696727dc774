//! Time for which rates have held an endpoint's queue pairs.

use rdmesh_nic::policy::Level;
use std::time::Duration;

/// Time for which rates have held an endpoint's queue pairs, by the level of the rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeldTimes([Duration; Level::ALL.len()]);

impl HeldTimes {
    /// Those that `by` tells.
    pub(super) fn new(by: impl Fn(Level) -> Duration) -> Self {
        Self(Level::ALL.map(by))
    }

    /// That of a level.
    pub fn by(&self, level: Level) -> Duration {
        self.0[level as usize]
    }
}
