//! Token bucket that several engines share without a lock.

use crate::timer::Time;
use core::sync::atomic::{AtomicU64, Ordering};

/// Rate of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Tokens that it gains in a second.
    pub per_second: u64,
    /// Most tokens that it holds.
    pub burst: u64,
}

/// A bucket of tokens, kept as the time at which it would be full if nothing more were taken (the generic cell rate algorithm,
/// ITU-T I.371). What costs more than there is leaves a debt, so that the rate holds in the long run whatever single requests cost.
/// Once it is empty nobody is let through until an eighth of the burst has come together: a sender that is limited wakes up for some
/// packets, not for each one.
#[derive(Debug)]
pub struct Bucket {
    /// Ticks in which one token comes, in units of 2^-32.
    ticks_per_token: u128,
    /// Ticks in which an empty bucket fills up.
    depth: u64,
    /// Ticks in which the part of the burst comes that an empty bucket waits for.
    batch: u64,
    /// Time at which it is full, in ticks.
    full_at: AtomicU64,
}

impl Rate {
    /// A rate with the usual burst: what comes in 10 ms, at least `least`.
    pub fn with_usual_burst(per_second: u64, least: u64) -> Self {
        Self { per_second, burst: (per_second / 100).max(least) }
    }
}

impl Bucket {
    /// A full bucket; one that gains nothing is empty for ever.
    pub fn new(rate: Rate) -> Self {
        let Some(ticks_per_token) = (u128::from(TICKS * SECOND) << FRACTION).checked_div(rate.per_second.into()) else {
            return Self { ticks_per_token: 0, depth: 0, batch: 0, full_at: AtomicU64::new(u64::MAX) };
        };
        let bucket = Self { ticks_per_token, depth: 0, batch: 0, full_at: AtomicU64::new(0) };
        let depth = bucket.ticks(rate.burst).max(1);
        Self { depth, batch: depth / 8, ..bucket }
    }

    /// Time at which there will be something to take; none for now.
    pub(crate) fn wait(&self, now: Time) -> Option<Time> {
        let (now, full_at) = (ticks_at(now), self.full_at.load(Ordering::Relaxed));
        if full_at < now.saturating_add(self.depth) {
            return None;
        }
        let at = (full_at - self.depth).saturating_add(self.batch);
        Some(Time((at / TICKS + 1).max(now / TICKS + 1)))
    }

    /// Takes out `amount` tokens.
    pub(crate) fn charge(&self, now: Time, amount: u64) {
        let (cost, now) = (self.ticks(amount), ticks_at(now));
        let update = |full_at: u64| Some(full_at.max(now).saturating_add(cost));
        let _ = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }

    fn ticks(&self, amount: u64) -> u64 {
        let ticks = u128::from(amount).saturating_mul(self.ticks_per_token) >> FRACTION;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

fn ticks_at(now: Time) -> u64 {
    now.0.saturating_mul(TICKS)
}

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;
/// Ticks of a nanosecond: the clock lasts for nine years, and 8 bytes at 400 Gb/s take ten.
const TICKS: u64 = 64;
/// Bits behind the point of [`Bucket::ticks_per_token`].
const FRACTION: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// Takes `amount` whenever there is something, from time 1 to `end`; returns what was taken.
    fn take(bucket: &Bucket, from: u64, end: u64, amount: u64) -> u64 {
        let (mut now, mut taken) = (Time(from), 0);
        while now.0 < end {
            match bucket.wait(now) {
                Some(at) => {
                    assert!(at > now);
                    now = at;
                }
                None => {
                    bucket.charge(now, amount);
                    taken += amount;
                }
            }
        }
        taken
    }

    proptest! {
        #[test]
        fn the_rate_holds_whatever_is_taken_at_once(
            per_second in 1_000_000..50_000_000_000_u64, amount in 1..65_536_u64, start in 1..u64::from(u32::MAX)
        ) {
            let rate = Rate::with_usual_burst(per_second, 1);
            let amount = amount.clamp(per_second / 10_000, per_second / 1000);
            let taken = take(&Bucket::new(rate), start, start + 1000 * MS, amount);
            prop_assert!(taken.abs_diff(per_second) <= per_second / 100 + amount, "{} of {}", taken, per_second);
        }
    }

    #[test]
    fn what_is_not_taken_comes_together_up_to_the_burst() {
        let bucket = Bucket::new(Rate { per_second: 1_000_000, burst: 5000 });
        bucket.charge(Time(1), 5000);
        assert!(bucket.wait(Time(1)).is_some());
        let now = Time(1000 * MS);
        let mut taken = 0;
        while bucket.wait(now).is_none() {
            bucket.charge(now, 100);
            taken += 100;
        }
        assert_eq!(taken, 5000);
    }

    #[test]
    fn a_debt_is_paid_back_first() {
        let bucket = Bucket::new(Rate { per_second: 1_000_000, burst: 1000 });
        bucket.charge(Time(1), 1_000_000);
        assert!(bucket.wait(Time(999 * MS)).is_some());
        assert!(bucket.wait(Time(1003 * MS)).is_none());
    }

    #[test]
    fn an_empty_bucket_wakes_its_sender_for_more_than_one_packet() {
        let bucket = Bucket::new(Rate::with_usual_burst(125_000_000, 1));
        let mut wakes = 0;
        let mut now = Time(1);
        while now.0 < 100 * MS {
            match bucket.wait(now) {
                Some(at) => (now, wakes) = (at, wakes + 1),
                None => bucket.charge(now, 1024),
            }
        }
        assert!((60..=80).contains(&wakes), "{wakes}");
    }

    #[test]
    fn the_lowest_rate_and_the_highest_amount_do_not_overflow() {
        let bucket = Bucket::new(Rate { per_second: 0, burst: u64::MAX });
        bucket.charge(Time(5), u64::MAX);
        assert!(bucket.wait(Time(u64::MAX / 128)).is_some());
        let bucket = Bucket::new(Rate { per_second: 1, burst: 1 });
        assert!(bucket.wait(Time(1)).is_none());
        bucket.charge(Time(1), u64::MAX);
        assert!(bucket.wait(Time(u64::MAX / 128)).is_some());
        let bucket = Bucket::new(Rate { per_second: u64::MAX, burst: 1 });
        bucket.charge(Time(1), 1);
        assert!(bucket.wait(Time(MS)).is_none());
    }
}
