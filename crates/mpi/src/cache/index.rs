//! Index of registered ranges: which region covers a buffer, and which regions are stale.
//!
//! It has a fixed size and never allocates: the thread that learns of unmapped memory ([`super::watch`]) changes it while another
//! thread may be inside the allocator.

/// Most ranges that are kept.
pub(super) const CAPACITY: usize = 1024;

/// A range of pages and the slot of its region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Entry {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) slot: u16,
}

/// Ranges in the order of their starts. None contains another, so that they are in the order of their ends as well.
pub(super) struct Index {
    live: [Entry; CAPACITY],
    live_count: usize,
    stale: [u16; CAPACITY],
    stale_count: usize,
}

impl Index {
    pub(super) const fn new() -> Self {
        Self {
            live: [Entry { start: 0, end: 0, slot: 0 }; CAPACITY],
            live_count: 0,
            stale: [0; CAPACITY],
            stale_count: 0,
        }
    }

    /// The slot of a region that covers `start..end`.
    pub(super) fn find(&self, start: usize, end: usize) -> Option<u16> {
        let after = self.live().partition_point(|entry| entry.start <= start);
        let entry = self.live[after.checked_sub(1)?];
        (end <= entry.end).then_some(entry.slot)
    }

    /// Adds a range that none covers yet; those that it contains become stale. False where there is no room.
    pub(super) fn insert(&mut self, entry: Entry) -> bool {
        let from = self.live().partition_point(|other| other.start < entry.start);
        let to = self.live().partition_point(|other| other.end <= entry.end).max(from);
        self.retire(from, to);
        if self.live_count == CAPACITY {
            return false;
        }
        self.live.copy_within(from..self.live_count, from + 1);
        self.live[from] = entry;
        self.live_count += 1;
        true
    }

    /// All ranges that overlap `start..end` become stale.
    pub(super) fn invalidate(&mut self, start: usize, end: usize) {
        let from = self.live().partition_point(|entry| entry.end <= start);
        let to = self.live().partition_point(|entry| entry.start < end).max(from);
        self.retire(from, to);
    }

    /// A slot whose region is stale, once.
    pub(super) fn take_stale(&mut self) -> Option<u16> {
        self.stale_count = self.stale_count.checked_sub(1)?;
        Some(self.stale[self.stale_count])
    }

    fn live(&self) -> &[Entry] {
        &self.live[..self.live_count]
    }

    /// There is room among the stale: a slot is in one list only, and has no other use before it was taken.
    fn retire(&mut self, from: usize, to: usize) {
        for at in from..to {
            self.stale[self.stale_count] = self.live[at].slot;
            self.stale_count += 1;
        }
        self.live.copy_within(to..self.live_count, from);
        self.live_count -= to - from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Use(usize, usize),
        Unmap(usize, usize),
        Reap,
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = (0..60_usize, 1..20_usize);
        prop_oneof![
            range.clone().prop_map(|(start, len)| Step::Use(start, start + len)),
            range.prop_map(|(start, len)| Step::Unmap(start, start + len)),
            Just(Step::Reap),
        ]
    }

    proptest! {
        /// Beside a model that keeps a list: no stale region is ever found, and what covers a range is.
        #[test]
        fn what_was_unmapped_is_never_found(steps in proptest::collection::vec(step(), 1..200)) {
            let (mut index, mut model, mut taken) = (Box::new(Index::new()), Vec::<Entry>::new(), Vec::new());
            let mut free: Vec<u16> = (0..CAPACITY as u16).collect();
            for step in steps {
                match step {
                    Step::Use(start, end) => {
                        let covering = model.iter().find(|entry| entry.start <= start && end <= entry.end);
                        let found = index.find(start, end);
                        prop_assert_eq!(found.is_some(), covering.is_some());
                        if let Some(slot) = found {
                            prop_assert!(model.iter().any(|entry| entry.slot == slot && entry.start <= start && end <= entry.end));
                            continue;
                        }
                        let entry = Entry { start, end, slot: free.pop().unwrap() };
                        prop_assert!(index.insert(entry));
                        model.retain(|other| !(start <= other.start && other.end <= end));
                        model.push(entry);
                    }
                    Step::Unmap(start, end) => {
                        index.invalidate(start, end);
                        model.retain(|entry| entry.end <= start || end <= entry.start);
                    }
                    Step::Reap => while let Some(slot) = index.take_stale() {
                        prop_assert!(!model.iter().any(|entry| entry.slot == slot));
                        taken.push(slot);
                        free.push(slot);
                    },
                }
                let live = index.live();
                prop_assert!(live.windows(2).all(|two| two[0].start < two[1].start && two[0].end < two[1].end));
                prop_assert_eq!(live.len(), model.len());
            }
        }
    }

    #[test]
    fn a_full_index_refuses() {
        let mut index = Box::new(Index::new());
        for slot in 0..CAPACITY as u16 {
            let start = usize::from(slot) * 10;
            assert!(index.insert(Entry { start, end: start + 5, slot }));
        }
        assert!(!index.insert(Entry { start: 6, end: 8, slot: 0 }));
        index.invalidate(12, 23);
        assert_eq!([index.take_stale(), index.take_stale(), index.take_stale()], [Some(2), Some(1), None]);
        assert!(index.insert(Entry { start: 6, end: 8, slot: 1 }));
    }
}
