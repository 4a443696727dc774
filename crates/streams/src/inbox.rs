//! Inboxes: where other processes say which connections of this one to look at.
//!
//! A process has one inbox, which it shares with every process to which it is linked. It has a place for each *waiter*, an epoll
//! instance or a thread that waits. Whoever has written to a ring, or made room in one, sets the connection's bit at the places of
//! those that wait for it, and rings the doorbell of those that sleep. Bits may be set for no reason, also by a hostile process:
//! they say where to look, not what is there.
//!
//! A bit has a *ticket*, a number that grows: what is written to one connection, and then to another one, is seen in this order, as
//! the kernel's epoll has it. Programs count on that, also unknowingly: a message that a server reads first was sent first.
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
#[derive(Clone, Copy)]
pub struct Place<'a> {
    state: &'a State,
    /// The ticket of each connection of which some place has the bit.
    tickets: &'a [AtomicU64; STREAMS],
}

#[repr(C, align(64))]
struct State {
    /// Whether the waiter sleeps, or is about to.
    sleeping: AtomicU32,
    /// Ticket of the next connection that is posted.
    next: AtomicU64,
    /// A bit for each word of `bits` that is not zero.
    summary: [AtomicU64; WORDS / 64],
    bits: [AtomicU64; WORDS],
}

/// Connections that are to be looked at, in the order in which they were posted.
#[derive(Default)]
pub struct Taken(Vec<Posted>);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Posted {
    ticket: u64,
    index: u32,
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
        self.table(0)
    }

    /// Table `n` of those with a word for each connection, which are behind the places.
    fn table(&self, n: usize) -> &[AtomicU64; STREAMS] {
        assert!(n < TABLES);
        let at = PLACES * size_of::<State>() + n * TABLE;
        // SAFETY: within the mapping, aligned, and of atomics only, for which every content is valid.
        unsafe { &*self.0.as_ptr().add(at).cast() }
    }

    /// The place of waiter `n`; none where there is no such place.
    pub fn place(&self, n: usize) -> Option<Place<'_>> {
        let at = n.checked_mul(size_of::<State>()).filter(|_| n < PLACES)?;
        // SAFETY: within the mapping, aligned like a page, and of atomics only, for which every content is valid.
        let state = unsafe { &*self.0.as_ptr().add(at).cast::<State>() };
        Some(Place { state, tickets: self.table(1) })
    }
}

impl Place<'_> {
    /// Says that connection `index` is to be looked at. Returns whether the waiter sleeps. The caller has stored what there is to
    /// be seen, and a full fence after that.
    pub fn post(&self, index: u32) -> bool {
        let index = index as usize % STREAMS;
        let (word, bit) = (index / 64, 1 << (index % 64));
        if self.state.bits[word].load(Relaxed) & bit == 0 {
            self.tickets[index].store(self.state.next.fetch_add(1, Relaxed), Relaxed);
            self.set(word, bit);
        }
        self.state.sleeping.load(SeqCst) != 0
    }

    fn set(&self, word: usize, bit: u64) {
        self.state.bits[word].fetch_or(bit, SeqCst);
        self.state.summary[word / 64].fetch_or(1 << (word % 64), SeqCst);
    }

    /// Takes every connection that is to be looked at, in the order in which they were posted. None is left out that was posted
    /// before one of them.
    pub fn take(&self, taken: &mut Taken) {
        taken.0.clear();
        self.scan(|posted| taken.0.push(posted));
        if taken.0.is_empty() {
            return;
        }
        // The scan may have met a connection after it had passed the place of one that was posted earlier: that is there now.
        let limit = self.state.next.load(SeqCst);
        self.scan(|posted| {
            if posted.ticket < limit {
                taken.0.push(posted);
            } else {
                // The same holds for what has come during this scan: that is for the next time.
                let index = posted.index as usize;
                self.set(index / 64, 1 << (index % 64));
            }
        });
        taken.0.sort_unstable();
    }

    /// Forgets what is to be looked at.
    pub fn forget(&self) {
        self.scan(|_| ());
    }

    /// Calls `visit` with every connection whose bit is set, and clears it.
    fn scan(&self, mut visit: impl FnMut(Posted)) {
        for (high, summary) in self.state.summary.iter().enumerate() {
            let mut words = if summary.load(Relaxed) == 0 { 0 } else { summary.swap(0, SeqCst) };
            while words != 0 {
                let word = high * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut bits = self.state.bits[word].swap(0, SeqCst);
                while bits != 0 {
                    let index = (word * 64) as u32 + bits.trailing_zeros();
                    visit(Posted { ticket: self.tickets[index as usize].load(Relaxed), index });
                    bits &= bits - 1;
                }
            }
        }
        fence(SeqCst);
    }

    /// Whether a connection is to be looked at.
    pub fn has_any(&self) -> bool {
        self.state.summary.iter().any(|summary| summary.load(Acquire) != 0)
    }

    /// The waiter is about to sleep: it looks once more at everything, and then at its doorbell.
    pub fn fall_asleep(&self) {
        self.state.sleeping.store(1, SeqCst);
        fence(SeqCst);
    }

    /// The waiter is awake.
    pub fn wake_up(&self) {
        self.state.sleeping.store(0, Relaxed);
    }

    /// Whether the doorbell is to be rung: one of those that find the waiter asleep does it.
    pub fn claim_wake_up(&self) -> bool {
        self.state.sleeping.load(Relaxed) != 0 && self.state.sleeping.swap(0, SeqCst) != 0
    }
}

