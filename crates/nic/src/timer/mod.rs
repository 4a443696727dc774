//! Timers: those of a connection, and the next deadline of each queue pair.

mod table;
mod time;

pub(crate) use table::{Timer, TimerTable};
pub use time::Time;

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// Deadlines of an engine's queue pairs, at most one each. What is due is looked up by the queue pair when it expires.
#[derive(Default)]
pub(crate) struct Deadlines {
    /// By time.
    order: BTreeSet<(Time, u32)>,
    /// By queue pair.
    set: Vec<Option<Time>>,
}

impl Deadlines {
    /// Sets the deadline of queue pair `qp`.
    pub(crate) fn set(&mut self, qp: u32, at: Time) {
        self.stop(qp);
        let slot = qp as usize;
        if self.set.len() <= slot {
            self.set.resize(slot + 1, None);
        }
        self.set[slot] = Some(at);
        self.order.insert((at, qp));
    }

    /// Sets the deadline of queue pair `qp`, unless it has an earlier one.
    pub(crate) fn set_by(&mut self, qp: u32, at: Time) {
        if self.get(qp).is_none_or(|set| set > at) {
            self.set(qp, at);
        }
    }

    /// Queue pair `qp` has no deadline any more.
    pub(crate) fn stop(&mut self, qp: u32) {
        if let Some(at) = self.set.get_mut(qp as usize).and_then(Option::take) {
            self.order.remove(&(at, qp));
        }
    }

    /// The first deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes out a queue pair whose deadline has passed.
    pub(crate) fn pop(&mut self, now: Time) -> Option<u32> {
        let (_, qp) = self.order.first().copied().filter(|(at, _)| *at <= now)?;
        self.stop(qp);
        Some(qp)
    }

    /// Deadlines that are set.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The deadline of queue pair `qp`.
    pub(crate) fn get(&self, qp: u32) -> Option<Time> {
        *self.set.get(qp as usize)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn deadlines_are_those_last_set(steps in prop::collection::vec((0..4_u8, 0..6_u32, 0..50_u64), 0..200)) {
            let (mut deadlines, mut model) = (Deadlines::default(), BTreeMap::new());
            for (step, qp, at) in steps {
                match step {
                    0 => {
                        deadlines.set(qp, Time(at));
                        model.insert(qp, at);
                    }
                    1 => {
                        deadlines.set_by(qp, Time(at));
                        model.entry(qp).and_modify(|set| *set = at.min(*set)).or_insert(at);
                    }
                    2 => {
                        deadlines.stop(qp);
                        model.remove(&qp);
                    }
                    _ => {
                        let first = model.iter().map(|(qp, at)| (*at, *qp)).min().filter(|(first, _)| *first <= at);
                        prop_assert_eq!(deadlines.pop(Time(at)), first.map(|(_, qp)| qp));
                        first.map(|(_, qp)| model.remove(&qp));
                    }
                }
                prop_assert_eq!(deadlines.next(), model.values().min().map(|at| Time(*at)));
                prop_assert_eq!(deadlines.len(), model.len());
            }
        }
    }
}
