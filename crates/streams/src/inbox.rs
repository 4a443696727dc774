//! Inboxes: where other processes say which connections of this one to look at.
//!
//! A process has one inbox, which it shares with every process to which it is linked. It has a place for each *waiter*, an epoll
//! instance or a thread that waits. Whoever has written to a ring, or made room in one, sets the connection's bit at the places of
//! those that wait for it, and rings the doorbell of those that sleep. Bits may be set for no reason, also by a hostile process:
//! they say where to look, not what is there.
#![allow(unsafe_code)]

use rdmesh_uverbs::shared::SharedMemory;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};

/// Waiters of a process.
pub const PLACES: usize = 256;
/// Accelerated connections of a process.
pub const STREAMS: usize = WORDS * 64;
const WORDS: usize = 256;

/// A mapped inbox, this process's own or another's.
pub struct Inbox(SharedMemory);

/// A waiter's place in an inbox.
#[repr(C, align(64))]
pub struct Place {
    /// Whether the waiter sleeps, or is about to.
    sleeping: AtomicU32,
    /// A bit for each word of `bits` that is not zero.
    summary: [AtomicU64; WORDS / 64],
    bits: [AtomicU64; WORDS],
}

impl Inbox {
    /// A new inbox, and the descriptor that others map it by.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let (memory, fd) = SharedMemory::create_sparse("rdmesh-inbox", LEN)?;
        Ok((Self(memory), fd))
    }

    /// Another process's inbox.
    pub fn map(fd: BorrowedFd<'_>) -> Option<Self> {
        SharedMemory::map(fd, 0, LEN, true).ok().map(Self)
    }

    /// Connection `index` of this process is one that it has accepted, with `key` (not 0) as the hash of its ends: rings are wanted
    /// for it.
    pub fn accept(&self, index: u32, key: u64) {
        if let Some(place) = self.accepted().get(index as usize) {
            place.store(key, Release);
        }
    }

    /// None are wanted for connection `index` any more.
    pub fn withdraw(&self, index: u32) {
        self.accept(index, 0);
    }

    /// The accepted connection whose ends have the hash `key`.
    pub fn find_accepted(&self, key: u64) -> Option<u32> {
        let found = self.accepted().iter().position(|place| place.load(Acquire) == key);
        found.filter(|_| key != 0).map(|index| index as u32)
    }

    fn accepted(&self) -> &[AtomicU64; STREAMS] {
        // SAFETY: behind the places, within the mapping, aligned, and of atomics only.
        unsafe { &*self.0.as_ptr().add(PLACES * size_of::<Place>()).cast() }
    }

    /// The place of waiter `n`; none where there is no such place.
    pub fn place(&self, n: usize) -> Option<&Place> {
        let at = n.checked_mul(size_of::<Place>()).filter(|_| n < PLACES)?;
        // SAFETY: within the mapping, aligned like a page, and of atomics only, for which every content is valid.
        Some(unsafe { &*self.0.as_ptr().add(at).cast() })
    }
}

impl Place {
    /// Says that connection `index` is to be looked at. Returns whether the waiter sleeps. The caller has stored what there is to
    /// be seen, and a full fence after that.
    pub fn post(&self, index: u32) -> bool {
        let index = index as usize % STREAMS;
        let (word, bit) = (index / 64, 1 << (index % 64));
        if self.bits[word].load(Relaxed) & bit == 0 {
            self.bits[word].fetch_or(bit, SeqCst);
            self.summary[word / 64].fetch_or(1 << (word % 64), SeqCst);
        }
        self.sleeping.load(SeqCst) != 0
    }

    /// Calls `visit` with every connection that is to be looked at, and forgets them.
    pub fn take(&self, mut visit: impl FnMut(u32)) {
        for (high, summary) in self.summary.iter().enumerate() {
            let mut words = if summary.load(Relaxed) == 0 { 0 } else { summary.swap(0, SeqCst) };
            while words != 0 {
                let word = high * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut bits = self.bits[word].swap(0, SeqCst);
                while bits != 0 {
                    visit((word * 64) as u32 + bits.trailing_zeros());
                    bits &= bits - 1;
                }
            }
        }
        fence(SeqCst);
    }

    /// Whether a connection is to be looked at.
    pub fn has_any(&self) -> bool {
        self.summary.iter().any(|summary| summary.load(Acquire) != 0)
    }

    /// The waiter is about to sleep: it looks once more at everything, and then at its doorbell.
    pub fn fall_asleep(&self) {
        self.sleeping.store(1, SeqCst);
        fence(SeqCst);
    }

    /// The waiter is awake.
    pub fn wake_up(&self) {
        self.sleeping.store(0, Relaxed);
    }

    /// Whether the doorbell is to be rung: one of those that find the waiter asleep does it.
    pub fn claim_wake_up(&self) -> bool {
        self.sleeping.load(Relaxed) != 0 && self.sleeping.swap(0, SeqCst) != 0
    }
}

const LEN: usize = PLACES * size_of::<Place>() + STREAMS * size_of::<AtomicU64>();

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_was_posted_is_taken_once() {
        let (inbox, _) = Inbox::create().unwrap();
        let place = inbox.place(PLACES - 1).unwrap();
        let posted = [0, 63, 64, 4097, STREAMS as u32 - 1];
        posted.into_iter().chain(posted).for_each(|index| assert!(!place.post(index)));
        let mut taken = Vec::new();
        place.take(|index| taken.push(index));
        assert_eq!(taken, posted);
        place.take(|index| panic!("{index} again"));
        assert!(!place.has_any() && inbox.place(PLACES).is_none());
    }

    #[test]
    fn accepted_connections_are_found_until_they_are_withdrawn() {
        let (inbox, _) = Inbox::create().unwrap();
        assert_eq!(inbox.find_accepted(0), None);
        inbox.accept(STREAMS as u32 - 1, 77);
        inbox.accept(STREAMS as u32, 78);
        assert_eq!((inbox.find_accepted(77), inbox.find_accepted(78)), (Some(STREAMS as u32 - 1), None));
        inbox.withdraw(STREAMS as u32 - 1);
        assert_eq!(inbox.find_accepted(77), None);
    }

    #[test]
    fn one_of_those_that_find_a_sleeper_wakes_it() {
        let (inbox, fd) = Inbox::create().unwrap();
        let other = Inbox::map(rustix::fd::AsFd::as_fd(&fd)).unwrap();
        inbox.place(3).unwrap().fall_asleep();
        let place = other.place(3).unwrap();
        assert!(place.post(9) && place.post(9));
        assert!(place.claim_wake_up() && !place.claim_wake_up() && !place.post(10));
        assert!(inbox.place(3).unwrap().has_any());
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let (inbox, _) = Inbox::create().unwrap();
        let place = inbox.place(0).unwrap();
        let values: Vec<AtomicU64> = (0..200).map(|_| AtomicU64::new(0)).collect();
        const ROUNDS: u64 = 2000;
        std::thread::scope(|scope| {
            let values = &values;
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    for (index, value) in values.iter().enumerate() {
                        value.store(round, Release);
                        fence(SeqCst);
                        place.post(index as u32);
                    }
                }
            });
            let mut missing: BTreeSet<u32> = (0..values.len() as u32).collect();
            while !missing.is_empty() {
                place.take(|index| {
                    if values[index as usize].load(Acquire) == ROUNDS {
                        missing.remove(&index);
                    }
                });
            }
        });
    }
}
