//! Messages that were taken from MPI to look into them, and wait for the receive that matches them.
//!
//! A probe must tell the length of a message; of an announced one only the announcement knows. So a probed message that may be
//! one is received here. It was the first that matched, and stays the first: later receives and probes look here before they
//! ask MPI.

use crate::abi::{Abi, Handle, Status};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of messages in the stash, for a look without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A message that was received: an announcement, or one of the program's own.
#[derive(Clone, Debug)]
pub(crate) struct Stashed {
    pub(crate) comm: Handle,
    /// With the length of the message, or of the one that it stands for.
    pub(crate) status: Status,
    pub(crate) data: Vec<u8>,
}

/// What a receive matches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    pub(crate) source: i32,
    pub(crate) tag: i32,
    pub(crate) comm: Handle,
}

/// The stash, in the order of arrival.
#[derive(Default)]
pub(crate) struct Stash {
    waiting: VecDeque<Stashed>,
    /// Taken by a matched probe: by the handle that the program has.
    matched: HashMap<Handle, Stashed>,
    handles: usize,
}

impl Stash {
    /// Whether no message is waiting; may be asked without a lock.
    pub(crate) fn is_empty() -> bool {
        COUNT.load(Ordering::Acquire) == 0
    }

    pub(crate) fn add(&mut self, stashed: Stashed) {
        self.waiting.push_back(stashed);
        COUNT.fetch_add(1, Ordering::Release);
    }

    /// The first message that matches.
    pub(crate) fn find(&self, pattern: &Pattern, abi: &Abi) -> Option<&Stashed> {
        self.waiting.iter().find(|stashed| stashed.matches(pattern, abi))
    }

    /// Takes the first message that matches.
    pub(crate) fn take(&mut self, pattern: &Pattern, abi: &Abi) -> Option<Stashed> {
        let at = self.waiting.iter().position(|stashed| stashed.matches(pattern, abi))?;
        COUNT.fetch_sub(1, Ordering::Release);
        self.waiting.remove(at)
    }

    /// Gives the program a handle (`MPI_Message`) for a message that a matched probe has taken.
    pub(crate) fn name(&mut self, stashed: Stashed, abi: &Abi) -> Handle {
        self.handles += 1;
        // An odd address, and an integer of the kind "invalid": MPI itself has no such handles.
        let handle = Handle(if abi.handle_size == 4 {
            0x0100_0000 + (self.handles & 0x00ff_ffff)
        } else {
            2 * self.handles + 1
        });
        self.matched.insert(handle, stashed);
        COUNT.fetch_add(1, Ordering::Release);
        handle
    }

    /// The message of a handle that [`Stash::name`] has given.
    pub(crate) fn take_named(&mut self, handle: Handle) -> Option<Stashed> {
        let stashed = self.matched.remove(&handle)?;
        COUNT.fetch_sub(1, Ordering::Release);
        Some(stashed)
    }
}

impl Stashed {
    fn matches(&self, pattern: &Pattern, abi: &Abi) -> bool {
        let Pattern { source, tag, comm } = *pattern;
        self.comm == comm
            && (source == abi.any_source || source == self.status.source(abi))
            && (tag == abi.any_tag || tag == self.status.tag(abi))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::MPICH;

    fn stashed(comm: usize, source: i32, tag: i32, mark: u8) -> Stashed {
        let mut status = Status::new();
        status.set_envelope(&MPICH, source, tag);
        Stashed { comm: Handle(comm), status, data: vec![mark] }
    }

    #[test]
    fn the_first_that_matches_is_taken() {
        let mut stash = Stash::default();
        for (comm, source, tag, mark) in [(1, 3, 7, 1), (1, 4, 7, 2), (2, 3, 8, 3), (1, 3, 8, 4)] {
            stash.add(stashed(comm, source, tag, mark));
        }
        let (source, tag) = (MPICH.any_source, MPICH.any_tag);
        let mut take = |pattern| stash.take(&pattern, &MPICH).map(|stashed| stashed.data[0]);
        assert_eq!(take(Pattern { source: 3, tag: 8, comm: Handle(1) }), Some(4));
        assert_eq!(take(Pattern { source, tag: 8, comm: Handle(1) }), None);
        assert_eq!(take(Pattern { source, tag: 7, comm: Handle(1) }), Some(1));
        assert_eq!(take(Pattern { source, tag, comm: Handle(1) }), Some(2));
        assert_eq!(take(Pattern { source, tag, comm: Handle(2) }), Some(3));
        assert_eq!(take(Pattern { source, tag, comm: Handle(2) }), None);
    }
}
