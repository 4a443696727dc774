//! Opening the device.

use super::events::Events;
use super::filling::FillingChannel;
use crate::descriptors::{Kind, OwnFd, TABLE};
use crate::linger::Lease;
use crate::{memory, polling};
use rdmesh_preload::channel::ReceivedFd;
use rdmesh_preload::link::{State, connect, identity};
use rdmesh_preload::settings::settings;
use rdmesh_preload::{Channel, Endpoint, Link};
use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage, WORKERS_LEN, WorkerFlags};
use rdmesh_uverbs::ring::QueueFile;
use rdmesh_uverbs::session::{FdUse, OpenReply, RequestKind};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use zerocopy::FromBytes;

pub(super) use super::link::borrow;

/// A device context: one `open` of the device, and its duplicates.
pub(crate) struct Context {
    page: ContextPage,
    workers: WorkerFlags,
    wake: OwnFd,
    /// The queue memory, which the command descriptor is too.
    queues: OwnFd,
    identity: (u64, u64),
    events: Events,
    link: Link<FillingChannel>,
    lease: Lease,
    /// Address of a completion queue of the program, by which its functions can be found; 0 for none, all ones for found.
    queue: AtomicU64,
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
    let number = rustix::io::fcntl_dupfd_cloexec(&queues, 0)?;
    let context = Context {
        page: ContextPage::new(page).ok_or(Errno::IO)?,
        workers: map(&workers, WORKERS_LEN).and_then(WorkerFlags::new).ok_or(Errno::IO)?,
        wake: OwnFd::new(wake.fd),
        identity: identity(queues.as_fd())?,
        queues: OwnFd::new(queues),
        events: Events::default(),
        queue: AtomicU64::new(0),
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
    TABLE.set(number, Kind::Device(Arc::new(context)));
    Ok(number)
}

impl Context {
    /// The program's poll functions are wrapped.
    pub(crate) fn functions_are_wrapped(&self) {
        self.queue.store(u64::MAX, Ordering::Relaxed);
    }

    /// The program is making a completion queue at `address`.
    pub(super) fn has_queue(&self, address: u64) {
        let _ = self.queue.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Looks for the program's poll functions, once, after it has made its first completion queue.
    pub(super) fn find_functions(&self) {
        let address = self.queue.load(Ordering::Relaxed);
        if address != 0 && address != u64::MAX {
            self.queue.store(u64::MAX, Ordering::Relaxed);
            polling::adopt(address, self);
        }
    }

    pub(super) fn page(&self) -> &ContextPage {
        &self.page
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
        &self.workers
    }

    /// Whether the router says that other programs want the processors.
    pub(crate) fn is_contended(&self) -> bool {
        self.workers.is_contended()
    }

    /// Number of completions, and of WRITEs by peers.
    pub(crate) fn arrivals(&self) -> u32 {
        self.page.arrivals()
    }

    /// Sleeps until there are more than `seen`, but not longer than `limit`.
    pub(crate) fn wait_arrival(&self, seen: u32, limit: Duration) {
        self.page.wait_arrival(seen, limit);
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

    /// The program has one more descriptor of this context.
    pub(crate) fn gained_descriptor(&self) {
        if self.link.gained_descriptor() {
            memory::device_opened();
        }
    }

    /// The program has one less.
    pub(crate) fn lost_descriptor(&self) {
        let farewell = self.lease.is_asked_for().then(Lease::farewell);
        let farewell = farewell.as_ref().map(|body| (RequestKind::Linger, &body[..]));
        if self.link.lost_descriptor(farewell) {
            memory::device_closed();
        }
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

fn map(fd: &ReceivedFd, len: usize) -> Option<SharedMemory> {
    SharedMemory::map(fd.fd.as_fd(), 0, len, false).ok()
}
