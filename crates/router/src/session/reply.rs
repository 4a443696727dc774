//! Replies of the session server, with the descriptors that they carry.

use arrayvec::ArrayVec;
use rdmesh_uverbs::ring::Extent;
use rdmesh_uverbs::session::{self, FdUse, MAX_FDS, ReplyHeader};
use rustix::io::{self, Errno};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::{Immutable, IntoBytes};

/// Response of a successful command.
#[derive(Default)]
pub(super) struct Reply {
    /// The core's part of the response.
    pub(super) core: Vec<u8>,
    /// The provider's part.
    pub(super) driver: Vec<u8>,
    fds: ArrayVec<(OwnedFd, FdUse, u64), MAX_FDS>,
    mminfo: [u8; 16],
}

impl Reply {
    pub(super) fn new(core: &(impl IntoBytes + Immutable)) -> Self {
        Self { core: core.as_bytes().to_vec(), ..Self::default() }
    }

    pub(super) fn with_driver(mut self, driver: &(impl IntoBytes + Immutable)) -> Self {
        self.driver = driver.as_bytes().to_vec();
        self
    }

    /// Adds a descriptor whose number in the program goes to byte `at` of the response.
    pub(super) fn with_install(self, fd: OwnedFd, at: u64) -> Self {
        self.with_fd(fd, FdUse::Install, at)
    }

    /// Adds a descriptor of the answer to `Open`.
    pub(super) fn with_open(self, fd: OwnedFd) -> Self {
        self.with_fd(fd, FdUse::Open, 0)
    }

    /// Sets what `modify_srq` returns through a pointer.
    pub(super) fn with_mminfo(mut self, mminfo: &(impl IntoBytes + Immutable)) -> Self {
        self.mminfo.copy_from_slice(mminfo.as_bytes());
        self
    }

    fn with_fd(mut self, fd: OwnedFd, fd_use: FdUse, place: u64) -> Self {
        self.fds.push((fd, fd_use, place));
        self
    }
}

/// Sends the answer to a command: `response` is the reply as the program's buffer has it.
pub(super) fn send(socket: BorrowedFd<'_>, reply: &Reply, response: &[u8]) -> io::Result<()> {
    let mut header =
        ReplyHeader { response_len: response.len() as u32, mminfo: reply.mminfo, ..ReplyHeader::default() };
    for (i, (_, fd_use, place)) in reply.fds.iter().enumerate() {
        header.fds[i] = *fd_use as u32;
        header.places[i] = *place;
    }
    let fds: ArrayVec<BorrowedFd<'_>, MAX_FDS> = reply.fds.iter().map(|(fd, _, _)| fd.as_fd()).collect();
    session::send(socket, &[IoSlice::new(header.as_bytes()), IoSlice::new(response)], &fds)
}

/// Sends an error; with ENODATA, the `wanted` extent of the queue memory.
pub(super) fn send_error(socket: BorrowedFd<'_>, errno: Errno, wanted: Option<Extent>) -> io::Result<()> {
    let wanted = wanted.map_or([0; 2], |extent| [extent.offset, extent.len]);
    let header = ReplyHeader { errno: errno.raw_os_error() as u32, wanted, ..ReplyHeader::default() };
    session::send(socket, &[IoSlice::new(header.as_bytes())], &[])
}
