//! Process at the other end of a link, as far as it can be told of something and be woken.

use crate::inbox::{Inbox, PLACES};
use crate::ring::layout::Waiting;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The process; `F` owns its doorbells.
pub struct Peer<F> {
    /// Its inbox, once it has said hello.
    inbox: OnceLock<Inbox>,
    /// Its doorbells, as far as it has sent them.
    doorbells: [OnceLock<F>; PLACES],
    /// Doorbells that were to be rung before they had arrived.
    missed: [AtomicU64; PLACES / 64],
}

impl<F> Default for Peer<F> {
    fn default() -> Self {
        Self {
            inbox: OnceLock::new(),
            doorbells: [const { OnceLock::new() }; PLACES],
            missed: [const { AtomicU64::new(0) }; PLACES / 64],
        }
    }
}

impl<F: AsFd> Peer<F> {
    /// Its inbox has come. EPROTO where it has sent one before, or what it has sent is none.
    pub fn take_inbox(&self, fd: &OwnedFd) -> Result<(), Errno> {
        let inbox = Inbox::map(fd.as_fd()).ok_or(Errno::PROTO)?;
        self.inbox.set(inbox).map_err(|_| Errno::PROTO)
    }

    /// Its inbox; none before it has said hello.
    pub fn inbox(&self) -> Option<&Inbox> {
        self.inbox.get()
    }

    /// Doorbell of its waiter `waiter` has come; `keep` takes the descriptor over.
    pub fn take_doorbell(&self, waiter: u32, fd: OwnedFd, keep: impl FnOnce(OwnedFd) -> F) -> Result<(), Errno> {
        let place = self.doorbells.get(waiter as usize).ok_or(Errno::PROTO)?;
        // It may be a descriptor of any kind: nothing that is done with it may wait.
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        place.set(keep(fd)).map_err(|_| Errno::PROTO)?;
        let (word, bit) = (waiter as usize / 64, 1 << (waiter % 64));
        if self.missed[word].fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
            self.ring(waiter);
        }
        Ok(())
    }

    /// Tells its waiters in `waiting` to look at their connection, and calls `wake` with each that sleeps. What they are to see has
    /// been stored, and a full fence after it.
    pub fn signal(&self, waiting: &Waiting, mut wake: impl FnMut(u32)) {
        let Some(inbox) = self.inbox.get() else { return };
        for waiter in &waiting.waiters {
            let Some(id) = waiter.load(Ordering::Acquire).checked_sub(1) else { continue };
            let index = waiting.index.load(Ordering::Relaxed);
            if inbox.place(id as usize).is_some_and(|place| place.post(index)) {
                wake(id);
            }
        }
    }

    /// Wakes a waiter if it still sleeps.
    pub fn wake(&self, waiter: u32) {
        let place = self.inbox.get().and_then(|inbox| inbox.place(waiter as usize));
        if place.is_some_and(|place| place.claim_wake_up()) {
            self.ring(waiter);
        }
    }

    fn ring(&self, waiter: u32) {
        let Some(doorbell) = self.doorbells.get(waiter as usize) else { return };
        if doorbell.get().is_none() {
            self.missed[waiter as usize / 64].fetch_or(1 << (waiter % 64), Ordering::SeqCst);
        }
        // Looked at again: it may have come just now, and have found nothing missed.
        if let Some(doorbell) = doorbell.get() {
            let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
        }
    }
}
