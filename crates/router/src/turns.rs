//! Round robin over groups of items, and over groups of groups.
//!
//! Each group has its turn, however many items another has: an item waits for one of each other group, not for all of them.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// A collection from which items are taken one at a time.
pub(crate) trait Pool: Default {
    /// Its contents.
    type Item;

    /// Takes the next item.
    fn take(&mut self) -> Option<Self::Item>;

    /// Whether there is none.
    fn is_empty(&self) -> bool;
}

impl<T> Pool for VecDeque<T> {
    type Item = T;

    fn take(&mut self) -> Option<T> {
        self.pop_front()
    }

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

/// Pools in turn. Only pools with items are kept.
#[derive(Debug)]
pub(crate) struct Turns<G, P> {
    /// The groups with items, each once; the front one is next.
    order: VecDeque<G>,
    pools: HashMap<G, P>,
}

impl<G, P> Default for Turns<G, P> {
    fn default() -> Self {
        Self { order: VecDeque::new(), pools: HashMap::new() }
    }
}

impl<G: Copy + Eq + Hash, P: Pool> Turns<G, P> {
    /// The pool of a group that has items.
    pub(crate) fn get(&self, group: G) -> Option<&P> {
        self.pools.get(&group)
    }

    /// Takes the next item, with its group.
    pub(crate) fn take_with_group(&mut self) -> Option<(G, P::Item)> {
        while let Some(group) = self.order.pop_front() {
            let pool = self.pools.get_mut(&group)?;
            let item = pool.take();
            if pool.is_empty() {
                self.pools.remove(&group);
            } else {
                self.order.push_back(group);
            }
            if let Some(item) = item {
                return Some((group, item));
            }
        }
        None
    }

    /// The pool of a group, to be added to. A group that had nothing comes last.
    pub(crate) fn group(&mut self, group: G) -> &mut P {
        let order = &mut self.order;
        self.pools.entry(group).or_insert_with(|| {
            order.push_back(group);
            P::default()
        })
    }
}

impl<G: Copy + Eq + Hash, P: Pool> Pool for Turns<G, P> {
    type Item = P::Item;

    fn take(&mut self) -> Option<P::Item> {
        self.take_with_group().map(|(_, item)| item)
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Nested = Turns<&'static str, Turns<u32, VecDeque<u32>>>;

    fn take_all(turns: &mut impl Pool<Item = u32>) -> Vec<u32> {
        std::iter::from_fn(|| turns.take()).collect()
    }

    #[test]
    fn every_group_has_its_turn() {
        let mut turns: Turns<char, VecDeque<u32>> = Turns::default();
        turns.group('a').extend([1, 2, 3, 4]);
        turns.group('b').extend([10]);
        turns.group('c').extend([20, 21]);
        assert_eq!(take_all(&mut turns), [1, 10, 20, 2, 21, 3, 4]);
        assert!(turns.is_empty() && turns.pools.is_empty());
    }

    #[test]
    fn groups_of_groups_have_theirs() {
        let mut turns = Nested::default();
        for endpoint in 0..3 {
            turns.group("red").group(endpoint).extend([endpoint * 10, endpoint * 10 + 1]);
        }
        turns.group("blue").group(7).extend([70, 71]);
        assert_eq!(take_all(&mut turns), [0, 70, 10, 71, 20, 1, 11, 21]);
    }

    #[test]
    fn an_item_that_comes_back_waits_for_one_of_each_other_group() {
        let mut turns: Turns<char, VecDeque<u32>> = Turns::default();
        turns.group('a').extend(0..1000);
        for _ in 0..10 {
            turns.group('b').push_back(7777);
            let waited = std::iter::from_fn(|| turns.take()).position(|item| item == 7777);
            assert!(waited.is_some_and(|waited| waited <= 1), "{waited:?}");
        }
    }

    #[test]
    fn a_group_without_items_is_skipped() {
        let mut turns: Turns<char, VecDeque<u32>> = Turns::default();
        turns.group('a');
        turns.group('b').push_back(1);
        assert_eq!((turns.take(), turns.take()), (Some(1), None));
    }
}
