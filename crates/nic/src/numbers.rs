//! Table of a host's queue pair numbers: which engine a queue pair is on, and at which place there.
//!
//! All engines of a host share it. A look-up is one read of one word, without a lock. A number says nothing about the engine by
//! itself: a queue pair keeps its number when it moves to another one.
//!
//! The number of a queue pair that has gone still leads to the engine on which it was, until the number is used again. So all
//! packets to it take one way, and are answered in order.
//!
//! The engines share one counter beside it: the bytes of packets from other routers.
//!
//! There is a word for every number of 24 bits, which are zero until they are written. So they take addresses, but no memory
//! for numbers that were never used.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rdmesh_verbs::Qpn;
use zerocopy::FromZeros;

/// The table. Clones share it.
#[derive(Clone)]
pub struct Numbers(Arc<Table>);

struct Table {
    shards: u32,
    /// Index of the number that each engine gives first.
    first: u32,
    places: Box<[AtomicU32]>,
    /// Told of each number that leads to another engine than before.
    watcher: Option<Watcher>,
    /// Bytes of packets from other routers, for engines that know the rate of their link.
    arrived: AtomicU64,
}

type Watcher = Box<dyn Fn(Qpn, u32) + Send + Sync>;

/// The place of a queue pair, as a word: the engine's number plus one, and the place there.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u32);

impl Numbers {
    /// Most engines that can share a table.
    pub const MAX_SHARDS: u32 = 255;

    /// The table of a host with so many engines, at most [`Numbers::MAX_SHARDS`].
    pub fn new(shards: u32) -> Self {
        Self::with(shards, LIMIT, 0, None)
    }

    /// The same, with numbers that begin where `chance` says: those of an earlier router of this host, to which peers may still
    /// send, are not given again soon.
    pub fn from_anywhere(shards: u32, chance: u32) -> Self {
        Self::with(shards, LIMIT, chance, None)
    }

    /// The same. `watcher` is called with each number that leads to another engine than before, and that engine, by the thread
    /// that causes it.
    pub fn watched(shards: u32, chance: u32, watcher: impl Fn(Qpn, u32) + Send + Sync + 'static) -> Self {
        Self::with(shards, LIMIT, chance, Some(Box::new(watcher)))
    }

    /// A table for numbers below `limit` only.
    #[cfg(test)]
    pub(crate) fn below(limit: u32) -> Self {
        Self::with(1, limit, 0, None)
    }

    fn with(shards: u32, limit: u32, first: u32, watcher: Option<Watcher>) -> Self {
        assert!((1..=Self::MAX_SHARDS).contains(&shards), "a host has between 1 and 255 engines");
        let places = <[AtomicU32]>::new_box_zeroed_with_elems(limit as usize).expect("addresses for the table");
        Self(Arc::new(Table { shards, first, places, watcher, arrived: AtomicU64::new(0) }))
    }

    /// Number of the host's engines.
    pub fn shards(&self) -> u32 {
        self.0.shards
    }

    /// The engine that a queue pair is on, or was last; none for a number that was never used.
    #[inline]
    pub fn owner(&self, qpn: Qpn) -> Option<u32> {
        self.read(qpn).engine()
    }

    /// So many more bytes have arrived.
    pub(crate) fn count_arrived(&self, bytes: u64) {
        self.0.arrived.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that have arrived, for all engines.
    pub(crate) fn arrived(&self) -> u64 {
        self.0.arrived.load(Ordering::Relaxed)
    }

    /// The place of a queue pair of engine `shard`.
    #[inline]
    pub(crate) fn place(&self, qpn: Qpn, shard: u32) -> Option<u32> {
        let place = self.read(qpn);
        (place.engine() == Some(shard)).then(|| place.index()).flatten()
    }

    /// A queue pair is on engine `shard` now, at place `index`.
    pub(crate) fn enter(&self, qpn: Qpn, shard: u32, index: u32) {
        self.write(qpn, shard, index);
    }

    /// A queue pair of engine `shard` has gone.
    pub(crate) fn leave(&self, qpn: Qpn, shard: u32) {
        self.write(qpn, shard, GONE);
    }

    /// A number that engine `shard` may give a queue pair: the `n`th of its own; none where there are no more. Where the kernel
    /// cannot look numbers up, they tell it at least where a queue pair was made.
    pub(crate) fn nth(&self, shard: u32, n: u32) -> Option<Qpn> {
        // The numbers of a group, one for each engine, are all below the limit.
        let groups = (self.0.places.len() as u32 / self.0.shards).checked_sub(FIRST)?;
        let group = (n < groups).then(|| (self.0.first % groups + n) % groups + FIRST)?;
        Some(Qpn::new(group * self.0.shards + shard))
    }

    #[inline]
    fn read(&self, qpn: Qpn) -> Place {
        // What leads to a queue pair is ordered by other means: packets come through queues.
        self.0.places.get(qpn.value() as usize).map_or(Place(0), |place| Place(place.load(Ordering::Relaxed)))
    }

    fn write(&self, qpn: Qpn, shard: u32, index: u32) {
        let Some(place) = self.0.places.get(qpn.value() as usize) else { return };
        let new = Place::new(shard, index);
        let before = Place(place.swap(new.0, Ordering::Relaxed));
        if before.engine() != Some(shard)
            && let Some(watcher) = &self.0.watcher
        {
            watcher(qpn, shard);
        }
    }
}

impl Place {
    fn new(shard: u32, index: u32) -> Self {
        Self((shard + 1) << INDEX_BITS | index)
    }

