//! Budgets of steps of chains: a token bucket for each endpoint that has one.

use crate::timer::Time;
use alloc::vec::Vec;

/// Budget of steps of an endpoint's chains: a token bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepRate {
    /// Steps that it gains in a second.
    pub per_second: u64,
    /// Most steps that it holds.
    pub burst: u64,
}

/// The buckets of endpoints that have queue pairs and a budget, by class.
#[derive(Default)]
pub(super) struct Steps(Vec<Option<Bucket>>);

struct Bucket {
    rate: StepRate,
    /// Steps that it holds; a step that costs more than there is leaves a debt.
    level: i64,
    /// Time of the last refill.
    filled: Time,
    /// The last time at which it was looked at.
    seen: Time,
}

impl Steps {
    /// Sets the budget of a class, or takes it away. A bucket that there is keeps what it holds, as far as there is room.
    pub(super) fn set_rate(&mut self, class: u32, rate: Option<StepRate>) {
        let Some(rate) = rate else { return self.forget(class) };
        match self.0.get_mut(class as usize) {
            Some(Some(bucket)) => (bucket.rate, bucket.level) = (rate, bucket.level.min(full(rate))),
            _ => self.join(class, Some(rate)),
        }
    }

    /// A queue pair of the class's endpoint, which has this budget, was made.
    pub(super) fn join(&mut self, class: u32, rate: Option<StepRate>) {
        let Some(rate) = rate else { return };
        let place = class as usize;
        if self.0.len() <= place {
            self.0.resize_with(place + 1, || None);
        }
        self.0[place].get_or_insert(Bucket { rate, level: full(rate), filled: Time::default(), seen: Time::default() });
    }

    /// The class goes, or its budget.
    pub(super) fn forget(&mut self, class: u32) {
        self.0.get_mut(class as usize).into_iter().for_each(|bucket| *bucket = None);
    }

    /// Time at which the endpoint may go on; none for now.
    pub(super) fn wait(&mut self, class: u32, now: Time) -> Option<Time> {
        self.0.get_mut(class as usize)?.as_mut()?.wait(now)
    }

    /// The endpoint has executed so many steps.
    pub(super) fn charge(&mut self, class: u32, steps: u64) {
        if let Some(Some(bucket)) = self.0.get_mut(class as usize) {
            bucket.level = bucket.level.saturating_sub_unsigned(steps);
        }
    }
}

impl Bucket {
    fn wait(&mut self, now: Time) -> Option<Time> {
        // Many steps are executed at one time: a division for each would cost more than the step.
        if self.level > 0 && core::mem::replace(&mut self.seen, now) == now {
            return None;
        }
        let per_second = self.rate.per_second;
        let elapsed = u128::from(now.0.saturating_sub(self.filled.0));
        let gained = elapsed * u128::from(per_second) / SECOND;
        if gained != 0 {
            let steps = u64::try_from(gained).unwrap_or(u64::MAX);
            self.level = self.level.saturating_add_unsigned(steps).min(full(self.rate));
            // What is not a whole step yet is kept.
            self.filled = Time(now.0 - (elapsed - gained * SECOND / u128::from(per_second)) as u64);
        }
        if self.level > 0 {
            return None;
        }
        let missing = u128::from(self.level.unsigned_abs()) + u128::from(self.rate.burst / TURNS).max(1);
        let wait = (missing * SECOND).checked_div(u128::from(per_second)).map_or(u128::MAX, |wait| wait + 1);
        let at = self.filled.0.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX));
        Some(Time(at.max(now.0.saturating_add(1))))
    }
}

/// Level of a full bucket.
fn full(rate: StepRate) -> i64 {
    i64::try_from(rate.burst).unwrap_or(i64::MAX)
}

/// Part of a full bucket that an endpoint waits for once it is empty: one that woke for each step would do little else.
const TURNS: u64 = 8;
const SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(per_second: u64, burst: u64) -> Steps {
        let mut steps = Steps::default();
        steps.set_rate(3, Some(StepRate { per_second, burst }));
        steps
    }

    #[test]
    fn what_is_spent_comes_back_at_the_rate() {
        let mut steps = steps(1000, 10);
        let mut done = 0;
        for millis in 0..100_u64 {
            let now = Time(millis * 1_000_000);
            while steps.wait(3, now).is_none() {
                steps.charge(3, 1);
                done += 1;
            }
        }
        assert_eq!(done, 10 + 99);
    }

    #[test]
    fn the_wait_ends_when_there_is_a_step() {
        let mut steps = steps(3, 1);
        steps.charge(3, 5);
        let mut now = Time(1);
        for _ in 0..20 {
            let Some(at) = steps.wait(3, now) else { break };
            assert!(at > now);
            now = at;
        }
        assert_eq!(steps.wait(3, now), None);
        assert!((1_666_000_000..1_667_000_000).contains(&now.0), "{now:?}");
    }

    #[test]
    fn an_endpoint_without_budget_never_waits() {
        let mut steps = steps(1, 1);
        steps.charge(4, 1000);
        assert_eq!(steps.wait(4, Time(1)), None);
        let nothing = super::Steps::default().wait(3, Time(1));
        assert_eq!(nothing, None);
    }

    #[test]
    fn another_rate_refills_nothing() {
        let mut steps = steps(1000, 10);
        steps.charge(3, 15);
        steps.set_rate(3, Some(StepRate { per_second: 10, burst: 100 }));
        assert_eq!(steps.wait(3, Time(0)), Some(Time(1_700_000_001)));
        steps.set_rate(3, None);
        assert_eq!(steps.wait(3, Time(0)), None);
    }

    #[test]
    fn no_rate_is_for_ever() {
        let mut steps = steps(0, 1);
        assert_eq!(steps.wait(3, Time(1)), None);
        steps.charge(3, 1);
        assert_eq!(steps.wait(3, Time(u64::MAX - 1)), Some(Time(u64::MAX)));
    }
}