impl Taken {
    /// The connections, once: the earliest first.
    pub fn drain(&mut self) -> impl Iterator<Item = u32> {
        self.0.drain(..).map(|posted| posted.index)
    }
}

/// Bytes of a table with a word for each connection, and number of such tables.
const TABLE: usize = STREAMS * size_of::<AtomicU64>();
const TABLES: usize = 2;
const LEN: usize = PLACES * size_of::<State>() + TABLES * TABLE;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_was_posted_is_taken_once() {
        let (inbox, _) = Inbox::create().unwrap();
        let place = inbox.place(PLACES - 1).unwrap();
        let posted = [4097, 63, 0, STREAMS as u32 - 1, 64];
        posted.into_iter().chain([64, 0]).for_each(|index| assert!(!place.post(index)));
        let mut taken = Taken::default();
        place.take(&mut taken);
        assert_eq!(taken.drain().collect::<Vec<_>>(), posted, "in the order in which they came");
        place.take(&mut taken);
        assert_eq!(taken.drain().count(), 0);
        assert!(!place.has_any() && inbox.place(PLACES).is_none());
        place.post(7);
        place.forget();
        assert!(!place.has_any());
    }

    #[test]
    fn none_is_taken_before_one_that_was_posted_earlier() {
        let (inbox, _) = Inbox::create().unwrap();
        let place = inbox.place(0).unwrap();
        const ROUNDS: u32 = 1000;
        // A scan passes the first one's place, is kept busy by others, and meets the second.
        let (first, second) = (0, STREAMS as u32 - 1);
        let others = || (64..STREAMS as u32 - 64).step_by(8);
        let done = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    others().for_each(|index| _ = place.post(index));
                    [first, second].into_iter().for_each(|index| _ = place.post(index));
                    while done.load(Acquire) != round {
                        std::thread::yield_now();
                    }
                }
            });
            let mut taken = Taken::default();
            let mut wrong = 0;
            for round in 1..=ROUNDS {
                let mut seen = Vec::new();
                while seen.len() < 2 {
                    place.take(&mut taken);
                    seen.extend(taken.drain().filter(|index| [first, second].contains(index)));
                }
                wrong += u32::from(seen != [first, second]);
                done.store(round, Release);
            }
            assert_eq!(wrong, 0, "of {ROUNDS} rounds");
        });
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
            let mut taken = Taken::default();
            let mut missing: BTreeSet<u32> = (0..values.len() as u32).collect();
            while !missing.is_empty() {
                place.take(&mut taken);
                let complete = taken.drain().filter(|&index| values[index as usize].load(Acquire) == ROUNDS);
                complete.for_each(|index| _ = missing.remove(&index));
            }
        });
    }
}
