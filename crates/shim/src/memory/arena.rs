//! The arena: the memfd whose pages registered memory consists of.
//!
//! Memory that the program may move and enlarge (`mremap`, as `realloc` does) keeps its offset, and the part by which it grows
//! has the offsets that follow. So each range gets a window of its own, which begins with it and is longer than it can ever
//! grow. Only the heap that `brk` makes cannot be moved; there a page's offset is its address, and neighbours that are
//! converted one after the other become one mapping.
#![allow(unsafe_code)]

use super::maps::{Maps, Vma};
use super::present;
use rdmesh_preload::OwnFd;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{self, Errno};
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// This process's arena.
pub(super) static ARENA: Mutex<Arena> = Mutex::new(Arena::new());

const SIZE: u64 = 1 << 62;
/// Bytes of a window. The first ones are the heap's: all addresses lie there.
const WINDOW: u64 = 1 << 40;
const FIRST_WINDOW: u64 = 1 << 48;
/// Converted bytes, and ranges, after which the arena is scanned for pages that are no longer mapped.
const SURVEY_BYTES: u64 = 64 << 20;
const SURVEY_RANGES: u32 = 256;
/// Ranges beyond which no more memory is converted: each is a mapping, and a process may have 65530 (`max_map_count`).
const MOST_RANGES: usize = 30_000;

/// Count of removals of arena pages other than by the arena itself: pages that were known to be present may be missing.
static EMPTIED: AtomicU32 = AtomicU32::new(0);

/// Device and inode of every arena that this process has had: the last one first. More than one only where a program closed the
/// descriptor without the replaced functions.
static KNOWN: [(AtomicU64, AtomicU64); 4] = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 4];

/// The arena, and its offsets in use.
pub(super) struct Arena {
    fd: Option<OwnFd>,
    file: (u64, u64),
    /// Offsets in use, as far as is known: sorted, apart from each other.
    used: Vec<(u64, u64)>,
    /// Offsets whose pages are all there, as long as [`EMPTIED`] is `present_since`: sorted, apart from each other.
    present: Vec<(u64, u64)>,
    present_since: u32,
    /// The next window that was never used.
    window: u64,
    /// Since the last survey.
    turned_bytes: u64,
    turned_ranges: u32,
}

/// Whether this process has converted any memory.
pub(super) fn exists() -> bool {
    KNOWN[0].1.load(Ordering::Relaxed) != 0
}

/// Whether a mapping is arena memory, of this arena or an earlier one.
pub(super) fn is_arena(vma: &Vma) -> bool {
    vma.shared
        && vma.file.1 != 0
        && KNOWN
            .iter()
            .any(|(device, inode)| vma.file == (device.load(Ordering::Relaxed), inode.load(Ordering::Relaxed)))
}

/// Empties the arena pages of a range: they read as zeros then. Takes no lock and allocates nothing, for the caller may
/// be an allocator.
pub(super) fn empty(start: u64, end: u64) {
    let Ok(maps) = Maps::open() else { return };
    let _ = maps.visit(start, end, |vma| {
        if is_arena(&vma) {
            let (from, to) = (vma.start.max(start), vma.end.min(end));
            let address = std::ptr::with_exposed_provenance_mut::<c_void>(from as usize);
            // SAFETY: the program has just given up the content of these pages.
            unsafe { libc::syscall(libc::SYS_madvise, address, to - from, libc::MADV_REMOVE) };
            // Now, so that a registration that saw them before counts as one that may not have.
            emptied();
        }
    });
}

/// Arena pages may have been removed: registrations make sure again that theirs are present.
pub(super) fn emptied() {
    EMPTIED.fetch_add(1, Ordering::SeqCst);
}

/// See [`Arena::know_present`].
pub(super) fn emptied_so_far() -> u32 {
    EMPTIED.load(Ordering::SeqCst)
}

