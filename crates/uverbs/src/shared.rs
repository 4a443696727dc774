//! Sealed memory shared between tenant and router.

use crate::guard::{self, Alarm, Watched};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Shared memory that is mapped, or a part of it; unmapped when the last clone and the last part are dropped.
///
/// The other side may change any byte at any time, so no reference to plain memory is ever made from it: only atomics
/// and raw copies.
#[derive(Clone)]
pub struct SharedMemory {
    mapping: Arc<Mapping>,
    /// Offset in the mapping.
    at: usize,
    len: usize,
}

struct Mapping {
    base: NonNull<u8>,
    len: usize,
    watched: Option<Watched>,
    /// None only at its end.
    keep: Option<Box<dyn Keep>>,
}

/// Holder of things that last as long as the mapping: a charge, and the choice of the thread that unmaps it.
pub trait Keep: Send + Sync {
    /// Called before one more mapping of the kernel's is made within this one.
    fn divide(&self) -> io::Result<()> {
        Ok(())
    }

    /// Called once the last clone and the last part of the mapping have been dropped. Unmapping many pages takes long, and
    /// the thread that dropped the last of them may have others to serve: an implementation may hand `pages` to another
    /// thread, with itself.
    fn unmap(self: Box<Self>, pages: UnusedMapping) {
        drop(pages);
    }
}

impl Keep for () {}

impl Keep for Box<dyn Keep> {
    fn divide(&self) -> io::Result<()> {
        (**self).divide()
    }

    fn unmap(self: Box<Self>, pages: UnusedMapping) {
        (*self).unmap(pages);
    }
}

/// A mapping that nothing refers to any more. What is left of it is unmapped on drop.
pub struct UnusedMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory with no thread affinity; all access is through raw pointers or atomics.
#[allow(unsafe_code)]
unsafe impl Send for Mapping {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Mapping {}
// SAFETY: as above; it is only unmapped.
#[allow(unsafe_code)]
unsafe impl Send for UnusedMapping {}

/// Reason why a memfd from the other side is refused.
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

impl From<MapError> for io::Errno {
    fn from(error: MapError) -> Self {
        match error {
            MapError::NotSealed | MapError::TooShort => Self::INVAL,
            MapError::Os(errno) => errno,
        }
    }
}

impl SharedMemory {
    /// Makes `len` zeroed bytes in a new memfd, sealed against change of size, and maps them. Their pages are populated, and
    /// charged to the caller.
    pub fn create(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        fallocate(&fd, FallocateFlags::empty(), 0, len as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map_raw(fd.as_fd(), 0, len, WRITABLE, ())?, fd))
    }

