//! Opening the device.
#![allow(unsafe_code)]

use super::channel::{Channel, ReceivedFd};
use crate::descriptors::{self, OwnFd};
use crate::endpoint::Endpoint;
use crate::memory;
use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage, WORKER_PAGE_LEN, WorkerPage};
use rdmesh_uverbs::session::{FdUse, OpenReply, RequestKind, SOCKET_NAME, Token};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::FromBytes;

/// A device context: one `open` of the device, and its duplicates.
pub(crate) struct Context {
    page: ContextPage,
    worker: WorkerPage,
    wake: OwnFd,
    token: Token,
    /// Device and inode of the queue memory, which the command descriptor is: tells it from a later one of the same number.
    queues: (u64, u64),
    /// How many descriptors of the program's are this context's.
    descriptors: AtomicUsize,
    endpoint: &'static Endpoint,
    state: Mutex<State>,
}

/// What one command at a time uses.
pub(super) struct State {
    pub(super) channel: Channel,
    /// The connection that opened the device, until the program has closed its last descriptor.
    opener: Option<OwnFd>,
    /// The connection of a forked child, and the fork that it belongs to.
    own: Option<(u32, OwnFd)>,
    /// The fork in which the device was opened.
    born: u32,
}

/// Opens the device; returns its command descriptor.
pub(crate) fn open(endpoint: &'static Endpoint, close_on_exec: bool) -> Result<RawFd, Errno> {
    let _gate = memory::gate();
    let socket = connect(endpoint)?;
    let mut channel = Channel::new();
    let reply = channel.call(socket.as_fd(), RequestKind::Open, &[], &[], None)?;
    let OpenReply { token, .. } = OpenReply::read_from_prefix(reply.response()).map_err(|_| Errno::IO)?.0;
    let mut fds = reply.into_fds().into_iter().filter(|fd| fd.purpose == FdUse::Open);
    let mut next = || fds.next().ok_or(Errno::IO);
    let (page, worker, wake, queues) = (next()?, next()?, next()?, next()?.fd);
    let stat = rustix::fs::fstat(&queues)?;
    let context = Context {
        page: map(&page, CONTEXT_PAGE_LEN, true).and_then(ContextPage::new).ok_or(Errno::IO)?,
        worker: map(&worker, WORKER_PAGE_LEN, false).and_then(WorkerPage::new).ok_or(Errno::IO)?,
        wake: OwnFd::new(wake.fd),
        token,
        queues: (stat.st_dev, stat.st_ino),
        descriptors: AtomicUsize::new(0),
        endpoint,
        state: Mutex::new(State { channel, opener: Some(OwnFd::new(socket)), own: None, born: memory::forks() }),
    };
    if !close_on_exec {
        rustix::io::fcntl_setfd(&queues, rustix::io::FdFlags::empty())?;
    }
    let number = queues.into_raw_fd();
    descriptors::set(number, Some(Arc::new(context)));
    Ok(number)
}

impl Context {
    pub(super) fn page(&self) -> &ContextPage {
        &self.page
    }

    pub(super) fn worker(&self) -> &WorkerPage {
        &self.worker
    }

    /// Wakes the router's worker.
    #[cold]
    pub(super) fn wake(&self) {
        // A full counter wakes it as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Whether `fd` still is this context's command descriptor: not so where the program closed it behind our back.
    pub(crate) fn owns(&self, fd: BorrowedFd<'_>) -> bool {
        rustix::fs::fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.queues)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program has one more descriptor of this context.
    pub(crate) fn gained_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::AcqRel);
    }

    /// The program has one less; with the last one the connections end, and with them the device.
    pub(crate) fn lost_descriptor(&self) {
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut state = self.lock();
            state.opener = None;
            state.own = None;
        }
    }

    /// The connection for this process's commands: the opener's, or after a fork one that is made now. EBADF where the
    /// program has closed the device.
    pub(super) fn connection(&self, state: &mut State) -> Result<RawFd, Errno> {
        let now = memory::forks();
        let opener = state.opener.as_ref().ok_or(Errno::BADF)?;
        if state.born == now {
            return Ok(opener.as_fd().as_raw_fd());
        }
        match &state.own {
            Some((fork, own)) if *fork == now => Ok(own.as_fd().as_raw_fd()),
            _ => {
                let own = connect(self.endpoint)?;
                state.channel.call(own.as_fd(), RequestKind::Attach, &self.token.0, &[], None)?;
                let own = OwnFd::new(own);
                let number = own.as_fd().as_raw_fd();
                state.own = Some((now, own));
                Ok(number)
            }
        }
    }
}

fn map(fd: &ReceivedFd, len: usize, writable: bool) -> Option<SharedMemory> {
    SharedMemory::map(fd.fd.as_fd(), 0, len, writable).ok()
}

fn connect(endpoint: &Endpoint) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let connected = match SocketAddrUnix::new(endpoint.socket()) {
        Ok(address) => rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)),
        // The path is longer than a socket address holds: name the directory by a descriptor.
        Err(_) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(CWD, endpoint.directory(), flags, Mode::empty())?;
            let path = format!("/proc/self/fd/{}/{SOCKET_NAME}", directory.as_raw_fd());
            let address = SocketAddrUnix::new(path)?;
            rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))
        }
    };
    match connected {
        Ok(()) => Ok(socket),
        // No router behind the socket: to the program, a device that has gone.
        Err(Errno::CONNREFUSED | Errno::NOENT | Errno::CONNRESET) => Err(Errno::NODEV),
        Err(errno) => Err(errno),
    }
}

/// Borrows a descriptor that the program named.
///
/// # Safety
/// `fd` must stay open for as long as the result is used, or the call that uses it may fail.
pub(super) unsafe fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: by the contract; a number that is not open gives EBADF, nothing worse.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Closes a descriptor that the program was never told of.
pub(super) fn discard(fd: RawFd) {
    // SAFETY: this library received the descriptor and nobody else knows its number.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}