/// Forgets the arena, in a child that has its own copy of everything. Frees no memory: see `fork`.
pub(super) fn forget() {
    let mut arena = ARENA.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    arena.fd = None;
    arena.used.clear();
    arena.present.clear();
    KNOWN.iter().for_each(|(_, inode)| inode.store(0, Ordering::Relaxed));
}

impl Arena {
    pub(super) const fn new() -> Self {
        Self {
            fd: None,
            file: (0, 0),
            used: Vec::new(),
            present: Vec::new(),
            present_since: 0,
            window: FIRST_WINDOW,
            turned_bytes: 0,
            turned_ranges: 0,
        }
    }

    /// Its descriptor, once there is one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(OwnFd::as_fd)
    }

    /// Device and inode of the file.
    pub(super) fn file(&self) -> (u64, u64) {
        self.file
    }

    /// Makes it if there is none, or if the program has closed its descriptor.
    pub(super) fn open(&mut self) -> io::Result<()> {
        let still_open =
            |fd: &OwnFd| rustix::fs::fstat(fd.as_fd()).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.file);
        if self.fd.as_ref().is_some_and(still_open) {
            return Ok(());
        }
        let fd = memfd_create("rdmesh-arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, SIZE)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let stat = rustix::fs::fstat(&fd)?;
        *self = Self::new();
        self.file = (stat.st_dev, stat.st_ino);
        for i in (1..KNOWN.len()).rev() {
            KNOWN[i].0.store(KNOWN[i - 1].0.load(Ordering::Relaxed), Ordering::Relaxed);
            KNOWN[i].1.store(KNOWN[i - 1].1.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        KNOWN[0].0.store(self.file.0, Ordering::Relaxed);
        KNOWN[0].1.store(self.file.1, Ordering::Relaxed);
        self.fd = Some(OwnFd::new(fd));
        Ok(())
    }

    /// An offset for `start..end`, which is not in the arena yet. Nothing else uses it, and it reads zeros.
    pub(super) fn place(&mut self, start: u64, end: u64, heap: bool) -> io::Result<u64> {
        self.turned_bytes += end - start;
        self.turned_ranges += 1;
        if self.turned_bytes > SURVEY_BYTES || self.turned_ranges > SURVEY_RANGES {
            self.survey()?;
        }
        if self.used.len() > MOST_RANGES || end - start > WINDOW {
            return Err(Errno::NOMEM);
        }
        let offset = if heap { start } else { self.next_window()? };
        if heap {
            // The heap may have shrunk and grown since these addresses were converted before.
            self.punch(offset, offset + (end - start));
        }
        insert(&mut self.used, offset, offset + (end - start));
        Ok(offset)
    }

    /// Gives back the pages at `offset`: they are not mapped any more.
    pub(super) fn release(&mut self, offset: u64, len: u64) {
        self.punch(offset, offset + len);
        remove(&mut self.used, offset, offset + len);
    }

    /// Makes sure that every page of `start..end`, which is mapped from `offset` of the arena, is there: the router never
    /// makes one, so that each is charged to this process's cgroup. ENOMEM where there is no more memory.
    pub(super) fn make_present(&mut self, start: u64, end: u64, offset: u64) -> io::Result<()> {
        let since = emptied_so_far();
        if since == self.present_since && covers(&self.present, offset, offset + (end - start)) {
            return Ok(());
        }
        present::make(start, end).map_err(|_| Errno::NOMEM)?;
        self.know_present(offset, end - start, since);
        Ok(())
    }

    /// The pages at `offset` were made, after [`emptied_so_far`] was `since`: later removals are not known.
    pub(super) fn know_present(&mut self, offset: u64, len: u64, since: u32) {
        if since != self.present_since {
            self.present.clear();
            self.present_since = since;
        }
        if len > 0 {
            insert(&mut self.present, offset, offset + len);
        }
    }

    /// Gives back pages.
    fn punch(&mut self, from: u64, to: u64) {
        remove(&mut self.present, from, to);
        if let Some(fd) = &self.fd {
            punch(fd, from, to - from);
        }
    }

    fn next_window(&mut self) -> io::Result<u64> {
        if self.window < SIZE {
            self.window += WINDOW;
            return Ok(self.window - WINDOW);
        }
        // Millions of windows later: one that a survey has found empty.
        self.survey()?;
        let mut next = FIRST_WINDOW;
        for &(from, to) in self.used.iter().filter(|&&(_, to)| to > FIRST_WINDOW) {
            if next + WINDOW <= from {
                break;
            }
            next = next.max(to.next_multiple_of(WINDOW));
        }
        if next < SIZE { Ok(next) } else { Err(Errno::NOMEM) }
    }

    /// Gives back the pages that no mapping has any more.
    fn survey(&mut self) -> io::Result<()> {
        let maps = Maps::open()?;
        let mut live = Vec::new();
        // Twice: memory that another thread moves meanwhile, from after the place that is being read to before it, is
        // missed once.
        for _ in 0..2 {
            maps.read(|vma| {
                if vma.shared && vma.file == self.file {
                    insert(&mut live, vma.offset, vma.offset + (vma.end - vma.start));
                }
            })?;
        }
        let mut dead = std::mem::replace(&mut self.used, live);
        self.used.iter().for_each(|&(from, to)| remove(&mut dead, from, to));
        dead.iter().for_each(|&(from, to)| self.punch(from, to));
        (self.turned_bytes, self.turned_ranges) = (0, 0);
        Ok(())
    }
}

fn punch(fd: &OwnFd, offset: u64, len: u64) {
    // A failure only wastes memory.
    let _ = rustix::fs::fallocate(fd.as_fd(), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len);
}

/// Whether a range lies in one of a sorted list of ranges.
fn covers(ranges: &[(u64, u64)], from: u64, to: u64) -> bool {
    let next = ranges.partition_point(|range| range.0 <= from);
    next > 0 && to <= ranges[next - 1].1
}

/// Adds a range to a sorted list of ranges.
fn insert(ranges: &mut Vec<(u64, u64)>, mut from: u64, mut to: u64) {
    let first = ranges.partition_point(|range| range.1 < from);
    let last = ranges.partition_point(|range| range.0 <= to);
    if let Some(touching) = ranges.get(first..last).filter(|touching| !touching.is_empty()) {
        from = from.min(touching[0].0);
        to = to.max(touching[touching.len() - 1].1);
    }
    ranges.splice(first..last, [(from, to)]);
}

/// Takes a range out of a sorted list of ranges.
fn remove(ranges: &mut Vec<(u64, u64)>, from: u64, to: u64) {
    let first = ranges.partition_point(|range| range.1 <= from);
    let last = ranges.partition_point(|range| range.0 < to);
    let touched: Vec<_> = ranges.get(first..last).unwrap_or_default().to_vec();
    let left = touched.iter().flat_map(|&(start, end)| [(start, end.min(from)), (start.max(to), end)]);
    ranges.splice(first..last, left.filter(|range| range.0 < range.1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_come_apart() {
        let mut ranges = Vec::new();
        for range in [(10, 20), (30, 40), (20, 25), (0, 5)] {
            insert(&mut ranges, range.0, range.1);
        }
        assert_eq!(ranges, [(0, 5), (10, 25), (30, 40)]);
        insert(&mut ranges, 4, 31);
        assert_eq!(ranges, [(0, 40)]);
        assert!(covers(&ranges, 0, 40) && covers(&ranges, 39, 40));
        remove(&mut ranges, 10, 20);
        remove(&mut ranges, 35, 50);
        assert_eq!(ranges, [(0, 10), (20, 35)]);
        assert!(covers(&ranges, 20, 35) && !covers(&ranges, 9, 21) && !covers(&ranges, 15, 16));
        remove(&mut ranges, 0, 100);
        assert!(!covers(&ranges, 0, 1));
        assert_eq!(ranges, []);
    }
}
