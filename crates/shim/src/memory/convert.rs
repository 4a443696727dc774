//! Page conversion: replaces private pages by arena pages, in place.
#![allow(unsafe_code)]

use super::PAGE;
use super::arena::{self, Arena};
use super::hold::{Hold, Holds};
use super::plan::Convertible;
use super::traits::Carried;
use super::{present, waiters};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::{self, Errno};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;

/// Bytes that are replaced at a time while other threads wait for a fault.
const FAULT_CHUNK: u64 = 8 << 20;
/// The same while they are stopped, which costs them more often than long.
const CHUNK: u64 = 64 << 20;
/// Up to this size copying all pages is cheaper than finding those that were ever touched.
const COPY_ALL: u64 = 256 << 10;
const CHUNK_PAGES: usize = (CHUNK / PAGE) as usize;

/// Converts the segments of one registration.
pub(super) struct Converter {
    holds: Holds,
    pagemap: Option<OwnedFd>,
}

/// Converted pages: those up to `end`, which now lie at `offset` of the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Converted {
    pub(super) end: u64,
    pub(super) offset: u64,
}

impl Converter {
    pub(super) fn new(holds: Holds) -> Self {
        Self { holds, pagemap: None }
    }

    /// Converts `start..end`, which lies in one mapping; less of it where writers cannot be held off.
    pub(super) fn convert(
        &mut self,
        arena: &mut Arena,
        start: u64,
        end: u64,
        what: Convertible,
    ) -> Result<Converted, Errno> {
        arena.open()?;
        let since = arena::emptied_so_far();
        // Where there is no more room the memory stays private.
        let Ok(offset) = arena.place(start, end, what.heap) else { return Ok(Converted { end: start, offset: 0 }) };
        let fd = arena.fd().ok_or(Errno::NOMEM)?;
        if what.anonymous && end - start > COPY_ALL && self.pagemap.is_none() {
            self.pagemap = open_pagemap().ok();
        }
        let mut hold = self.holds.choose(what.anonymous);
        let carried = Carried::of(start, end - start, fd, offset, what.no_dump);
        let by_faults = matches!(hold, Hold::Faults(_));
        let mut at = start;
        while at < end {
            let to = end.min(at + if matches!(hold, Hold::Faults(_)) { FAULT_CHUNK } else { CHUNK });
            let chunk = Chunk { start: at, end: to, what, arena: fd, offset: offset + (at - start) };
            let pagemap = self.pagemap.as_ref().filter(|_| what.anonymous && to - at > COPY_ALL);
            match chunk.convert(&hold, pagemap) {
                Some(done) => done?,
                // The program may have a userfaultfd of its own on the range: one more cannot be registered there.
                None if matches!(hold, Hold::Faults(_)) => {
                    hold = Hold::Stop;
                    continue;
                }
                None => break,
            }
            at = to;
        }
        if at < end {
            arena.release(offset + (at - start), end - at);
        }
        carried.give(start, at);
        // The kernel knows a process-shared futex by its page, which is another one now: its waiters would never be woken.
        if by_faults {
            waiters::rouse(start, at);
        }
        arena.know_present(offset, at - start, since);
        Ok(Converted { end: at, offset })
    }
}

/// Pages that are replaced at once.
struct Chunk<'a> {
    start: u64,
    end: u64,
    what: Convertible,
    arena: BorrowedFd<'a>,
    offset: u64,
}

