//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

/// Pause between two looks at a condition.
pub const TICK: Duration = Duration::from_millis(10);

/// Looks until `condition` gives something; panics with `what` when that takes longer than `limit`.
pub fn until<T>(limit: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} in vain: {what}");
        std::thread::sleep(TICK);
    }
}
