//! Links: this process and another that share accelerated connections.

use super::Process;
use super::inbox::{Inbox, PLACES};
use super::message::{Message, VERSION};
use crate::ring::layout::Waiting;
use crate::wake;
use rdmesh_preload::OwnFd;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A link, by a Unix socket between the two processes. Both run as the same user.
pub(crate) struct Link {
    socket: OwnFd,
    /// The other's inbox, once it has said hello.
    inbox: OnceLock<Inbox>,
    /// The other's doorbells, as far as it has sent them.
    doorbells: [OnceLock<OwnFd>; PLACES],
    /// Doorbells that were to be rung before they had arrived.
    missed: [AtomicU64; PLACES / 64],
    /// Doorbells of this process that the other has been sent.
    sent: [AtomicU64; PLACES / 64],
    is_dead: AtomicBool,
}

impl Link {
    /// A link by `socket`. Says hello.
    pub(crate) fn new(socket: OwnedFd, process: &Process) -> Result<Self, Errno> {
        Message::Hello { version: VERSION }.send(socket.as_fd(), &[process.inbox_fd()])?;
        Ok(Self {
            socket: OwnFd::new(socket),
            inbox: OnceLock::new(),
            doorbells: [const { OnceLock::new() }; PLACES],
            missed: [const { AtomicU64::new(0) }; PLACES / 64],
            sent: [const { AtomicU64::new(0) }; PLACES / 64],
            is_dead: AtomicBool::new(false),
        })
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the other process has ended, or broken the rules.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// No message comes any more.
    pub(crate) fn die(&self) {
        self.is_dead.store(true, Ordering::Release);
    }

    /// The other process's inbox has come.
    pub(crate) fn take_inbox(&self, fd: &OwnedFd) -> Result<(), Errno> {
        let inbox = Inbox::map(fd.as_fd()).ok_or(Errno::PROTO)?;
        self.inbox.set(inbox).map_err(|_| Errno::PROTO)
    }

    /// A doorbell of the other process has come.
    pub(crate) fn take_doorbell(&self, waiter: u32, fd: OwnedFd) -> Result<(), Errno> {
        let place = self.doorbells.get(waiter as usize).ok_or(Errno::PROTO)?;
        // It may be a descriptor of any kind: nothing that is done with it may wait.
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        place.set(OwnFd::new(fd)).map_err(|_| Errno::PROTO)?;
        let (word, bit) = (waiter as usize / 64, 1 << (waiter % 64));
        if self.missed[word].fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
            self.ring(waiter);
        }
        Ok(())
    }

    /// Sends the other process the doorbell of a waiter of this one, unless it has it.
    pub(crate) fn announce(&self, process: &Process, waiter: u32) -> Result<(), Errno> {
        let (word, bit) = (waiter as usize / 64 % self.sent.len(), 1 << (waiter % 64));
        if self.sent[word].load(Ordering::Acquire) & bit != 0 {
            return Ok(());
        }
        let doorbell = process.doorbells().get(waiter).ok_or(Errno::INVAL)?;
        Message::Doorbell { waiter }.send(self.socket(), &[OwnFd::as_fd(&doorbell)])?;
        self.sent[word].fetch_or(bit, Ordering::Release);
        Ok(())
    }

    /// Tells the waiters of the other process in `waiting` to look at their connection. What they are to see has been stored,
    /// and a full fence after it.
    pub(crate) fn signal(self: &Arc<Self>, waiting: &Waiting) {
        let Some(inbox) = self.inbox.get() else { return };
        for waiter in &waiting.waiters {
            let Some(id) = waiter.load(Ordering::Acquire).checked_sub(1) else { continue };
            let index = waiting.index.load(Ordering::Relaxed);
            if inbox.place(id as usize).is_some_and(|place| place.post(index)) {
                wake::request(self, id);
            }
        }
    }

    /// Wakes a waiter of the other process if it still sleeps.
    pub(crate) fn wake(&self, waiter: u32) {
        let place = self.inbox.get().and_then(|inbox| inbox.place(waiter as usize));
        if place.is_some_and(super::inbox::Place::claim_wake_up) {
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
