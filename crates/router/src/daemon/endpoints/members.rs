//! The endpoints of one pool: which are ready, in use, and at rest.

use crate::daemon::error::HostError;
use rdmesh_fabric::{Name, Pool, RegistryError};
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The endpoints of a pool, by what they are doing.
pub(super) struct Members {
    pub(super) pool: Pool,
    /// The one whose address the interface has its own from: it stays as long as the pool.
    pub(super) first: Option<(Name, IpAddr)>,
    pub(super) ready: VecDeque<Name>,
    pub(super) acquired: BTreeSet<Name>,
    /// Until when, the earliest first.
    pub(super) resting: VecDeque<(Instant, Name)>,
    pub(super) last_number: u32,
}

impl Members {
    pub(super) fn new(pool: Pool) -> Self {
        let (ready, acquired, resting) = (VecDeque::new(), BTreeSet::new(), VecDeque::new());
        Self { pool, first: None, ready, acquired, resting, last_number: 0 }
    }

    pub(super) fn count(&self) -> usize {
        self.ready.len() + self.acquired.len() + self.resting.len()
    }

    /// Those that have rested are ready again.
    pub(super) fn wake(&mut self, now: Instant) {
        while let Some((_, name)) = self.resting.pop_front_if(|(until, _)| *until <= now) {
            self.ready.push_back(name);
        }
    }

    /// Takes `count` that are ready, the longest ready first; none where there are fewer.
    pub(super) fn take(&mut self, count: usize, now: Instant) -> Option<Vec<Name>> {
        self.wake(now);
        if count > self.ready.len() {
            return None;
        }
        let taken: Vec<Name> = self.ready.drain(..count).collect();
        self.acquired.extend(taken.iter().cloned());
        Some(taken)
    }

    /// Takes back some that nobody has used.
    pub(super) fn take_back(&mut self, names: Vec<Name>) {
        self.acquired.retain(|name| !names.contains(name));
        self.ready.extend(names);
    }

    /// Lets one rest that was acquired.
    pub(super) fn rest(&mut self, name: Name, now: Instant) {
        if self.acquired.remove(&name) {
            self.rest_anew(name, now);
        }
    }

    /// Lets one rest that was not there yet.
    pub(super) fn rest_anew(&mut self, name: Name, now: Instant) {
        self.resting.push_back((now + Duration::from_secs(self.pool.rest_seconds.into()), name));
    }

    /// Takes out up to `count` that nobody uses, for good.
    pub(super) fn shrink(&mut self, count: usize) -> Vec<Name> {
        let is_first = |name: &Name| self.first.as_ref().is_some_and(|(first, _)| first == name);
        let idle = self.resting.iter().map(|(_, name)| name).chain(&self.ready).filter(|name| !is_first(name));
        let gone: BTreeSet<Name> = idle.take(count).cloned().collect();
        self.ready.retain(|name| !gone.contains(name));
        self.resting.retain(|(_, name)| !gone.contains(name));
        gone.into_iter().collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Name> {
        self.ready.iter().chain(&self.acquired).chain(self.resting.iter().map(|(_, name)| name))
    }

    /// Names for `count` new ones.
    pub(super) fn next_names(&mut self, count: usize) -> Result<Vec<Name>, HostError> {
        let mut name = || {
            self.last_number += 1;
            format!("{}-{}", self.pool.name, self.last_number).parse().map_err(|e| RegistryError::Name(e).into())
        };
        (0..count).map(|_| name()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(size: u32) -> Members {
        let (network, name) = ("blue".parse().unwrap(), "fn".parse().unwrap());
        let quota = Default::default();
        let pool = Pool { network, name, size, rest_seconds: 10, quota, allowed_uid: None, shares_addresses: true };
        let mut members = Members::new(pool);
        let names = members.next_names(size as usize).unwrap();
        members.first = Some((names[0].clone(), [10, 0, 0, 1].into()));
        members.ready.extend(names);
        members
    }

    #[test]
    fn all_that_are_asked_for_are_given_or_none() {
        let (mut members, now) = (members(3), Instant::now());
        assert_eq!(members.take(4, now), None);
        let taken = members.take(2, now).unwrap();
        assert_eq!(taken.iter().map(Name::as_str).collect::<Vec<_>>(), ["fn-1", "fn-2"]);
        assert_eq!((members.take(2, now), members.count()), (None, 3));
    }

    #[test]
    fn what_was_released_rests_before_it_is_given_again() {
        let (mut members, now) = (members(1), Instant::now());
        let name = members.take(1, now).unwrap().remove(0);
        members.rest(name.clone(), now);
        members.rest(name.clone(), now);
        assert_eq!(members.count(), 1, "it rests once");
        let second = Duration::from_secs(1);
        assert_eq!(members.take(1, now + second * 9), None);
        assert_eq!(members.take(1, now + second * 10), Some(vec![name]));
    }

    #[test]
    fn a_pool_shrinks_by_what_nobody_uses_and_keeps_its_first() {
        let (mut members, now) = (members(4), Instant::now());
        let taken = members.take(2, now).unwrap();
        members.rest(taken[1].clone(), now);
        assert_eq!(members.shrink(1), [taken[1].clone()], "what rests goes first");
        members.rest(taken[0].clone(), now);
        assert_eq!(members.shrink(9).len(), 2);
        assert_eq!(members.all().collect::<Vec<_>>(), [&taken[0]]);
        assert_eq!(members.next_names(1).unwrap()[0].as_str(), "fn-5", "a number is not used twice");
    }
}