impl Chunk<'_> {
    /// Copies the pages and maps the arena over them, where those that were never touched are made. None where writers could not be held off.
    ///
    /// While they are, nothing here may allocate, take a lock or write to any memory but this stack.
    fn convert(&self, hold: &Hold, pagemap: Option<&OwnedFd>) -> Option<io::Result<()>> {
        let mut touched = Touched::all();
        let known = pagemap.is_some_and(|pagemap| {
            touched.clear();
            touched.add(pagemap, self.start, self.end, PRESENT | SWAPPED).is_ok()
        });
        let converted = hold.during(self.start, self.end, || {
            // Pages touched since: present now. A page that only userfaultfd has marked looks swapped out.
            let again = pagemap.filter(|_| known).map(|pagemap| touched.add(pagemap, self.start, self.end, PRESENT));
            if !matches!(again, Some(Ok(()))) {
                touched = Touched::all();
            }
            touched.for_each_run(self.pages(), true, |from, to| self.copy(from, to)).and_then(|()| self.map())
        })?;
        let make = |from, to| present::make(self.start + from as u64 * PAGE, self.start + to as u64 * PAGE);
        Some(converted.and_then(|()| touched.for_each_run(self.pages(), false, make)))
    }

    fn pages(&self) -> usize {
        ((self.end - self.start) / PAGE) as usize
    }

    /// Copies pages `from..to` of the chunk. By the kernel, for which memory that is gone is an error and no fault.
    fn copy(&self, from: usize, to: usize) -> io::Result<()> {
        let (mut at, end) = (from as u64 * PAGE, to as u64 * PAGE);
        while at < end {
            let (fd, address, offset) = (self.arena.as_raw_fd(), self.start + at, self.offset + at);
            // SAFETY: only reads the range.
            let written = unsafe { libc::syscall(libc::SYS_pwrite64, fd, address, end - at, offset) };
            if written <= 0 {
                return Err(Errno::NOMEM);
            }
            at += written as u64;
        }
        Ok(())
    }

    fn map(&self) -> io::Result<()> {
        let mut prot = ProtFlags::READ | ProtFlags::WRITE;
        prot.set(ProtFlags::EXEC, self.what.executable);
        let (start, len) = (pointer(self.start), (self.end - self.start) as usize);
        // SAFETY: replaces private memory of the program by shared memory with the same content and rights; no thread writes to
        // it between the copy and this call.
        unsafe { rustix::mm::mmap(start, len, prot, MapFlags::SHARED | MapFlags::FIXED, self.arena, self.offset) }?;
        Ok(())
    }
}

/// The pages of a chunk that were ever touched.
struct Touched([u64; CHUNK_PAGES / 64]);

/// `PAGE_IS_PRESENT` and `PAGE_IS_SWAPPED`.
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
/// The same in an entry for one page.
const PRESENT_BIT: u64 = 1 << 63;
const SWAPPED_BIT: u64 = 1 << 62;

/// `struct pm_scan_arg`.
#[derive(Default)]
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    most_regions: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

const _: () = assert!(size_of::<Scan>() == 96);

/// `struct page_region`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    _states: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
/// Regions that one call reports.
const REGIONS: usize = 128;

impl Touched {
    fn all() -> Self {
        Self([u64::MAX; CHUNK_PAGES / 64])
    }

    fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Adds the pages of `start..end` that are in one of the `states`.
    fn add(&mut self, pagemap: &OwnedFd, start: u64, end: u64, states: u64) -> io::Result<()> {
        match self.scan(pagemap, start, end, states) {
            // Kernels before 6.7 have no such call.
            Err(Errno::NOTTY) => self.read(pagemap, start, end, states),
            result => result,
        }
    }

