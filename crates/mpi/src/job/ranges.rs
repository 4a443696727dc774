//! Buffers into which MPI puts announcements: nothing else is written into them, or an announcement would be lost.
//!
//! MPI forbids receives into overlapping buffers, and benchmarks post them all the same: a window of receives into one buffer, whose
//! contents nobody looks at.

use std::collections::BTreeMap;

/// Ranges of addresses in which announcements may land, which are disjoint, and ranges into which messages are being read.
#[derive(Default)]
pub(super) struct Ranges {
    /// Ends of the landings, by starts.
    landings: BTreeMap<usize, usize>,
    reads: Vec<(usize, usize)>,
}

impl Ranges {
    /// Adds a landing, unless something else may be written there.
    pub(super) fn land(&mut self, start: usize, len: u64) -> bool {
        let end = end(start, len);
        let is_free = !self.has_landing(start, len) && !self.reads.iter().any(|&(from, to)| from < end && start < to);
        if is_free {
            self.landings.insert(start, end);
        }
        is_free
    }

    /// Whether an announcement may land in a range.
    pub(super) fn has_landing(&self, start: usize, len: u64) -> bool {
        self.landings.range(..end(start, len)).next_back().is_some_and(|(_, &before)| start < before)
    }

    /// Removes the landing that begins here.
    pub(super) fn landed(&mut self, start: usize) {
        self.landings.remove(&start);
    }

    /// A message is being read into a range.
    pub(super) fn begin_read(&mut self, start: usize, len: u64) {
        self.reads.push((start, end(start, len)));
    }

    /// A message was read into the range.
    pub(super) fn end_read(&mut self, start: usize, len: u64) {
        if let Some(at) = self.reads.iter().position(|&read| read == (start, end(start, len))) {
            self.reads.swap_remove(at);
        }
    }
}

fn end(start: usize, len: u64) -> usize {
    start.saturating_add(usize::try_from(len).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_is_written_where_an_announcement_may_land(
            steps in proptest::collection::vec((0..4_u8, 0..100_usize, 1..20_u64), 0..100),
        ) {
            let mut ranges = Ranges::default();
            let (mut landings, mut reads) = (Vec::<(usize, u64)>::new(), Vec::<(usize, u64)>::new());
            let overlaps = |list: &[(usize, u64)], (start, len): (usize, u64)| {
                list.iter().any(|&(from, size)| from < start + len as usize && start < from + size as usize)
            };
            for (what, start, len) in steps {
                let range = (start, len);
                prop_assert_eq!(ranges.has_landing(start, len), overlaps(&landings, range));
                match what {
                    0 => {
                        let is_free = !overlaps(&landings, range) && !overlaps(&reads, range);
                        prop_assert_eq!(ranges.land(start, len), is_free);
                        landings.extend(is_free.then_some(range));
                    }
                    1 => {
                        ranges.landed(start);
                        landings.retain(|&(from, _)| from != start);
                    }
                    2 => {
                        ranges.begin_read(start, len);
                        reads.push(range);
                    }
                    _ => {
                        let Some((start, len)) = reads.pop() else { continue };
                        ranges.end_read(start, len);
                    }
                }
            }
        }
    }
}