    fn engine(self) -> Option<u32> {
        (self.0 >> INDEX_BITS).checked_sub(1)
    }

    fn index(self) -> Option<u32> {
        let index = self.0 & GONE;
        (index != GONE).then_some(index)
    }
}

/// QP numbers 0 and 1 are special (IBA 3.5.10); a few more are kept free.
const FIRST: u32 = 16;
/// The number of all members of a group, and those beyond 24 bits, are no queue pair's.
const LIMIT: u32 = Qpn::MULTICAST.value();
const INDEX_BITS: u32 = 24;
/// In place of an index: the queue pair has gone. There are fewer queue pairs than that.
const GONE: u32 = (1 << INDEX_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_number_leads_to_the_engine_that_its_queue_pair_is_on() {
        let numbers = Numbers::new(3);
        let qpn = numbers.nth(2, 0).unwrap();
        assert_eq!((numbers.owner(qpn), numbers.place(qpn, 2)), (None, None));
        numbers.enter(qpn, 2, 7);
        assert_eq!((numbers.owner(qpn), numbers.place(qpn, 2), numbers.place(qpn, 1)), (Some(2), Some(7), None));
        numbers.enter(qpn, 0, 0);
        assert_eq!((numbers.owner(qpn), numbers.place(qpn, 0), numbers.place(qpn, 2)), (Some(0), Some(0), None));
        numbers.leave(qpn, 0);
        assert_eq!((numbers.owner(qpn), numbers.place(qpn, 0)), (Some(0), None));
        let group = Qpn::MULTICAST;
        numbers.enter(group, 1, 1);
        assert_eq!(numbers.owner(group), None);
    }

    #[test]
    fn no_number_belongs_to_two_engines() {
        let numbers = Numbers::new(7);
        let mut all: Vec<_> = (0..7).flat_map(|shard| (0..100).map(move |n| (shard, n))).collect();
        all.sort_by_key(|&(shard, n)| numbers.nth(shard, n).unwrap());
        let count = all.len();
        all.dedup_by_key(|&mut (shard, n)| numbers.nth(shard, n).unwrap());
        assert_eq!(all.len(), count);
        assert!(numbers.nth(0, 0).unwrap() > Qpn::new(15));
        let last = LIMIT / 7 - FIRST;
        assert!(numbers.nth(0, last - 1).is_some() && numbers.nth(6, last).is_none());
        assert_eq!(numbers.nth(0, u32::MAX), None);
    }

    #[test]
    fn numbers_that_begin_anywhere_are_all_given_once() {
        let count = 40 / 2 - FIRST;
        for first in [0, 1, 3, u32::MAX] {
            let numbers = Numbers::with(2, 40, first, None);
            let mut given: Vec<_> = (0..count).map(|n| numbers.nth(1, n).unwrap().value()).collect();
            assert_eq!((given[0], numbers.nth(1, count)), ((first % count + FIRST) * 2 + 1, None));
            given.sort_unstable();
            assert_eq!(given, (0..count).map(|n| (n + FIRST) * 2 + 1).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_watcher_is_told_of_changes_of_the_engine_only() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let numbers = Numbers::watched(2, 0, {
            let told = Arc::clone(&told);
            move |qpn, shard| told.lock().unwrap().push((qpn.value(), shard))
        });
        let qpn = Qpn::new(100);
        numbers.enter(qpn, 1, 0);
        numbers.leave(qpn, 1);
        numbers.enter(qpn, 1, 5);
        numbers.enter(qpn, 0, 5);
        assert_eq!(*told.lock().unwrap(), [(100, 1), (100, 0)]);
    }
}
