//! Requests and replies on the session socket.

use crate::memory::{ArenaFile, Registration};
use arrayvec::ArrayVec;
use rdmesh_uverbs::ring::{Extent, QueueFile};
use rdmesh_uverbs::session::{
    self, FdUse, MAX_FDS, MAX_MESSAGE, ReplyHeader, RequestHeader, RequestKind, Segment, VERSION,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io::IoSlice;
use zerocopy::{FromBytes, IntoBytes};

/// State for one command at a time: the reply buffer and the arena that was sent.
pub(crate) struct Channel {
    /// For replies.
    buffer: Box<[u8]>,
    /// The arena that the router knows this process by: it need not be sent again.
    arena: Option<ArenaFile>,
}

/// A reply of the router that is not an error.
pub(crate) struct Reply<'a> {
    head: ReplyHeader,
    response: &'a mut [u8],
    fds: ArrayVec<ReceivedFd, MAX_FDS>,
}

/// A descriptor of a reply, and what it is for.
pub(super) struct ReceivedFd {
    pub(super) fd: OwnedFd,
    pub(super) purpose: FdUse,
    /// See [`ReplyHeader::places`].
    pub(super) place: u64,
}

impl Channel {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; MAX_MESSAGE].into_boxed_slice(), arena: None }
    }

    /// Sends a request and waits for its reply. An error of the router's is returned as it is; a router that has gone, or sends
    /// an invalid reply, is EIO.
    pub(crate) fn call(
        &mut self,
        socket: BorrowedFd<'_>,
        kind: RequestKind,
        command: &[u8],
        segments: &[Segment],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Reply<'_>, Errno> {
        let (len, fds) = self.exchange(socket, kind, command, segments, fds)?;
        Reply::parse(&mut self.buffer[..len], fds)
    }

    /// The same for a command that may register memory, and may make queues: as long as the router wants memory for them,
    /// `queues` is filled in.
    pub(super) fn call_filling(
        &mut self,
        socket: BorrowedFd<'_>,
        command: &[u8],
        registration: &Registration,
        queues: BorrowedFd<'_>,
    ) -> Result<Reply<'_>, Errno> {
        let arena = registration.arena();
        let mut unsent = arena.filter(|_| arena != self.arena);
        let mut tries = 0;
        loop {
            let fd = unsent.map(ArenaFile::descriptor).transpose()?;
            let fds: ArrayVec<_, 1> = fd.iter().map(|fd| fd.as_fd()).collect();
            let (len, received) = self.exchange(socket, RequestKind::Verbs, command, registration.segments(), &fds)?;
            let answer = Answer::of(&self.buffer[..len]);
            tries += 1;
            match answer {
                _ if tries > MOST_TRIES => {}
                Answer::Wants(extent) => {
                    QueueFile::fill(queues, extent).map_err(|_| Errno::NOMEM)?;
                    continue;
                }
                // It has to map more of the arena, and keeps no descriptor.
                Answer::NoData if unsent.is_none() && arena.is_some() => {
                    unsent = arena;
                    continue;
                }
                Answer::NoData | Answer::Other => {}
            }
            let reply = Reply::parse(&mut self.buffer[..len], received);
            if reply.is_ok() && unsent.is_some() {
                self.arena = unsent;
            }
            return reply;
        }
    }

    fn exchange(
        &mut self,
        socket: BorrowedFd<'_>,
        kind: RequestKind,
        command: &[u8],
        segments: &[Segment],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(usize, ArrayVec<OwnedFd, MAX_FDS>), Errno> {
        let head = RequestHeader {
            version: VERSION,
            kind: kind as u32,
            command_len: u32::try_from(command.len()).map_err(|_| Errno::INVAL)?,
            segments: u32::try_from(segments.len()).map_err(|_| Errno::INVAL)?,
        };
        if size_of::<RequestHeader>() + command.len() + size_of_val(segments) > MAX_MESSAGE {
            return Err(Errno::INVAL);
        }
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(command), IoSlice::new(segments.as_bytes())];
        patiently(socket, PollFlags::OUT, || session::send(socket, &parts, fds)).map_err(|_| Errno::IO)?;
        let buffer = &mut self.buffer[..];
        patiently(socket, PollFlags::IN, || session::receive(socket, buffer)).map_err(|_| Errno::IO)
    }
}

/// The router's answer to a command that it cannot execute as it is.
enum Answer {
    /// Queue memory is to be filled in.
    Wants(Extent),
    NoData,
    Other,
}

impl Answer {
    fn of(message: &[u8]) -> Self {
        match ReplyHeader::read_from_prefix(message) {
            Ok((head, _)) if head.errno == Errno::NODATA.raw_os_error() as u32 => match head.wanted {
                [_, 0] => Self::NoData,
                [offset, len] => Self::Wants(Extent { offset, len }),
            },
            _ => Self::Other,
        }
    }
}

/// A command makes two queues at most.
const MOST_TRIES: u32 = 4;

impl<'a> Reply<'a> {
    fn parse(message: &'a mut [u8], fds: ArrayVec<OwnedFd, MAX_FDS>) -> Result<Self, Errno> {
        let (head, response) = ReplyHeader::read_from_prefix(message).map_err(|_| Errno::IO)?;
        if head.errno != 0 {
            return Err(i32::try_from(head.errno).map_or(Errno::IO, Errno::from_raw_os_error));
        }
        let (len, known) = (response.len(), head.response_len as usize);
        let response = message.get_mut(size_of::<ReplyHeader>()..).and_then(|rest| rest.get_mut(..known));
        let response = response.filter(|_| known <= len).ok_or(Errno::IO)?;
        let mut received = ArrayVec::new();
        for (i, fd) in fds.into_iter().enumerate() {
            let purpose = FdUse::from_number(head.fds[i]).ok_or(Errno::IO)?;
            received.push(ReceivedFd { fd, purpose, place: head.places[i] });
        }
        Ok(Self { head, response, fds: received })
    }

    /// The response of the command.
    pub(crate) fn response(&self) -> &[u8] {
        self.response
    }

    /// The response, to be patched.
    pub(super) fn response_mut(&mut self) -> &mut [u8] {
        self.response
    }

    /// The mmap information that MODIFY_SRQ returns beside its response, if any.
    pub(super) fn mminfo(&self) -> Option<[u8; 16]> {
        (self.head.mminfo != [0; 16]).then_some(self.head.mminfo)
    }

    /// Takes the descriptors out.
    pub(super) fn take_fds(&mut self) -> ArrayVec<ReceivedFd, MAX_FDS> {
        std::mem::take(&mut self.fds)
    }

    /// The descriptors.
    pub(super) fn into_fds(self) -> ArrayVec<ReceivedFd, MAX_FDS> {
        self.fds
    }
}

/// Repeats a call on a socket that the program has made non-blocking until it does not block.
fn patiently<T>(
    socket: BorrowedFd<'_>,
    ready: PollFlags,
    mut call: impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::AGAIN) => {
                let wait = || poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), ready)], None);
                rustix::io::retry_on_intr(wait)?;
            }
            done => return done,
        }
    }
}
