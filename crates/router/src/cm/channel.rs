//! An event channel: what a program gets from opening `/dev/infiniband/rdma_cm`.
//!
//! Its descriptor is one end of a socket in which a byte lies for every event that waits, so that the kernel itself lets
//! the program poll for events and wait for them. The router puts the bytes in and takes them out again.

use super::event::Pending;
use crate::session::EndpointId;
use rdmesh_nic::Plain;
use rdmesh_uverbs::session::Token;
use rustix::io::{self, Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

/// A channel.
pub(super) struct Channel {
    pub(super) endpoint: EndpointId,
    /// The process that opened it.
    pub(super) pid: i32,
    /// Known to the program that opened it, for its children.
    pub(super) token: Token,
    /// The identifiers whose events come here.
    pub(super) ids: BTreeSet<u32>,
    /// Its way to machines outside rdmesh; none before it is needed.
    pub(super) plain: Option<Option<Plain>>,
    waiting: VecDeque<Pending>,
    signal: Signal,
}

impl Channel {
    /// A channel, and the program's descriptor.
    pub(super) fn new(endpoint: EndpointId, pid: i32, token: Token) -> io::Result<(Self, OwnedFd)> {
        let (signal, program) = Signal::new()?;
        Ok((
            Self { endpoint, pid, token, ids: BTreeSet::new(), plain: None, waiting: VecDeque::new(), signal },
            program,
        ))
    }

    /// Adds an event.
    pub(super) fn push(&mut self, event: Pending) {
        self.waiting.push_back(event);
        self.signal.set(self.waiting.len());
    }

    /// Takes the oldest event.
    pub(super) fn pop(&mut self) -> Option<Pending> {
        let event = self.waiting.pop_front();
        self.signal.set(self.waiting.len());
        event
    }

    /// Takes the events out for which `is_wanted`.
    pub(super) fn withdraw(&mut self, is_wanted: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let mut taken = Vec::new();
        for event in std::mem::take(&mut self.waiting) {
            if is_wanted(&event) { taken.push(event) } else { self.waiting.push_back(event) }
        }
        self.signal.set(self.waiting.len());
        taken
    }

    /// How many events wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// The bytes in the program's descriptor.
#[derive(Debug)]
struct Signal {
    ours: OwnedFd,
    theirs: OwnedFd,
    bytes: usize,
}

impl Signal {
    fn new() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Nothing comes back: whatever a program puts in here goes nowhere.
        shutdown(&ours, Shutdown::Read)?;
        let program = fcntl_dupfd_cloexec(&theirs, 0)?;
        Ok((Self { ours, theirs, bytes: 0 }, program))
    }

    /// Makes it as many bytes as there are events, as far as the socket holds them.
    fn set(&mut self, events: usize) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while self.bytes < events && io::retry_on_intr(|| send(&self.ours, &[1], flags)).is_ok() {
            self.bytes += 1;
        }
        while self.bytes > events {
            // A program that has read its byte away sees an event less; that is all.
            let _: Result<_, Errno> = io::retry_on_intr(|| recv(&self.theirs, &mut [0; 1], RecvFlags::DONTWAIT));
            self.bytes -= 1;
        }
    }
}
