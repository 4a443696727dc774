//! Opening the device.

use super::events::Events;
use super::filling::FillingChannel;
use super::lease::Lease;
use crate::descriptors::{self, Device};
use crate::memory;
use crate::polled::Polled;
use rdmesh_preload::channel::ReceivedFd;
use rdmesh_preload::link::{State, connect, identity};
use rdmesh_preload::settings::settings;
use rdmesh_preload::{Channel, Endpoint, Link, OwnFd};
use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage, WORKERS_LEN, WorkerFlags};
use rdmesh_uverbs::ring::QueueFile;
use rdmesh_uverbs::session::{FdUse, OpenReply, RequestKind};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd};
use rustix::io::Errno;
use std::sync::{Arc, MutexGuard};
use zerocopy::FromBytes;

pub(super) use super::link::borrow;

/// A device context: one `open` of the device, and its duplicates.
pub(crate) struct Context {
    polled: Polled,
    wake: OwnFd,
    /// The queue memory, which the command descriptor is too.
    queues: OwnFd,
    identity: (u64, u64),
    events: Events,
    link: Link<FillingChannel>,
    lease: Lease,
}

/// Opens the device; returns its command descriptor.
pub(crate) fn open(endpoint: &'static Endpoint, close_on_exec: bool) -> Result<RawFd, Errno> {
    let _gate = memory::gate();
    let socket = connect(endpoint)?;
    let mut channel = Channel::new();
    // Made here, so that they are this process's memory and not the router's.
    let (page, page_fd) = SharedMemory::create("rdmesh-context", CONTEXT_PAGE_LEN)?;
    let queues = QueueFile::memfd()?;
    let fds = [page_fd.as_fd(), queues.as_fd()];
    let reply = channel.call(socket.as_fd(), RequestKind::Open, &[], &[], &fds)?;
    let OpenReply { token, .. } = OpenReply::read_from_prefix(reply.response()).map_err(|_| Errno::IO)?.0;
    let mut fds = reply.into_fds().into_iter().filter(|fd| fd.purpose == FdUse::Open);
    let mut next = || fds.next().ok_or(Errno::IO);
    let (workers, wake) = (next()?, next()?);
    let page = ContextPage::new(page).ok_or(Errno::IO)?;
    let workers = map(&workers, WORKERS_LEN).and_then(WorkerFlags::new).ok_or(Errno::IO)?;
    let number = rustix::io::fcntl_dupfd_cloexec(&queues, 0)?;
    let context = Context {
        polled: Polled::new(page, workers),
        wake: OwnFd::new(wake.fd),
        identity: identity(queues.as_fd())?,
        queues: OwnFd::new(queues),
        events: Events::default(),
        lease: Lease::default(),
        link: Link::new(endpoint, socket, FillingChannel::new(channel), RequestKind::Attach, token),
    };
    if let Some(term) = settings().linger() {
        context.lease.ask(&context, term)?;
    }
    if !close_on_exec {
        rustix::io::fcntl_setfd(&number, rustix::io::FdFlags::empty())?;
    }
    let number = number.into_raw_fd();
    descriptors::set(number, Arc::new(context));
    Ok(number)
}

impl Context {
    pub(super) fn polled(&self) -> &Polled {
        &self.polled
    }

    pub(super) fn page(&self) -> &ContextPage {
        self.polled.page()
    }

    /// The queue memory.
    pub(super) fn queues(&self) -> BorrowedFd<'_> {
        self.queues.as_fd()
    }

    /// Maps a part of the queue memory, for reading and writing.
    pub(crate) fn map_queues(&self, offset: u64, len: usize) -> Result<SharedMemory, Errno> {
        Ok(SharedMemory::map(self.queues(), offset, len, true)?)
    }

    /// Has the router execute a command of this library's own, and gives its response to `consume`.
    pub(crate) fn call<T>(&self, kind: RequestKind, body: &[u8], consume: impl FnOnce(&[u8]) -> T) -> Result<T, Errno> {
        self.link.call(kind, body, |reply| consume(reply.response()))
    }

    pub(super) fn workers(&self) -> &WorkerFlags {
        self.polled.workers()
    }

    /// Wakes the router's worker.
    #[cold]
    pub(super) fn wake(&self) {
        // A full counter wakes it as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Whether `fd` still is this context's command descriptor: not if the program closed it without the replaced functions.
    pub(super) fn owns(&self, fd: BorrowedFd<'_>) -> bool {
        identity(fd) == Ok(self.identity)
    }

    /// Its lease.
    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The descriptor of its asynchronous events.
    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    pub(crate) fn link(&self) -> &Link<FillingChannel> {
        &self.link
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<FillingChannel>> {
        self.link.lock()
    }

    /// See [`Link::connection`].
    pub(super) fn connection(&self, state: &mut State<FillingChannel>) -> Result<RawFd, Errno> {
        self.link.connection(state)
    }
}

impl Device for Context {
    fn gained_descriptor(&self) {
        if self.link.gained_descriptor() {
            memory::device_opened();
        }
    }

    fn lost_descriptor(&self) {
        let farewell = self.lease.is_asked_for().then(Lease::farewell);
        let farewell = farewell.as_ref().map(|body| (RequestKind::Linger, &body[..]));
        if self.link.lost_descriptor(farewell) {
            memory::device_closed();
        }
    }

    fn polled(&self) -> Option<&Polled> {
        Some(&self.polled)
    }
}

fn map(fd: &ReceivedFd, len: usize) -> Option<SharedMemory> {
    SharedMemory::map(fd.fd.as_fd(), 0, len, false).ok()
}
