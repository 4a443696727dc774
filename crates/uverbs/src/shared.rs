//! Sealed memory shared between tenant and router.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create};
use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// A mapping of shared memory, unmapped when the last clone is dropped.
///
/// The other side may change any byte at any time, so no reference to plain memory is ever made from it: only atomics
/// and raw copies.
#[derive(Clone)]
pub struct SharedMemory(Arc<Mapping>);

struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory with no thread affinity; all access is through raw pointers or atomics.
#[allow(unsafe_code)]
unsafe impl Send for Mapping {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Mapping {}

/// Why a memfd from the other side is refused.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// It could still shrink, which would turn an access into a SIGBUS.
    #[error("not a memfd of ordinary pages, sealed against shrinking")]
    NotSealed,
    /// It is too short for the range.
    #[error("memory is shorter than the range to map")]
    TooShort,
    /// The kernel refused.
    #[error(transparent)]
    Os(#[from] io::Errno),
}

impl SharedMemory {
    /// Makes `len` zeroed bytes in a new memfd, sealed against change of size, and maps them.
    pub fn create(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = Self::map_raw(fd.as_fd(), 0, len, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok((memory, fd))
    }

    /// Like [`SharedMemory::create`], but whoever receives the descriptor can only map it for reading.
    pub fn create_published(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        let memory = Self::map_raw(fd.as_fd(), 0, len, ProtFlags::READ | ProtFlags::WRITE)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok((memory, fd))
    }

    /// Maps `len` bytes at `offset` of a memfd from the other side, which must be sealed against shrinking.
    /// `offset` must be a multiple of the page size.
    pub fn map(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> Result<Self, MapError> {
        // Only shmem: a page of hugetlbfs that cannot be had would be a SIGBUS.
        if !fcntl_get_seals(fd)?.contains(SealFlags::SHRINK) || fstatfs(fd)?.f_type != TMPFS_MAGIC {
            return Err(MapError::NotSealed);
        }
        let end = offset.checked_add(len as u64).ok_or(MapError::TooShort)?;
        if end > fstat(fd)?.st_size as u64 {
            return Err(MapError::TooShort);
        }
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        Ok(Self::map_raw(fd, offset, len, prot)?)
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }

    /// Maps `len` bytes at `offset` of a memfd of this process's own making.
    pub(crate) fn map_own(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        Self::map_raw(fd, offset, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Faults the pages in, up to `max` bytes; a hint, so errors do not matter.
    #[allow(unsafe_code)]
    pub fn populate(&self, max: usize) {
        let len = self.0.len.min(max);
        // SAFETY: the range is this mapping's own, and populating changes no content.
        let _ = unsafe { madvise(self.0.base.as_ptr().cast(), len, Advice::LinuxPopulateWrite) };
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether nothing is mapped; never so.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    #[allow(unsafe_code)]
    fn map_raw(fd: BorrowedFd<'_>, offset: u64, len: usize, prot: ProtFlags) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset)? };
        let base = NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?;
        Ok(Self(Arc::new(Mapping { base, len })))
    }
}

impl Drop for Mapping {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping and no pointer into it outlives the last clone.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
