//! Connections to the router: one for each open object, and one for each forked child that uses it.
#![allow(unsafe_code)]

use crate::channel::{Channel, Reply};
use crate::{Endpoint, OwnFd, process};
use rdmesh_uverbs::session::{RequestKind, SOCKET_NAME, Token};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The link of an open object, such as a device, to the router. `C` is a [`Channel`], or has one.
pub struct Link<C = Channel> {
    endpoint: &'static Endpoint,
    token: Token,
    /// The request by which a child attaches.
    attach: RequestKind,
    /// Number of the program's descriptors for the object.
    descriptors: AtomicUsize,
    state: Mutex<State<C>>,
}

/// State that one command at a time uses.
pub struct State<C = Channel> {
    /// The requests and replies.
    pub channel: C,
    /// The connection that opened the object, until the program has closed its last descriptor.
    opener: Option<OwnFd>,
    /// The connection of a forked child, and the fork that it belongs to.
    own: Option<(u32, OwnFd)>,
    /// The fork in which the object was opened.
    born: u32,
}

impl<C: AsMut<Channel>> Link<C> {
    /// Takes over the connection on which the object was opened. `attach` is the request that goes with `token`.
    pub fn new(endpoint: &'static Endpoint, socket: OwnedFd, channel: C, attach: RequestKind, token: Token) -> Self {
        let state = State { channel, opener: Some(OwnFd::new(socket)), own: None, born: process::forks() };
        Self { endpoint, token, attach, descriptors: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    /// The state, until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection for this process's commands: the opener's, or after a fork one that is made now. EBADF where the
    /// program has closed the object.
    pub fn connection(&self, state: &mut State<C>) -> Result<RawFd, Errno> {
        let now = process::forks();
        let opener = state.opener.as_ref().ok_or(Errno::BADF)?;
        if state.born == now {
            return Ok(opener.as_fd().as_raw_fd());
        }
        match &state.own {
            Some((fork, own)) if *fork == now => Ok(own.as_fd().as_raw_fd()),
            _ => {
                let own = connect(self.endpoint)?;
                state.channel.as_mut().call(own.as_fd(), self.attach, &self.token.0, &[], &[])?;
                let own = OwnFd::new(own);
                let number = own.as_fd().as_raw_fd();
                state.own = Some((now, own));
                Ok(number)
            }
        }
    }

    /// Sends a request and gives its reply to `consume`.
    pub fn call<T>(&self, kind: RequestKind, body: &[u8], consume: impl FnOnce(Reply<'_>) -> T) -> Result<T, Errno> {
        self.call_with(kind, body, &[], consume)
    }

    /// The same with descriptors.
    pub fn call_with<T>(
        &self,
        kind: RequestKind,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        consume: impl FnOnce(Reply<'_>) -> T,
    ) -> Result<T, Errno> {
        let mut state = self.lock();
        let connection = self.connection(&mut state)?;
        // SAFETY: the connection stays open while the state is locked.
        let socket = unsafe { borrow(connection) };
        state.channel.as_mut().call(socket, kind, body, &[], fds).map(consume)
    }

    /// The program has one more descriptor of the object; returns whether it had none.
    pub fn gained_descriptor(&self) -> bool {
        self.descriptors.fetch_add(1, Ordering::AcqRel) == 0
    }

    /// The program has one less; with the last one the connections end, and with them the object. Returns whether it was the
    /// last. The process that opened the object sends the `farewell` before that.
    pub fn lost_descriptor(&self, farewell: Option<(RequestKind, &[u8])>) -> bool {
        let is_last = self.descriptors.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            let mut state = self.lock();
            let opener = state.opener.take();
            if let (Some(opener), Some((kind, body))) = (&opener, farewell)
                && state.born == process::forks()
            {
                // A router that refuses it, or has gone, has nothing to keep.
                let _ = state.channel.as_mut().call(opener.as_fd(), kind, body, &[], &[]);
            }
            drop(opener);
            state.own = None;
        }
        is_last
    }
}

/// Device and inode of an open file: tells it from a later one of the same number.
pub fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Connects to the router.
pub fn connect(endpoint: &Endpoint) -> Result<OwnedFd, Errno> {
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
pub unsafe fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: by the contract; a number that is not open gives EBADF, nothing worse.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Closes a descriptor that the program was never told of.
pub fn discard(fd: RawFd) {
    // SAFETY: this library received the descriptor and no other code knows its number.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}
