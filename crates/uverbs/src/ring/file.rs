use crate::shared::SharedMemory;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory of a context's queues: one sparse memfd.
///
/// To the program it is the command descriptor itself, so that the provider's `mmap(cmd_fd, offset)` is an ordinary
/// `mmap` that nobody has to intercept. Offsets are never used twice; the pages of a queue that is gone are given back.
#[derive(Clone)]
pub struct QueueFile(Arc<File>);

struct File {
    fd: OwnedFd,
    next: AtomicU64,
}

impl QueueFile {
    /// An empty file.
    pub fn create() -> io::Result<Self> {
        let fd = memfd_create("rdmesh-queues", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, SIZE)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self(Arc::new(File { fd, next: AtomicU64::new(PAGE) })))
    }

    /// The memfd, for the program.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }

    /// Maps `len` zeroed bytes; returns them and their offset.
    pub(super) fn allocate(&self, len: usize) -> io::Result<(SharedMemory, u64)> {
        let room = (len as u64).next_multiple_of(PAGE);
        let offset = self.0.next.fetch_add(room, Ordering::Relaxed);
        if offset > SIZE - room {
            return Err(io::Errno::NOSPC);
        }
        Ok((SharedMemory::map_own(self.fd(), offset, len)?, offset))
    }

    /// Gives the pages of a queue back.
    pub(super) fn release(&self, offset: u64, len: usize) {
        let room = (len as u64).next_multiple_of(PAGE);
        // What cannot be given back now goes with the file.
        let _ = fallocate(&self.0.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, room);
    }
}

const PAGE: u64 = 4096;
const SIZE: u64 = 1 << 46;