    /// Like [`SharedMemory::create`], but pages are made when they are touched, and charged to the process that does.
    pub fn create_sparse(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map_raw(fd.as_fd(), 0, len, WRITABLE, ())?, fd))
    }

    /// Like [`SharedMemory::create`], but a process that receives the descriptor can only map it for reading.
    pub fn create_published(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        let memory = Self::map_raw(fd.as_fd(), 0, len, WRITABLE, ())?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok((memory, fd))
    }

    /// Maps `len` bytes at `offset` of a memfd from the other side, which must be sealed against shrinking.
    /// `offset` must be a multiple of the page size.
    pub fn map(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> Result<Self, MapError> {
        let prot = if writable { WRITABLE } else { ProtFlags::READ };
        check(fd, offset, len)?;
        Ok(Self::map_raw(fd, offset, len, prot, ())?)
    }

    /// The same for a process that must not make pages of it, if the guard is installed there: for reading and writing by
    /// way of [`guard::attempt`]. `keep` has it unmapped.
    pub fn map_keeping(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        keep: impl Keep + 'static,
    ) -> Result<Self, MapError> {
        check(fd, offset, len)?;
        let memory = Self::map_raw(fd, offset, len, WRITABLE, keep)?;
        guard::protect(memory.mapping.base, len)?;
        Ok(memory)
    }

    /// The same, for reading and writing by any means: where pages are missing, `alarm` is raised and the whole mapping
    /// becomes private zeros. Only in a process in which the guard is installed.
    pub fn map_watched(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        alarm: &Alarm,
        keep: impl Keep + 'static,
    ) -> Result<Self, MapError> {
        let mut memory = Self::map_keeping(fd, offset, len, keep)?;
        let watched = Watched::new(memory.mapping.base, len, alarm)?;
        if let Some(mapping) = Arc::get_mut(&mut memory.mapping) {
            mapping.watched = Some(watched);
        }
        Ok(memory)
    }

    /// Reserves `len` bytes of address space, none of which may be touched before [`SharedMemory::place`] has put pages there.
    /// Where pages that were placed go missing, `alarm` is raised, as in [`SharedMemory::map_watched`].
    #[allow(unsafe_code)]
    pub fn reserve_watched(len: usize, alarm: &Alarm, keep: impl Keep + 'static) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?;
        let mapping = Mapping { base, len, watched: None, keep: Some(Box::new(keep)) };
        let mut memory = Self { mapping: Arc::new(mapping), at: 0, len };
        let watched = Watched::new(base, len, alarm)?;
        if let Some(mapping) = Arc::get_mut(&mut memory.mapping) {
            mapping.watched = Some(watched);
        }
        Ok(memory)
    }

    /// Puts `len` bytes at `offset` of a memfd from the other side to offset `at` of a reservation, in place of what is there.
    /// All three are multiples of the page size. The keeper is asked first ([`Keep::divide`]).
    #[allow(unsafe_code)]
    pub fn place(&self, at: usize, fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<(), MapError> {
        check(fd, offset, len)?;
        assert!(at.is_multiple_of(PAGE) && at.checked_add(len).is_some_and(|end| end <= self.len));
        if let Some(keep) = &self.mapping.keep {
            keep.divide()?;
        }
        let to = self.as_ptr().wrapping_add(at);
        // SAFETY: the range is within this value's own mapping (asserted), of which there are no references to plain memory.
        unsafe { mmap(to.cast(), len, WRITABLE, MapFlags::SHARED | MapFlags::FIXED, fd, offset)? };
        Ok(guard::protect(NonNull::new(to).ok_or(io::Errno::NOMEM)?, len)?)
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.base.as_ptr().wrapping_add(self.at)
    }

    /// The `len` bytes at `at`, which must be within.
    pub fn part(&self, at: usize, len: usize) -> Self {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len));
        Self { mapping: Arc::clone(&self.mapping), at: self.at + at, len }
    }

    /// Copies its first words out: as many as `words` holds, which must be within.
    #[allow(unsafe_code)]
    pub fn load(&self, words: &mut [u64]) {
        assert!(size_of_val(words) <= self.len && self.at.is_multiple_of(size_of::<u64>()));
        for (n, word) in words.iter_mut().enumerate() {
            // SAFETY: within the mapping, and aligned (asserted; a mapping begins with a page); volatile, because another process
            // may write it.
            *word = unsafe { self.as_ptr().cast::<u64>().add(n).read_volatile() };
        }
    }

    /// Copies `bytes` to its beginning, which must have room.
    #[allow(unsafe_code)]
    pub fn store(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: within the mapping (asserted), of which there are no references to plain memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr(), bytes.len()) };
    }

    /// Whether there are other clones or parts of the mapping.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.mapping) > 1
    }

    /// Enters the pages of a part into the page table, so that accesses find them. EFAULT where one is missing and the
    /// guard is complete; otherwise it is made.
    #[allow(unsafe_code)]
    pub fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        let len = self.len.saturating_sub(at).min(len);
        let from = at / PAGE * PAGE;
        let address = self.as_ptr().wrapping_add(from);
        // Reading, because it enters several pages at a time, and for writing too.
        // SAFETY: the range is this mapping's own, and populating changes no content.
        let populated =
            io::retry_on_intr(|| unsafe { madvise(address.cast(), len + (at - from), Advice::LinuxPopulateRead) });
        match populated {
            // Kernels before 5.14 have no such call: the first access finds missing pages.
            Err(io::Errno::INVAL) => Ok(()),
            result => result,
        }
    }

    /// Whether all pages of a part are in memory. A page that is swapped out is not, and one may go at any time.
    #[allow(unsafe_code)]
    pub fn is_resident(&self, at: usize, len: usize) -> bool {
        const PAGES: usize = 4096;
        let (from, to) = (at / PAGE * PAGE, self.len.min(at.saturating_add(len)));
        (from..to).step_by(PAGES * PAGE).all(|part| {
            let mut present = [0; PAGES];
            let len = (to - part).min(PAGES * PAGE);
            let address = self.as_ptr().wrapping_add(part);
            // SAFETY: the range is this mapping's own, and the call writes one byte for each of its pages.
            let failed = unsafe { libc::mincore(address.cast(), len, present.as_mut_ptr()) };
            failed == 0 && present[..len.div_ceil(PAGE)].iter().fold(1, |all, page| all & page) & 1 != 0
        })
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
        keep: impl Keep + 'static,
    ) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset)? };
        let base = NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?;
        Ok(Self { mapping: Arc::new(Mapping { base, len, watched: None, keep: Some(Box::new(keep)) }), at: 0, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before its addresses can be another mapping's.
        self.watched = None;
        let pages = UnusedMapping { base: self.base, len: self.len };
        if let Some(keep) = self.keep.take() {
            keep.unmap(pages);
        }
    }
}

