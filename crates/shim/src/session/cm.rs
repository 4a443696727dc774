//! rdma_cm channels, on the program's side: `/dev/infiniband/rdma_cm`.
//!
//! The program's descriptor is a socket that holds a byte for each event that waits: it polls as the kernel's does, so the poll
//! functions need not be replaced.
//!
//! * [`command`]: the framing of a `write()`.
#![allow(unsafe_code)]

mod command;

use super::Written;
use crate::descriptors::{self, Kind, TABLE};
use crate::interpose;
use crate::{memory, real};
use command::Command;
use rdmesh_preload::link::{borrow, connect, identity};
use rdmesh_preload::{Channel, Endpoint, Link};
use rdmesh_uverbs::session::{FdUse, OpenCmReply, RequestKind};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd};
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use std::sync::Arc;
use zerocopy::FromBytes;

/// One `open` of the device, and its duplicates.
pub(crate) struct CmChannel {
    /// The router's number for it.
    number: u32,
    /// The event socket, which the program's descriptor is.
    events: (u64, u64),
    link: Link,
}

/// Opens the device; returns the program's descriptor. Of `flags`, CLOEXEC and NONBLOCK matter.
pub(crate) fn open(endpoint: &'static Endpoint, flags: OFlags) -> Result<RawFd, Errno> {
    let _gate = memory::gate();
    let socket = connect(endpoint)?;
    let mut channel = Channel::new();
    let reply = channel.call(socket.as_fd(), RequestKind::OpenCm, &[], &[], &[])?;
    let OpenCmReply { token, number, .. } = OpenCmReply::read_from_prefix(reply.response()).map_err(|_| Errno::IO)?.0;
    let events = reply.into_fds().into_iter().find(|fd| fd.purpose == FdUse::Open).ok_or(Errno::IO)?.fd;
    let link = Link::new(endpoint, socket, channel, RequestKind::AttachCm, token);
    let opened = CmChannel { number, events: identity(events.as_fd())?, link };
    rustix::fs::fcntl_setfl(&events, flags & OFlags::NONBLOCK)?;
    if !flags.contains(OFlags::CLOEXEC) {
        rustix::io::fcntl_setfd(&events, FdFlags::empty())?;
    }
    let fd = events.into_raw_fd();
    TABLE.set(fd, Kind::Cm(Arc::new(opened)));
    Ok(fd)
}

/// Executes the command in `bytes`, which the program wrote to `fd`, a channel's descriptor.
///
/// A thread that waits for an event may be cancelled (`pthread_cancel`), as in the kernel's `write`: nothing that has to
/// be given back is held in here or in [`Command::next_event`] meanwhile.
pub(crate) fn write(fd: RawFd, bytes: &[u8]) -> Written {
    if !is_channel(fd) {
        return Written::Foreign;
    }
    Written::Command(match Command::parse(bytes) {
        Ok(command) if command.waits() => command.next_event(fd),
        Ok(command) => command.execute(fd),
        Err(errno) => Err(errno),
    })
}

/// Whether `fd` still is a channel's: not if the program closed it without the replaced functions.
fn is_channel(fd: RawFd) -> bool {
    let Some(Kind::Cm(channel)) = descriptors::kind(fd) else { return false };
    // SAFETY: a number that the program closes meanwhile gives EBADF.
    if channel.owns(unsafe { borrow(fd) }) {
        return true;
    }
    let _gate = memory::gate();
    TABLE.forget(fd);
    false
}

impl CmChannel {
    /// The program has one more descriptor of this channel.
    pub(crate) fn gained_descriptor(&self) {
        if self.link.gained_descriptor() {
            memory::device_opened();
        }
    }

    /// The program has one less.
    pub(crate) fn lost_descriptor(&self) {
        if self.link.lost_descriptor() {
            memory::device_closed();
        }
    }

    fn owns(&self, fd: BorrowedFd<'_>) -> bool {
        identity(fd) == Ok(self.events)
    }
}

impl Command<'_> {
    /// Takes the next event; waits for one, unless the descriptor is non-blocking. Another thread may take it first.
    fn next_event(&self, fd: RawFd) -> Result<(), Errno> {
        loop {
            match wait(fd) {
                // The program has closed it meanwhile: like the kernel, does not report that to a waiting thread.
                Err(Errno::IO) if !is_channel(fd) => return Err(wait_for_a_signal()),
                waited => waited?,
            }
            match self.execute(fd) {
                Err(Errno::AGAIN) => {}
                done => return done,
            }
        }
    }

    fn execute(&self, fd: RawFd) -> Result<(), Errno> {
        let Some(Kind::Cm(channel)) = descriptors::kind(fd) else { return Err(Errno::BADF) };
        let _gate = memory::gate();
        let body = self.message(channel_number)?;
        channel.link.call(RequestKind::Cm, &body, |reply| self.response().fill(reply.response()))
    }
}

/// The router's number for the channel with the program's descriptor `fd`.
fn channel_number(fd: RawFd) -> Result<u32, Errno> {
    match descriptors::kind(fd) {
        Some(Kind::Cm(channel)) => Ok(channel.number),
        // SAFETY: a number that is not open gives EBADF.
        _ if fd < 0 || rustix::io::fcntl_getfd(unsafe { borrow(fd) }).is_err() => Err(Errno::NOENT),
        _ => Err(Errno::INVAL),
    }
}

fn wait_for_a_signal() -> Errno {
    // SAFETY: has no preconditions. By the library's own function, which only a signal of the program's ends.
    interpose::again(|_| unsafe { libc::pause() });
    Errno::INTR
}

/// Waits for an event as the kernel would: the program's own flags say whether, and a signal ends it.
fn wait(fd: RawFd) -> Result<(), Errno> {
    let mut byte = 0u8;
    match real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) {
        1.. => Ok(()),
        // The router has gone, or this channel.
        0 => Err(Errno::IO),
        _ => Err(match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::NOTSOCK) | None => Errno::BADF,
            Some(errno) => errno,
        }),
    }
}
