//! Process of the endpoint, linked to the relay by a Unix socket as two processes of one user are linked to each other.

use rdmesh_streams::inbox::{Inbox, Place};
use rdmesh_streams::message::{Message, VERSION};
use rdmesh_streams::peer::Peer;
use rdmesh_streams::ring::layout::Waiting;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;

/// A process, and the relay's inbox for it.
pub(crate) struct Process {
    socket: OwnedFd,
    peer: Peer<OwnedFd>,
    inbox: Inbox,
    doorbells: usize,
}

/// The relay's only waiter, which has a place in each inbox.
const WAITER: u32 = 0;

impl Process {
    /// The process that has connected by `socket`. Says hello; `doorbell` wakes the relay.
    pub(crate) fn new(socket: OwnedFd, doorbell: BorrowedFd<'_>) -> Result<Self, Errno> {
        let (inbox, inbox_fd) = Inbox::create()?;
        Message::Hello { version: VERSION }.send(socket.as_fd(), &[inbox_fd.as_fd()])?;
        Message::Doorbell { waiter: WAITER }.send(socket.as_fd(), &[doorbell])?;
        Ok(Self { socket, peer: Peer::default(), inbox, doorbells: 0 })
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Where it says which streams to look at.
    pub(crate) fn place(&self) -> Place<'_> {
        self.inbox.place(WAITER as usize).expect("an inbox has places")
    }

    /// The process, as far as it can be woken.
    pub(crate) fn peer(&self) -> &Peer<OwnedFd> {
        &self.peer
    }

    /// Takes the doorbell of a waiter. EPROTO where it is no eventfd: what the router writes may mean something to another file.
    pub(crate) fn take_doorbell(&mut self, waiter: u32, fd: OwnedFd) -> Result<(), Errno> {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        if rustix::fs::readlink(link, Vec::new())?.as_bytes() != b"anon_inode:[eventfd]" {
            return Err(Errno::PROTO);
        }
        self.peer.take_doorbell(waiter, fd, |fd| fd)?;
        self.doorbells += 1;
        Ok(())
    }

    /// Doorbells that it has sent.
    pub(crate) fn doorbells(&self) -> usize {
        self.doorbells
    }

    /// Says something; false where the process does not listen, and is to be given up.
    pub(crate) fn say(&self, message: Message) -> bool {
        message.send(self.socket(), &[]).is_ok()
    }

    /// Index of the accepted connection whose ends have this hash.
    pub(crate) fn find_accepted(&self, key: u64) -> Option<u32> {
        self.peer.inbox()?.find_accepted(key)
    }

    /// Tells its waiters in `waiting` to look at their connection.
    pub(crate) fn signal(&self, waiting: &Waiting) {
        self.peer.signal(waiting, |waiter| self.peer.wake(waiter));
    }

    /// Whether socket `fd` is of the network namespace that the process has connected from.
    pub(crate) fn shares_namespace(&self, fd: BorrowedFd<'_>) -> bool {
        let cookie = |fd| crate::raw::netns_cookie(fd);
        sockopt::socket_protocol(fd).is_ok_and(|protocol| protocol == Some(rustix::net::ipproto::TCP))
            && cookie(fd) == cookie(self.socket())
    }
}
