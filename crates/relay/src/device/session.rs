//! Session with the router, as a program of the endpoint has one: requests, each of which is answered before the next.

use arrayvec::ArrayVec;
use rdmesh_uverbs::abi::CommandHeader;
use rdmesh_uverbs::ring::{Extent, QueueFile};
use rdmesh_uverbs::session::{self, MAX_FDS, MAX_MESSAGE, ReplyHeader, RequestHeader, RequestKind, Segment, VERSION};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};
use std::io::IoSlice;
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A connection to the router.
pub(super) struct Session {
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

/// An answer that is no error.
pub(super) struct Answer {
    pub(super) response: Vec<u8>,
    pub(super) fds: ArrayVec<OwnedFd, MAX_FDS>,
}

impl Answer {
    /// The response as a struct, with zeros for what it lacks.
    pub(super) fn read<T: FromBytes + IntoBytes>(&self) -> T {
        let mut value = T::new_zeroed();
        let len = size_of::<T>().min(self.response.len());
        value.as_mut_bytes()[..len].copy_from_slice(&self.response[..len]);
        value
    }
}

impl Session {
    /// Connects to the session socket at `path`.
    pub(super) fn connect(path: &Path) -> Result<Self, Errno> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        // The directory is one that a container's root may write to: only this process is the router.
        if sockopt::socket_peercred(&socket)?.pid != rustix::process::getpid() {
            return Err(Errno::PERM);
        }
        Ok(Self { socket, buffer: vec![0; MAX_MESSAGE].into_boxed_slice() })
    }

    /// Sends a request and waits for its answer. Queue memory that is wanted is filled in.
    pub(super) fn call(
        &mut self,
        kind: RequestKind,
        body: &[u8],
        segments: &[Segment],
        fds: &[BorrowedFd<'_>],
        queues: Option<&OwnedFd>,
    ) -> Result<Answer, Errno> {
        loop {
            match (self.call_once(kind, body, segments, fds), queues) {
                (Err((Errno::NODATA, Some(extent))), Some(queues)) => QueueFile::fill(queues.as_fd(), extent)?,
                (answer, _) => return answer.map_err(|(errno, _)| errno),
            }
        }
    }

    fn call_once(
        &mut self,
        kind: RequestKind,
        body: &[u8],
        segments: &[Segment],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Answer, (Errno, Option<Extent>)> {
        let head = RequestHeader {
            version: VERSION,
            kind: kind as u32,
            command_len: body.len() as u32,
            segments: segments.len() as u32,
        };
        let plain = |errno| (errno, None);
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(body), IoSlice::new(segments.as_bytes())];
        session::send(self.socket.as_fd(), &parts, fds).map_err(plain)?;
        let (len, fds) = session::receive(self.socket.as_fd(), &mut self.buffer).map_err(plain)?;
        let (head, response) = ReplyHeader::read_from_prefix(&self.buffer[..len]).map_err(|_| plain(Errno::PIPE))?;
        if head.errno != 0 {
            let [offset, len] = head.wanted;
            let errno = Errno::from_raw_os_error(head.errno.cast_signed());
            return Err((errno, (len != 0).then_some(Extent { offset, len })));
        }
        Ok(Answer { response: response.to_vec(), fds })
    }
}

/// A `write()` command of the uverbs ABI, with `room` bytes for its response.
pub(super) fn command(number: u8, request: &(impl IntoBytes + Immutable), room: usize) -> Vec<u8> {
    let len = size_of::<CommandHeader>() + request.as_bytes().len();
    let header =
        CommandHeader { command: number.into(), in_words: (len / 4) as u16, out_words: room.div_ceil(4) as u16 };
    [header.as_bytes(), request.as_bytes()].concat()
}
