//! rdma_cm channels, on the program's side: `/dev/infiniband/rdma_cm`.
//!
//! The program's descriptor is a socket that holds a byte for each event that waits: it polls as the kernel's does, so the poll
//! functions need not be replaced.
//!
//! A thread that has seen the byte of an event and then reads the event with a blocking call must find it, or it waits for an
//! event that may never come. So DESTROY_ID, which discards the identifier's events, gives the channel's reader time: as long as
//! events of the identifier wait that another thread was told of, the library asks again, for 50 ms at most, before it sends the
//! command. The kernel has the same race, in the microseconds between two system calls; here a request to the router takes the
//! place of a lock. And a request for an event is sent only if its byte is still there when no other command is under way.
//!
//! * [`command`]: the framing of a `write()`.
//! * [`reader`]: the thread that reads a channel's events.
#![allow(unsafe_code)]

mod command;
mod reader;

use super::Written;
use crate::descriptors::{self, Device};
use crate::{memory, real};
use command::Command;
use rdmesh_preload::link::{borrow, connect, identity};
use rdmesh_preload::{Channel, Endpoint, Link};
use rdmesh_uverbs::session::{FdUse, OpenCmReply, RequestKind};
use reader::Reader;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd};
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{RecvFlags, recv};
use rustix::thread::Timespec;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// One `open` of the device, and its duplicates.
pub(crate) struct CmChannel {
    /// The router's number for it.
    number: u32,
    /// The event socket, which the program's descriptor is.
    events: (u64, u64),
    link: Link,
    reader: Reader,
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
    let opened = CmChannel { number, events: identity(events.as_fd())?, link, reader: Reader::none() };
    rustix::fs::fcntl_setfl(&events, flags & OFlags::NONBLOCK)?;
    if !flags.contains(OFlags::CLOEXEC) {
        rustix::io::fcntl_setfd(&events, FdFlags::empty())?;
    }
    let fd = events.into_raw_fd();
    descriptors::set(fd, Arc::new(opened));
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
    let Some(channel) = descriptors::get::<CmChannel>(fd) else { return false };
    // SAFETY: a number that the program closes meanwhile gives EBADF.
    if channel.owns(unsafe { borrow(fd) }) {
        return true;
    }
    let _gate = memory::gate();
    descriptors::forget(fd);
    false
}

impl Device for CmChannel {
    fn gained_descriptor(&self) {
        if self.link.gained_descriptor() {
            memory::device_opened();
        }
    }

    fn lost_descriptor(&self) {
        if self.link.lost_descriptor(None) {
            memory::device_closed();
        }
    }
}

impl CmChannel {
    fn owns(&self, fd: BorrowedFd<'_>) -> bool {
        identity(fd) == Ok(self.events)
    }
}

impl Command<'_> {
    /// Takes the next event; waits for one, unless the descriptor is non-blocking. Another thread may take it first.
    fn next_event(&self, fd: RawFd) -> Result<(), Errno> {
        loop {
            let waited = match self.take_event(fd) {
                Err(Errno::AGAIN) => wait(fd),
                Err(Errno::BADF) => Err(Errno::BADF),
                done => return done,
            };
            match waited {
                // The program has closed it since the command began: like the kernel, does not report that to a waiting thread.
                Err(Errno::IO | Errno::BADF) if !is_channel(fd) => return Err(wait_for_a_signal()),
                waited => waited?,
            }
        }
    }

    /// Takes the next event, if there is one. A command that this process sends later, and that would discard the event, finds
    /// it taken: no command comes between the look at the byte and the request.
    fn take_event(&self, fd: RawFd) -> Result<(), Errno> {
        let channel = channel(fd)?;
        let _gate = memory::gate();
        let mut state = channel.link.lock();
        if !has_event(fd) {
            return Err(Errno::AGAIN);
        }
        let connection = channel.link.connection(&mut state)?;
        // SAFETY: the connection stays open while the state is locked.
        let socket = unsafe { borrow(connection) };
        let reply = state.channel.call(socket, RequestKind::Cm, &self.message(channel_number)?, &[], &[])?;
        self.response().fill(reply.response());
        channel.reader.set();
        Ok(())
    }

    /// Executes the command. Where it takes events away, their reader gets some time to read them before.
    fn execute(&self, fd: RawFd) -> Result<(), Errno> {
        let destination = channel(fd)?;
        match self.takes_events_of(fd).map(channel) {
            Some(Ok(source)) => self.execute_after(&source.reader, &destination),
            _ => self.send(&destination, RequestKind::Cm),
        }
    }

    fn execute_after(&self, reader: &Reader, destination: &CmChannel) -> Result<(), Errno> {
        let since = Instant::now();
        let mut tries = 0;
        while let Some(thread) = reader.other() {
            match self.send(destination, RequestKind::CmUnlessEvents) {
                Err(Errno::AGAIN) => {}
                done => return done,
            }
            tries += 1;
            // Time in which this thread had no processor does not count.
            if tries >= READER_TRIES && since.elapsed() >= READER_PATIENCE {
                // It does something else. The next command need not wait for it.
                reader.forget(thread);
                break;
            }
            sleep_briefly();
        }
        self.send(destination, RequestKind::Cm)
    }

    fn send(&self, channel: &CmChannel, kind: RequestKind) -> Result<(), Errno> {
        let _gate = memory::gate();
        let body = self.message(channel_number)?;
        channel.link.call(kind, &body, |reply| self.response().fill(reply.response()))
    }
}

/// The channel with the program's descriptor `fd`.
fn channel(fd: RawFd) -> Result<Arc<CmChannel>, Errno> {
    descriptors::get(fd).ok_or(Errno::BADF)
}

/// The router's number for the channel with the program's descriptor `fd`.
fn channel_number(fd: RawFd) -> Result<u32, Errno> {
    match descriptors::peek_as::<CmChannel>(fd) {
        Some(channel) => Ok(channel.number),
        // SAFETY: a number that is not open gives EBADF.
        _ if fd < 0 || rustix::io::fcntl_getfd(unsafe { borrow(fd) }).is_err() => Err(Errno::NOENT),
        _ => Err(Errno::INVAL),
    }
}

fn wait_for_a_signal() -> Errno {
    // SAFETY: has no preconditions. By the library's own function, which only a signal of the program's ends.
    memory::again(|_| unsafe { libc::pause() });
    Errno::INTR
}

/// Sleeps for a moment. Not a point at which the thread may be cancelled, nor one that a signal makes fail.
fn sleep_briefly() {
    let _ = rustix::thread::nanosleep(&READER_PAUSE);
}

/// Whether an event waits; does not block, and is no point at which the thread may be cancelled.
fn has_event(fd: RawFd) -> bool {
    // SAFETY: a number that the program closes meanwhile gives EBADF.
    let events = unsafe { borrow(fd) };
    recv(events, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(len, _)| len > 0)
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

/// Time, and least number of tries, for the reader of the events that a command takes away.
const READER_PATIENCE: Duration = Duration::from_millis(50);
const READER_TRIES: u32 = 10;
/// Interval at which it looks whether they have been read.
const READER_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };
