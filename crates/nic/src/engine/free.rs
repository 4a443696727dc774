//! Places and numbers for new queue pairs.

use crate::numbers::Numbers;
use crate::qp::RESTING_QPS;
use alloc::collections::VecDeque;
use rdmesh_verbs::Qpn;

/// Places in the engine's table of queue pairs, and numbers, that were used before and are not in use. A number need not be one
/// that this engine has dealt out: a queue pair may have come from another one.
///
/// A peer that has not heard of the end of a connection takes the same number for the old one's, and a new connection for stale
/// (IBA 12.9.8.3.1): others are used first.
#[derive(Default)]
pub(super) struct Free {
    places: VecDeque<u32>,
    numbers: VecDeque<Qpn>,
    /// Numbers that this engine has dealt out for the first time.
    dealt: u32,
}

impl Free {
    /// Place and number of the next queue pair of engine `shard`, whose table has `len` places.
    pub(super) fn next(&self, numbers: &Numbers, shard: u32, len: u32) -> Option<(u32, Qpn)> {
        let rested = self.numbers.front().filter(|_| self.numbers.len() > RESTING_QPS);
        let fresh = || numbers.nth(shard, self.dealt);
        let qpn = rested.copied().or_else(fresh).or_else(|| self.numbers.front().copied())?;
        Some((self.next_place(len), qpn))
    }

    /// The next place in a table of `len`: a free one, or its end.
    pub(super) fn next_place(&self, len: u32) -> u32 {
        self.places.front().copied().filter(|_| self.places.len() > RESTING_QPS).unwrap_or(len)
    }

    /// The next number is in use now.
    pub(super) fn take_number(&mut self, qpn: Qpn) {
        if self.numbers.front() == Some(&qpn) {
            self.numbers.pop_front();
        } else {
            self.dealt += 1;
        }
    }

    /// The next place is in use now.
    pub(super) fn take_place(&mut self, place: u32) {
        if self.places.front() == Some(&place) {
            self.places.pop_front();
        }
    }

    /// A number is not in use any more.
    pub(super) fn add_number(&mut self, qpn: Qpn) {
        self.numbers.push_back(qpn);
    }

    /// A place is not in use any more.
    pub(super) fn add_place(&mut self, place: u32) {
        self.places.push_back(place);
    }
}
