//! Devices that were taken over from a process that has ended.

use crate::session::Lease;
use rdmesh_preload::OwnFd;
use rdmesh_preload::link::connect;
use rdmesh_preload::{Channel, endpoint, process};
use rdmesh_uverbs::session::chain;
use rdmesh_uverbs::session::linger::{Ask, Attached, Call, List, ObjectKind};
use rdmesh_uverbs::session::{RequestKind, Token};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use zerocopy::FromBytes;

/// A device that this process has taken over.
pub(super) struct Taken {
    socket: OwnFd,
    channel: Mutex<Channel>,
    attached: Attached,
    queues: OwnFd,
    arena: Option<OwnFd>,
    /// The fork after which it was taken over: a child has no part in it.
    born: u32,
}

impl Taken {
    /// Takes the device over whose lease has this token.
    pub(super) fn by(token: &Token) -> Result<Self, Errno> {
        let socket = connect(endpoint::present().ok_or(Errno::NODEV)?)?;
        let mut channel = Channel::new();
        let reply = channel.call(socket.as_fd(), RequestKind::Linger, &Call::Attach.body(&token.0), &[], &[])?;
        let attached = Attached::read_from_bytes(reply.response()).map_err(|_| Errno::IO)?;
        let mut fds = reply.into_fds().into_iter().map(|received| OwnFd::new(received.fd));
        let queues = fds.next().ok_or(Errno::IO)?;
        let (arena, socket, channel) = (fds.next(), OwnFd::new(socket), Mutex::new(channel));
        Ok(Self { socket, channel, attached, queues, arena, born: process::forks() })
    }

    /// Its contents, and the rest of its term.
    pub(super) fn attached(&self) -> &Attached {
        &self.attached
    }

    /// The memory of its queues.
    pub(super) fn queues(&self) -> BorrowedFd<'_> {
        self.queues.as_fd()
    }

    /// The memory of its regions.
    pub(super) fn arena(&self) -> Option<BorrowedFd<'_>> {
        self.arena.as_ref().map(OwnFd::as_fd)
    }

    /// Changes the term, which begins when this process ends.
    pub(super) fn extend(&self, term: Duration) -> Result<(), Errno> {
        let term = u64::try_from(term.as_millis()).unwrap_or(u64::MAX);
        self.call(RequestKind::Linger, &Call::Ask.body(&Ask { term })).map(drop)
    }

    /// Gives the lease up: the device ends with this process, or as soon as it is closed.
    pub(super) fn give_up(&self) -> Result<(), Errno> {
        self.call(RequestKind::Linger, &Lease::farewell()).map(drop)
    }

    /// Its objects of a kind from handle `from` on, at most as many as a message has.
    pub(super) fn list<T: FromBytes>(&self, kind: ObjectKind, from: u32) -> Result<Vec<T>, Errno> {
        let response = self.call(RequestKind::Linger, &Call::List.body(&List { kind: kind as u32, from }))?;
        Ok(response.chunks_exact(size_of::<T>()).filter_map(|bytes| T::read_from_bytes(bytes).ok()).collect())
    }

    /// Stops, resumes or ends a chain.
    pub(super) fn order(&self, call: chain::Call, group: u32) -> Result<(), Errno> {
        self.call(RequestKind::Chain, &call.body(&chain::Order { group, reserved: 0 })).map(drop)
    }

    fn call(&self, kind: RequestKind, body: &[u8]) -> Result<Vec<u8>, Errno> {
        if self.born != process::forks() {
            return Err(Errno::BADF);
        }
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.call(self.socket.as_fd(), kind, body, &[], &[]).map(|reply| reply.response().to_vec())
    }
}
