//! History of a model: every change of memory with its writer, and every slot as it was fetched.

use rdmesh_verbs::chain::ChainOp;
use std::collections::BTreeMap;
use std::ops::Range;

/// The writer of a change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Writer {
    /// A request of a send queue, counted from the queue's first.
    Request {
        /// The queue.
        queue: u32,
        /// The request.
        index: u64,
    },
    /// A message, by the receive request that took it.
    Message {
        /// The receive queue.
        queue: u32,
        /// The receive request.
        index: u64,
    },
    /// The processor.
    Processor,
}

/// A change of the chain's memory; bytes that were written with what they were count too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Its writer.
    pub by: Writer,
    /// Key of the region.
    pub key: u32,
    /// The first byte in the region.
    pub at: usize,
    /// The bytes before.
    pub before: Vec<u8>,
    /// The bytes after.
    pub after: Vec<u8>,
}

/// A request as it was fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetched {
    /// The operation that it had become; none where it was none.
    pub op: Option<ChainOp>,
    /// Key of its ring, and its slot's bytes there.
    pub key: u32,
    /// The slot's bytes in the ring.
    pub slot: Range<usize>,
    /// Changes that there had been.
    pub seen: usize,
}

/// The changes and fetches of a model.
#[derive(Clone, Default, Debug)]
pub struct History {
    changes: Vec<Change>,
    fetched: BTreeMap<(u32, u64), Fetched>,
}

impl History {
    /// All changes, in their order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// A request of a queue as it was fetched.
    pub fn fetched(&self, queue: u32, index: u64) -> Option<&Fetched> {
        self.fetched.get(&(queue, index))
    }

    /// The last changes of a range of memory, of the first `seen` ones: of each its number, and the part of the range that nobody
    /// has written since. In the order of the bytes.
    pub fn writers(&self, key: u32, range: Range<usize>, seen: usize) -> Vec<(Range<usize>, usize)> {
        let mut parts: Vec<(Range<usize>, usize)> = Vec::new();
        for at in range {
            let covers =
                |change: &&Change| change.key == key && (change.at..change.at + change.after.len()).contains(&at);
            let Some(change) = self.changes[..seen.min(self.changes.len())].iter().rposition(|change| covers(&change))
            else {
                continue;
            };
            match parts.last_mut().filter(|(part, last)| part.end == at && *last == change) {
                Some((part, _)) => part.end = at + 1,
                None => parts.push((at..at + 1, change)),
            }
        }
        parts
    }

    pub(super) fn add(&mut self, change: Change) {
        self.changes.push(change);
    }

    pub(super) fn fetch(&mut self, queue: u32, index: u64, op: Option<ChainOp>, key: u32, slot: Range<usize>) {
        let seen = self.changes.len();
        self.fetched.insert((queue, index), Fetched { op, key, slot, seen });
    }
}
