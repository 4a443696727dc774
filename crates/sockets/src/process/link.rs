//! Links: this process and another that share accelerated connections.

use super::Process;
use crate::wake;
use rdmesh_preload::OwnFd;
use rdmesh_streams::inbox::PLACES;
use rdmesh_streams::message::{Message, VERSION};
use rdmesh_streams::peer::Peer;
use rdmesh_streams::ring::layout::Waiting;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A link, by a Unix socket between the two processes. Both run as the same user, or the other one is the relay.
pub(crate) struct Link {
    is_relay: bool,
    socket: OwnFd,
    /// How the other process is told of something, and woken.
    peer: Peer<OwnFd>,
    /// Doorbells of this process that the other has been sent.
    sent: [AtomicU64; PLACES / 64],
    is_dead: AtomicBool,
}

impl Link {
    /// A link by `socket`. Says hello.
    pub(crate) fn new(socket: OwnedFd, process: &Process, is_relay: bool) -> Result<Self, Errno> {
        Message::Hello { version: VERSION }.send(socket.as_fd(), &[process.inbox_fd()])?;
        Ok(Self {
            is_relay,
            socket: OwnFd::new(socket),
            peer: Peer::default(),
            sent: [const { AtomicU64::new(0) }; PLACES / 64],
            is_dead: AtomicBool::new(false),
        })
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the other process is the endpoint's relay.
    pub(crate) fn is_relay(&self) -> bool {
        self.is_relay
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
        self.peer.take_inbox(fd)
    }

    /// A doorbell of the other process has come.
    pub(crate) fn take_doorbell(&self, waiter: u32, fd: OwnedFd) -> Result<(), Errno> {
        self.peer.take_doorbell(waiter, fd, OwnFd::new)
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
        self.peer.signal(waiting, |waiter| wake::request(self, waiter));
    }

    /// Wakes a waiter of the other process if it still sleeps.
    pub(crate) fn wake(&self, waiter: u32) {
        self.peer.wake(waiter);
    }
}
