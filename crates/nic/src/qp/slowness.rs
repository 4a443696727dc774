//! Back-off while memory is slow: retry intervals, and the time limit.
//!
//! Registered memory may be unreachable for a while: another thread of its program holds the lock of the address space, or a
//! page comes from a slow disk. A queue pair that needs such memory waits and tries again, with growing intervals; only where
//! that lasts does the request end as if the memory had gone.

use crate::timer::Time;
use crate::wire::Syndrome;
use core::time::Duration;

/// Time since which memory has been slow, and the number of attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slowness {
    since: Option<Time>,
    tries: u32,
}

impl Slowness {
    /// The memory was slow again: returns the interval to the next attempt, or none where it has been slow for too long.
    pub(crate) fn next(&mut self, now: Time) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        if since.after(LIMIT) <= now {
            return None;
        }
        let doublings = self.tries.min(MOST_DOUBLINGS);
        self.tries = self.tries.saturating_add(1);
        Some((FIRST * (1 << doublings)).min(MOST))
    }

    /// The same for a peer on another host. NICs and kernels understand only that the receiver is not ready (RNR NAK). The
    /// timers grow, because many limit the number of RNR retries.
    pub(crate) fn put_off(&mut self, now: Time, is_tunnel: bool) -> Option<Syndrome> {
        let timers = if is_tunnel { &TUNNEL_TIMERS[..] } else { &OUTSIDE_TIMERS };
        let timer = timers[(self.tries as usize).min(timers.len() - 1)];
        self.next(now)?;
        Some(if is_tunnel { Syndrome::Slow { timer } } else { Syndrome::Rnr { timer } })
    }

    /// The memory was reached.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }
}

/// Time after which slow memory counts as gone.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
const FIRST: Duration = Duration::from_millis(1);
const MOST: Duration = Duration::from_millis(100);
const MOST_DOUBLINGS: u32 = 7;
/// RNR timers (IBA table 57): 1.28 ms and twice as much each, up to 81.92 ms.
const TUNNEL_TIMERS: [u8; 7] = [14, 16, 18, 20, 22, 24, 26];
/// 2.56 ms and four times as much each, up to 655.36 ms.
const OUTSIDE_TIMERS: [u8; 5] = [16, 20, 24, 28, 0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_grow_until_the_limit() {
        let (mut slow, mut now) = (Slowness::default(), Time(5));
        let mut intervals = Vec::new();
        while let Some(interval) = slow.next(now) {
            intervals.push(interval);
            now = now.after(interval);
        }
        assert_eq!(intervals[..4], [1, 2, 4, 8].map(Duration::from_millis));
        assert!(intervals.is_sorted() && intervals.last() == Some(&MOST));
        assert!((LIMIT..LIMIT + MOST).contains(&Duration::from_nanos(now.0 - 5)));
        slow.end();
        assert_eq!(slow.next(now), Some(FIRST));
    }

    #[test]
    fn timers_are_those_of_the_table() {
        let delays = |is_tunnel, count| {
            let mut slow = Slowness::default();
            let timers = (0..count).map(move |_| match slow.put_off(Time(0), is_tunnel) {
                Some(Syndrome::Slow { timer }) if is_tunnel => timer,
                Some(Syndrome::Rnr { timer }) if !is_tunnel => timer,
                other => panic!("{other:?}"),
            });
            timers.map(|timer| rdmesh_verbs::rnr_delay(timer).as_micros()).collect::<Vec<_>>()
        };
        assert_eq!(delays(false, 6), [2560, 10_240, 40_960, 163_840, 655_360, 655_360]);
        assert_eq!(delays(true, 8), [1280, 2560, 5120, 10_240, 20_480, 40_960, 81_920, 81_920]);
    }
}
