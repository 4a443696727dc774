//! Anti-replay window of one stream of numbered packets, shared by all workers without a lock.
//!
//! A number is accepted once. Each word of the window covers sixteen numbers: a bit for each, and above them the index of the
//! group. Words only advance to later numbers, so that an accepted number stays marked or falls behind the window.

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers that were accepted, as far as they are remembered.
pub(super) struct Window([AtomicU64; WORDS]);

/// Error of a number that is not accepted: it was seen before, or is too old.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Replayed;

impl Window {
    pub(super) fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Whether `number`, of 48 bits, could still be accepted.
    pub(super) fn is_open(&self, number: u64) -> bool {
        let (word, group, bit) = self.find(number);
        let found = word.load(Ordering::Relaxed);
        match (found >> BITS).cmp(&group) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => found & bit == 0,
            std::cmp::Ordering::Greater => false,
        }
    }

    /// Accepts `number`, of 48 bits, the first time.
    pub(super) fn accept(&self, number: u64) -> Result<(), Replayed> {
        let (word, group, bit) = self.find(number);
        let next = |found: u64| match (found >> BITS).cmp(&group) {
            std::cmp::Ordering::Less => Some(group << BITS | bit),
            std::cmp::Ordering::Equal => (found & bit == 0).then_some(found | bit),
            std::cmp::Ordering::Greater => None,
        };
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map(drop).map_err(|_| Replayed)
    }

    /// The word, the group of numbers that it is to stand for, and the number's bit.
    fn find(&self, number: u64) -> (&AtomicU64, u64, u64) {
        // From 1, so that an empty word stands for none.
        let group = number / u64::from(BITS) + 1;
        (&self.0[(group % WORDS as u64) as usize], group, 1 << (number % u64::from(BITS)))
    }
}

/// Numbers in a word. The other bits are enough for groups of 48-bit numbers.
const BITS: u32 = 16;
/// The window is 4096 numbers wide: more than what two workers' queues can put out of order.
const WORDS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_number_is_accepted_once_and_in_any_order_within_the_window() {
        let window = Window::new();
        for number in (0..4000).rev() {
            assert!(window.is_open(number));
            assert_eq!(window.accept(number), Ok(()), "{number}");
        }
        for number in 0..4000 {
            assert!(!window.is_open(number));
            assert_eq!(window.accept(number), Err(Replayed), "{number}");
        }
    }

    #[test]
    fn what_is_behind_the_window_is_refused_and_what_is_far_ahead_is_not() {
        let window = Window::new();
        let last = (1 << 48) - 1;
        assert_eq!(window.accept(last), Ok(()));
        assert_eq!(window.accept(last), Err(Replayed));
        assert_eq!(window.accept(last - 4096), Err(Replayed));
        assert_eq!(window.accept(last - 4000), Ok(()));
    }

    #[test]
    fn of_many_that_try_one_succeeds() {
        let window = Window::new();
        let accepted = |window: &Window| (0..20_000).filter(|n| window.accept(*n).is_ok()).count();
        let sum: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| accepted(&window))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(sum <= 20_000, "{sum}");
    }

    proptest! {
        #[test]
        fn it_never_accepts_twice(numbers in prop::collection::vec(0..20_000_u64, 0..2000)) {
            let (window, mut accepted) = (Window::new(), BTreeSet::new());
            let mut highest = 0;
            for number in numbers {
                highest = highest.max(number);
                let is_open = window.is_open(number);
                prop_assert_eq!(window.accept(number).is_ok(), is_open);
                let is_new = !accepted.contains(&number);
                prop_assert!(is_new || !is_open);
                prop_assert!(is_open || !is_new || number + 4096 - 16 <= highest);
                if is_open {
                    accepted.insert(number);
                }
            }
        }
    }
}
