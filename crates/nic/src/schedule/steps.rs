//! Budgets of steps of chains: a token bucket for each endpoint that has one.

use super::Owner;
use crate::timer::Time;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Budget of steps of an endpoint's chains: a token bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepRate {
    /// Steps that it gains in a second.
    pub per_second: u64,
    /// Most steps that it holds.
    pub burst: u64,
}

/// The budgets, and the buckets of endpoints that have queue pairs, by class.
#[derive(Default)]
pub(super) struct Steps {
    rates: BTreeMap<Owner, StepRate>,
    buckets: Vec<Option<Bucket>>,
}

struct Bucket {
    rate: StepRate,
    /// Steps that it holds; a step that costs more than there is leaves a debt.
    level: i64,
    /// Time of the last refill.
    filled: Time,
}

impl Steps {
    /// Sets the budget of an endpoint, or takes it away; `class` is its class, if it has queue pairs.
    pub(super) fn set_rate(&mut self, owner: Owner, rate: Option<StepRate>, class: Option<u32>) {
        match rate {
            Some(rate) => self.rates.insert(owner, rate),
            None => self.rates.remove(&owner),
        };
        if let Some(class) = class {
            self.forget(class);
            self.join(owner, class);
        }
    }

    /// A queue pair of the endpoint was made.
    pub(super) fn join(&mut self, owner: Owner, class: u32) {
        let Some(rate) = self.rates.get(&owner) else { return };
        let place = class as usize;
        if self.buckets.len() <= place {
            self.buckets.resize_with(place + 1, || None);
        }
        let level = i64::try_from(rate.burst).unwrap_or(i64::MAX);
        self.buckets[place].get_or_insert(Bucket { rate: *rate, level, filled: Time::default() });
    }

    /// The class goes, or its budget.
    pub(super) fn forget(&mut self, class: u32) {
        self.buckets.get_mut(class as usize).into_iter().for_each(|bucket| *bucket = None);
    }

    /// Time at which the endpoint may go on; none for now.
    pub(super) fn wait(&mut self, class: u32, now: Time) -> Option<Time> {
        self.buckets.get_mut(class as usize)?.as_mut()?.wait(now)
    }

    /// The endpoint has executed so many steps.
    pub(super) fn charge(&mut self, class: u32, steps: u64) {
        if let Some(Some(bucket)) = self.buckets.get_mut(class as usize) {
            bucket.level = bucket.level.saturating_sub_unsigned(steps);
        }
    }
}

impl Bucket {
    fn wait(&mut self, now: Time) -> Option<Time> {
        let StepRate { per_second, burst } = self.rate;
        let elapsed = u128::from(now.0.saturating_sub(self.filled.0));
        let gained = elapsed * u128::from(per_second) / SECOND;
        if gained != 0 {
            let full = i64::try_from(burst).unwrap_or(i64::MAX);
            self.level = self.level.saturating_add_unsigned(u64::try_from(gained).unwrap_or(u64::MAX)).min(full);
            // What is not a whole step yet is kept.
            self.filled = Time(now.0 - (elapsed - gained * SECOND / u128::from(per_second)) as u64);
        }
        if self.level > 0 {
            return None;
        }
        let missing = u128::from(self.level.unsigned_abs()) + 1;
        let wait = (missing * SECOND).checked_div(u128::from(per_second)).map_or(u128::MAX, |wait| wait + 1);
        let at = self.filled.0.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX));
        Some(Time(at.max(now.0.saturating_add(1))))
    }
}

const SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_verbs::Vni;

    fn steps(per_second: u64, burst: u64) -> Steps {
        let (mut steps, owner) = (Steps::default(), Owner { vni: Vni(1), endpoint: 1 });
        steps.set_rate(owner, Some(StepRate { per_second, burst }), Some(3));
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
    fn no_rate_is_for_ever() {
        let mut steps = steps(0, 1);
        assert_eq!(steps.wait(3, Time(1)), None);
        steps.charge(3, 1);
        assert_eq!(steps.wait(3, Time(u64::MAX - 1)), Some(Time(u64::MAX)));
    }
}