impl UnusedMapping {
    /// Bytes that are still mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether everything is unmapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Unmaps up to `most` bytes, a multiple of the page size. The address space is locked meanwhile, for all threads of the
    /// process.
    #[allow(unsafe_code)]
    pub fn unmap(&mut self, most: usize) {
        let len = self.len.min(most);
        // SAFETY: this value owns the mapping, and no pointer into it outlives the last clone of the memory.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), len) };
        // SAFETY: still within the mapping, or one past its end.
        self.base = unsafe { self.base.add(len) };
        self.len -= len;
    }
}

impl Drop for UnusedMapping {
    fn drop(&mut self) {
        if !self.is_empty() {
            self.unmap(usize::MAX);
        }
    }
}

/// Checks that `len` bytes at `offset` of a memfd exist and cannot be removed.
fn check(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<(), MapError> {
    // Only shmem: a page of hugetlbfs that cannot be had would be a SIGBUS.
    if !fcntl_get_seals(fd)?.contains(SealFlags::SHRINK) || fstatfs(fd)?.f_type != TMPFS_MAGIC {
        return Err(MapError::NotSealed);
    }
    let end = offset.checked_add(len as u64).ok_or(MapError::TooShort)?;
    if end > fstat(fd)?.st_size as u64 { Err(MapError::TooShort) } else { Ok(()) }
}

const WRITABLE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Hands what is to be unmapped to the test.
    struct HandedOver(Sender<UnusedMapping>);

    impl Keep for HandedOver {
        fn unmap(self: Box<Self>, pages: UnusedMapping) {
            self.0.send(pages).unwrap();
        }
    }

    /// Bytes that this process has mapped of the memfd `name`.
    fn mapped(name: &str) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let len = |line: &str| {
            let (from, rest) = line.split_once('-')?;
            let to = rest.split(' ').next()?;
            Some(usize::from_str_radix(to, 16).ok()? - usize::from_str_radix(from, 16).ok()?)
        };
        maps.lines().filter(|line| line.contains(name)).filter_map(len).sum()
    }

    #[test]
    fn the_keeper_unmaps_after_the_last_part_and_piece_by_piece() {
        const NAME: &str = "unmapped-by-its-keeper";
        let (ours, fd) = SharedMemory::create(NAME, 4 * PAGE).unwrap();
        drop(ours);
        let (sender, receiver) = channel();
        let memory = SharedMemory::map_keeping(fd.as_fd(), 0, 4 * PAGE, HandedOver(sender)).unwrap();
        let part = memory.part(PAGE, PAGE);
        drop(memory);
        assert!(receiver.try_recv().is_err(), "a part is still in use");
        drop(part);
        let mut pages = receiver.try_recv().unwrap();
        assert_eq!((pages.len(), mapped(NAME)), (4 * PAGE, 4 * PAGE));
        pages.unmap(3 * PAGE);
        assert_eq!((pages.len(), mapped(NAME)), (PAGE, PAGE));
        drop(pages);
        assert_eq!(mapped(NAME), 0);
    }
}
