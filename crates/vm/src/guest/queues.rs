//! Queue memory of a context: which queues lie where, and what of it is pinned.
//!
//! The router hands out queue memory from the beginning to the end, and nothing twice; a program fills in, and the agent pins, more than
//! one queue needs at a time. What no queue uses any more is given back: at once to the file, and to the kernel when
//! nothing of a pinned range is used.

use rdmesh_uverbs::ring::Extent;
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// The queues and pins of a context. `P` is a pin.
pub(super) struct Queues<P> {
    /// Bytes of each queue, by offset.
    live: BTreeMap<u64, u64>,
    pins: Vec<(Extent, P)>,
}

impl<P> Default for Queues<P> {
    fn default() -> Self {
        Self { live: BTreeMap::new(), pins: Vec::new() }
    }
}

impl<P> Queues<P> {
    /// A range has been pinned.
    pub(super) fn pinned(&mut self, extent: Extent, pin: P) {
        self.pins.push((extent, pin));
    }

    /// Queues have been made.
    pub(super) fn made(&mut self, queues: &[Extent]) {
        self.live.extend(queues.iter().map(|queue| (queue.offset, queue.len)));
    }

    /// Queues are gone, for the router too.
    pub(super) fn gone(&mut self, file: &OwnedFd, queues: &[Extent]) {
        for queue in queues {
            if self.live.remove(&queue.offset).is_some() {
                // Pages that cannot be given back now are freed with the file.
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = fallocate(file, flags, queue.offset, queue.len);
            }
        }
        // The next queue may lie in the last one.
        let last = self.pins.iter().map(|(extent, _)| extent.offset).max();
        self.pins.retain(|(extent, _)| Some(extent.offset) == last || is_used(&self.live, extent));
    }
}

fn is_used(live: &BTreeMap<u64, u64>, extent: &Extent) -> bool {
    let before = live.range(..extent.offset).next_back().is_some_and(|(at, len)| at + len > extent.offset);
    before || live.range(extent.offset..extent.offset + extent.len).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_uverbs::ring::QueueFile;
    use std::os::fd::AsFd;
    use std::rc::Rc;

    const PAGE: u64 = 4096;

    fn extent(page: u64, pages: u64) -> Extent {
        Extent { offset: page * PAGE, len: pages * PAGE }
    }

    #[test]
    fn what_no_queue_uses_is_given_back() {
        let file = QueueFile::memfd().unwrap();
        let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks / 8;
        let (mut queues, pin) = (Queues::default(), Rc::new(()));
        for range in [extent(1, 4), extent(5, 8), extent(13, 16)] {
            QueueFile::fill(file.as_fd(), range).unwrap();
            queues.pinned(range, Rc::clone(&pin));
        }
        let pins = || Rc::strong_count(&pin) - 1;
        let (first, across, last) = (extent(1, 2), extent(3, 4), extent(13, 1));
        queues.made(&[first, across]);
        queues.made(&[last]);
        assert_eq!((pins(), blocks()), (3, 28));
        queues.gone(&file, &[first]);
        assert_eq!((pins(), blocks()), (3, 26), "the second queue lies in two ranges");
        queues.gone(&file, &[across]);
        assert_eq!((pins(), blocks()), (1, 22));
        // A queue that there was not.
        queues.gone(&file, &[extent(20, 1)]);
        assert_eq!((pins(), blocks()), (1, 22));
        queues.gone(&file, &[last]);
        assert_eq!(pins(), 1, "the next queue may lie there");
    }
}