    fn scan(&mut self, pagemap: &OwnedFd, start: u64, end: u64, states: u64) -> io::Result<()> {
        let mut regions = [Region::default(); REGIONS];
        let mut at = start;
        while at < end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                start: at,
                end,
                regions: regions.as_mut_ptr() as u64,
                most_regions: REGIONS as u64,
                any_of: states,
                returned: states,
                ..Scan::default()
            };
            // SAFETY: the struct is the one of this request; the kernel writes as many regions as there is room for.
            let found = unsafe { libc::syscall(libc::SYS_ioctl, pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
            let Ok(found) = usize::try_from(found) else {
                // SAFETY: this thread's errno.
                return Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() }));
            };
            if scan.walk_end <= at || found > REGIONS {
                return Err(Errno::IO);
            }
            for region in &regions[..found] {
                let pages = region.start.max(start)..region.end.min(end);
                pages.step_by(PAGE as usize).for_each(|address| self.set(((address - start) / PAGE) as usize));
            }
            at = scan.walk_end;
        }
        Ok(())
    }

    fn set(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// The same by an entry for each page.
    fn read(&mut self, pagemap: &OwnedFd, start: u64, end: u64, states: u64) -> io::Result<()> {
        let bits = if states & SWAPPED == 0 { PRESENT_BIT } else { PRESENT_BIT | SWAPPED_BIT };
        let mut entries = [0u8; 4096];
        let pages = ((end - start) / PAGE) as usize;
        let mut page = 0;
        while page < pages {
            let wanted = (entries.len() / 8).min(pages - page) * 8;
            let at = (start / PAGE + page as u64) * 8;
            let len = io::retry_on_intr(|| io::pread(pagemap, &mut entries[..wanted], at))?;
            if len < 8 {
                return Err(Errno::IO);
            }
            for entry in entries[..len].chunks_exact(8) {
                let entry = entry.first_chunk().map_or(u64::MAX, |entry| u64::from_ne_bytes(*entry));
                if entry & bits != 0 {
                    self.set(page);
                }
                page += 1;
            }
        }
        Ok(())
    }

    /// Calls `visit` for every run of touched pages among the first `pages`, or of untouched ones.
    fn for_each_run(
        &self,
        pages: usize,
        touched: bool,
        mut visit: impl FnMut(usize, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let is_touched = |page: usize| self.0[page / 64] & 1 << (page % 64) != 0;
        let mut from = 0;
        while from < pages {
            let to = (from..pages).find(|&page| is_touched(page) != is_touched(from)).unwrap_or(pages);
            if is_touched(from) == touched {
                visit(from, to)?;
            }
            from = to;
        }
        Ok(())
    }
}

fn open_pagemap() -> io::Result<OwnedFd> {
    rustix::fs::openat(CWD, c"/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_asking_agree() {
        const PAGES: usize = 1000;
        let (len, both) = (PAGES * PAGE as usize, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: fresh memory.
        let memory = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, both, MapFlags::PRIVATE) }.unwrap();
        // More runs than one call reports.
        for page in (0..PAGES).filter(|page| page % 3 == 1) {
            // SAFETY: within.
            unsafe { memory.cast::<u8>().add(page * PAGE as usize).write_volatile(1) };
        }
        let (pagemap, start) = (open_pagemap().unwrap(), memory as u64);
        let by = |ask: fn(&mut Touched, &OwnedFd, u64, u64, u64) -> io::Result<()>| {
            let mut touched = Touched([0; CHUNK_PAGES / 64]);
            let asked = ask(&mut touched, &pagemap, start, start + len as u64, PRESENT | SWAPPED);
            asked.map(|()| (0..PAGES).filter(|page| touched.0[page / 64] & 1 << (page % 64) != 0).collect::<Vec<_>>())
        };
        let expected = by(Touched::read).unwrap();
        // More are where the kernel gives huge pages unasked.
        assert!((0..PAGES).filter(|page| page % 3 == 1).all(|page| expected.contains(&page)));
        match by(Touched::scan) {
            Err(Errno::NOTTY) => eprintln!("skipped: this kernel has no PAGEMAP_SCAN"),
            scanned => assert_eq!(scanned, Ok(expected)),
        }
        // SAFETY: the test's own.
        unsafe { rustix::mm::munmap(memory, len) }.unwrap();
    }

    #[test]
    fn runs_are_those_of_the_touched_pages() {
        let mut touched = Touched::all();
        touched.clear();
        for page in [0, 1, 63, 64, 100] {
            touched.0[page / 64] |= 1 << (page % 64);
        }
        let mut runs = Vec::new();
        touched
            .for_each_run(101, true, |from, to| {
                runs.push((from, to));
                Ok(())
            })
            .unwrap();
        assert_eq!(runs, [(0, 2), (63, 65), (100, 101)]);
        let mut untouched = 0;
        touched
            .for_each_run(101, false, |from, to| {
                untouched += to - from;
                Ok(())
            })
            .unwrap();
        assert_eq!(untouched, 96);
    }
}
