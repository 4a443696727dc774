//! Requests and replies on the session socket.

use arrayvec::ArrayVec;
use rdmesh_uverbs::session::{
    self, FdUse, MAX_FDS, MAX_MESSAGE, ReplyHeader, RequestHeader, RequestKind, Segment, VERSION,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io::IoSlice;
use zerocopy::{FromBytes, IntoBytes};

/// The buffer for replies.
pub(crate) struct Channel {
    buffer: Box<[u8]>,
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
        Self { buffer: vec![0; MAX_MESSAGE].into_boxed_slice() }
    }

    /// Sends a request and waits for its reply. An error of the router's is returned as it is; a router that has gone,
    /// or makes no sense, is EIO.
    pub(crate) fn call(
        &mut self,
        socket: BorrowedFd<'_>,
        kind: RequestKind,
        command: &[u8],
        segments: &[Segment],
        arena: Option<BorrowedFd<'_>>,
    ) -> Result<Reply<'_>, Errno> {
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
        patiently(socket, PollFlags::OUT, || session::send(socket, &parts, arena.as_slice())).map_err(|_| Errno::IO)?;
        let buffer = &mut self.buffer[..];
        let (len, fds) =
            patiently(socket, PollFlags::IN, || session::receive(socket, buffer)).map_err(|_| Errno::IO)?;
        Reply::parse(&mut self.buffer[..len], fds)
    }
}

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

    /// What MODIFY_SRQ returns beside its response; none where there is nothing.
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

/// Repeats a call on a socket that the program has made non-blocking until it can be done.
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
