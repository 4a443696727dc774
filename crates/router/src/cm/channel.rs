//! Event channels: the objects behind open files of `/dev/infiniband/rdma_cm`.
//!
//! Its descriptor is one end of a socket that holds a byte for every event that waits, so that the program polls and waits for
//! events with the kernel's own calls. The router puts the bytes in and takes them out again.

use super::event::Pending;
use crate::endpoint::EndpointId;
use rdmesh_nic::ExternalPort;
use rdmesh_uverbs::session::Token;
use rustix::io::{self, Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
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
    /// Its path to external peers; none before it is needed.
    pub(super) external: Option<Option<ExternalPort>>,
    waiting: BTreeMap<u64, Pending>,
    /// Identifier, group and place of each of them.
    owners: BTreeSet<Owner>,
    /// The place of the next.
    next: u64,
    signal: Signal,
}

impl Channel {
    /// A channel, and the program's descriptor.
    pub(super) fn new(endpoint: EndpointId, pid: i32, token: Token) -> io::Result<(Self, OwnedFd)> {
        let (signal, program) = Signal::new()?;
        let channel = Self {
            endpoint,
            pid,
            token,
            ids: BTreeSet::new(),
            external: None,
            waiting: BTreeMap::new(),
            owners: BTreeSet::new(),
            next: 0,
            signal,
        };
        Ok((channel, program))
    }

    /// Adds an event.
    pub(super) fn push(&mut self, event: Pending) {
        self.owners.insert((event.id, event.group, self.next));
        self.waiting.insert(self.next, event);
        self.next += 1;
        self.signal.set(self.waiting.len());
    }

    /// Takes the oldest event.
    pub(super) fn pop(&mut self) -> Option<Pending> {
        let (place, event) = self.waiting.pop_first()?;
        self.owners.remove(&(event.id, event.group, place));
        self.signal.set(self.waiting.len());
        Some(event)
    }

    /// Takes the events of an identifier and of its groups out, the oldest first.
    pub(super) fn withdraw(&mut self, id: u32) -> Vec<Pending> {
        self.take(all_of(id))
    }

    /// Takes those of one group of an identifier out.
    pub(super) fn withdraw_group(&mut self, id: u32, group: u32) -> Vec<Pending> {
        self.take(of_group(id, group))
    }

    /// Whether events of an identifier or of its groups wait.
    pub(super) fn has_events_of(&self, id: u32) -> bool {
        self.owners.range(all_of(id)).next().is_some()
    }

    /// Whether events of one group of an identifier wait.
    pub(super) fn has_events_of_group(&self, id: u32, group: u32) -> bool {
        self.owners.range(of_group(id, group)).next().is_some()
    }

    fn take(&mut self, owners: RangeInclusive<Owner>) -> Vec<Pending> {
        let owned: Vec<_> = self.owners.range(owners).copied().collect();
        for owner in &owned {
            self.owners.remove(owner);
        }
        let mut places: Vec<u64> = owned.into_iter().map(|(_, _, place)| place).collect();
        places.sort_unstable();
        let taken = places.iter().filter_map(|place| self.waiting.remove(place)).collect();
        self.signal.set(self.waiting.len());
        taken
    }

    /// Number of waiting events.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// Identifier, group and place of an event.
type Owner = (u32, Option<u32>, u64);

fn all_of(id: u32) -> RangeInclusive<Owner> {
    (id, None, 0)..=(id, Some(u32::MAX), u64::MAX)
}

fn of_group(id: u32, group: u32) -> RangeInclusive<Owner> {
    (id, Some(group), 0)..=(id, Some(group), u64::MAX)
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
        // One direction only: data that a program writes here is discarded.
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
            // A program that has read the byte itself only misses a sign of an event.
            let _: Result<_, Errno> = io::retry_on_intr(|| recv(&self.theirs, &mut [0; 1], RecvFlags::DONTWAIT));
            self.bytes -= 1;
        }
    }
}
