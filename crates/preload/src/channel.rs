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

/// The buffer for replies, which one command at a time uses.
pub struct Channel {
    buffer: Box<[u8]>,
}

/// A message of the router, which lies in the buffer of its channel until the next request.
pub struct Received {
    len: usize,
    fds: ArrayVec<OwnedFd, MAX_FDS>,
}

/// A reply of the router that is not an error.
pub struct Reply<'a> {
    head: ReplyHeader,
    response: &'a mut [u8],
    fds: ArrayVec<ReceivedFd, MAX_FDS>,
}

/// A descriptor of a reply, and what it is for.
pub struct ReceivedFd {
    /// The descriptor.
    pub fd: OwnedFd,
    /// Its use.
    pub purpose: FdUse,
    /// See [`ReplyHeader::places`].
    pub place: u64,
}

impl Channel {
    /// A channel without a message.
    pub fn new() -> Self {
        Self { buffer: vec![0; MAX_MESSAGE].into_boxed_slice() }
    }

    /// Sends a request and waits for its reply. An error of the router's is returned as it is; a router that has gone, or sends
    /// an invalid reply, is EIO.
    pub fn call(
        &mut self,
        socket: BorrowedFd<'_>,
        kind: RequestKind,
        command: &[u8],
        segments: &[Segment],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Reply<'_>, Errno> {
        let received = self.exchange(socket, kind, command, segments, fds)?;
        self.parse(received)
    }

    /// The head of the message that was received last; none where it is too short.
    pub fn head(&self, received: &Received) -> Option<ReplyHeader> {
        ReplyHeader::read_from_prefix(&self.buffer[..received.len]).ok().map(|(head, _)| head)
    }

    /// Reads the message that was received last as a reply.
    pub fn parse(&mut self, received: Received) -> Result<Reply<'_>, Errno> {
        Reply::parse(&mut self.buffer[..received.len], received.fds)
    }

    /// Sends a request and waits for a message.
    pub fn exchange(
        &mut self,
        socket: BorrowedFd<'_>,
        kind: RequestKind,
        command: &[u8],
        segments: &[Segment],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Received, Errno> {
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
        let received = patiently(socket, PollFlags::IN, || session::receive(socket, buffer)).map_err(|_| Errno::IO)?;
        Ok(Received { len: received.0, fds: received.1 })
    }
}

impl Default for Channel {
    fn default() -> Self {
        Self::new()
    }
}

impl AsMut<Self> for Channel {
    fn as_mut(&mut self) -> &mut Self {
        self
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
    pub fn response(&self) -> &[u8] {
        self.response
    }

    /// The response, to be patched.
    pub fn response_mut(&mut self) -> &mut [u8] {
        self.response
    }

    /// The mmap information that MODIFY_SRQ returns beside its response, if any.
    pub fn mminfo(&self) -> Option<[u8; 16]> {
        (self.head.mminfo != [0; 16]).then_some(self.head.mminfo)
    }

    /// Takes the descriptors out.
    pub fn take_fds(&mut self) -> ArrayVec<ReceivedFd, MAX_FDS> {
        std::mem::take(&mut self.fds)
    }

    /// The descriptors.
    pub fn into_fds(self) -> ArrayVec<ReceivedFd, MAX_FDS> {
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
