//! Queues that a queue of another queue pair, or a completion, has woken or ended: the engine sees to them in its next poll.

use crate::timer::Time;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

/// Queue pairs by index.
#[derive(Default)]
pub(crate) struct Pending {
    woken: VecDeque<u32>,
    poisoned: VecDeque<u32>,
    /// Times at which budgets of queues that stand still have steps again: of those that wait for the same, the one comes first that
    /// was served before the others.
    refills: BTreeSet<(Time, u64, u32)>,
    /// Requests that have started.
    started: u64,
    spent: u64,
}

impl Pending {
    /// Something has happened that the queue may wait for.
    pub(crate) fn wake(&mut self, index: u32) {
        self.woken.push_back(index);
    }

    /// The same for several.
    pub(crate) fn wake_all(&mut self, indices: impl IntoIterator<Item = u32>) {
        self.woken.extend(indices);
    }

    /// The queue pair is to end, because another of its group has.
    pub(crate) fn poison(&mut self, indices: Vec<u32>) {
        self.poisoned.extend(indices);
    }

    /// The queue stands still until then; its last request was the one with this number.
    pub(crate) fn wake_at(&mut self, index: u32, at: Time, last: u64) {
        self.refills.insert((at, last, index));
    }

    /// The same queue is not to be woken then.
    pub(crate) fn forget(&mut self, index: u32, at: Time, last: u64) {
        self.refills.remove(&(at, last, index));
    }

    /// The number of a request that starts.
    pub(crate) fn start(&mut self) -> u64 {
        self.started += 1;
        self.started
    }

    /// Whether there is anything to see to now.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        !self.woken.is_empty() || !self.poisoned.is_empty()
    }

    /// The first time at which a budget has steps again.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.refills.first().map(|(at, _, _)| *at)
    }

    /// Wakes the queues whose budget has steps again.
    #[inline]
    pub(crate) fn expire(&mut self, now: Time) {
        if !self.refills.is_empty() {
            self.refill(now);
        }
    }

    #[cold]
    fn refill(&mut self, now: Time) {
        while self.refills.first().is_some_and(|(at, _, _)| *at <= now) {
            self.woken.extend(self.refills.pop_first().map(|(_, _, index)| index));
        }
    }

    /// The next queue that was woken.
    pub(crate) fn take_woken(&mut self) -> Option<u32> {
        self.woken.pop_front()
    }

    /// The next queue pair that is to end.
    pub(crate) fn take_poisoned(&mut self) -> Option<u32> {
        self.poisoned.pop_front()
    }

    /// A step has cost so much.
    pub(crate) fn spend(&mut self, cost: u64) {
        self.spent += cost;
    }

    /// Cost of all steps.
    #[inline]
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }
}
