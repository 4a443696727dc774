//! Sealed memory shared between tenant and router.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create};
use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Shared memory that is mapped, or a part of it; unmapped when the last clone and the last part are dropped.
///
/// The other side may change any byte at any time, so no reference to plain memory is ever made from it: only atomics
/// and raw copies.
#[derive(Clone)]
pub struct SharedMemory {
    mapping: Arc<Mapping>,
    /// Where it begins in the mapping.
    at: usize,
    len: usize,
}

struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Counts such mappings.
    count: Option<Arc<AtomicU32>>,
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
        let memory = Self::map_raw(fd.as_fd(), 0, len, ProtFlags::READ | ProtFlags::WRITE, None)?;
        Ok((memory, fd))
    }

    /// Like [`SharedMemory::create`], but whoever receives the descriptor can only map it for reading.
    pub fn create_published(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        let memory = Self::map_raw(fd.as_fd(), 0, len, ProtFlags::READ | ProtFlags::WRITE, None)?;
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
        Ok(Self::map_raw(fd, offset, len, prot, None)?)
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.base.as_ptr().wrapping_add(self.at)
    }

    /// Maps `len` bytes at `offset` of a memfd of this process's own making; as long as it is mapped, `count` counts it.
    pub(crate) fn map_own(fd: BorrowedFd<'_>, offset: u64, len: usize, count: &Arc<AtomicU32>) -> io::Result<Self> {
        Self::map_raw(fd, offset, len, ProtFlags::READ | ProtFlags::WRITE, Some(Arc::clone(count)))
    }

    /// The `len` bytes at `at`, which must be within.
    pub(crate) fn part(&self, at: usize, len: usize) -> Self {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len));
        Self { mapping: Arc::clone(&self.mapping), at: self.at + at, len }
    }

    /// Faults the pages in, up to `max` bytes; a hint, so errors do not matter.
    #[allow(unsafe_code)]
    pub fn populate(&self, max: usize) {
        let len = self.len.min(max);
        // SAFETY: the range is this mapping's own, and populating changes no content.
        let _ = unsafe { madvise(self.as_ptr().cast(), len, Advice::LinuxPopulateWrite) };
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped; never so.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[allow(unsafe_code)]
    fn map_raw(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        prot: ProtFlags,
        count: Option<Arc<AtomicU32>>,
    ) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset)? };
        let base = NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?;
        if let Some(count) = &count {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Self { mapping: Arc::new(Mapping { base, len, count }), at: 0, len })
    }
}

impl Drop for Mapping {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping and no pointer into it outlives the last clone.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        if let Some(count) = &self.count {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
