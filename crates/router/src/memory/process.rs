//! Private memory of a tenant process, through `/proc/PID/mem`.

use super::helper::{self, CHUNK, Lease, Patience};
use super::raw;
use crate::budget::{Charge, Resource, Share};
use rdmesh_nic::platform::Fault;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{self, Errno, pread, pwrite};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A process's memory, by way of `/proc/PID/mem`.
///
/// The descriptor belongs to the address space that the process had when it was opened: should the process end and its
/// number be used again, reads give nothing; another process's memory is never reached.
#[derive(Clone)]
pub struct ProcessMemory {
    file: Arc<File>,
    patience: Patience,
}

struct File {
    fd: OwnedFd,
    away: Arc<Places>,
    _charge: Charge,
}

/// Ranges that abandoned threads still read or write. Nothing else is copied there meanwhile: a late write would replace newer
/// data.
#[derive(Default)]
struct Places {
    count: AtomicUsize,
    ranges: Mutex<Vec<Range<u64>>>,
}

/// One of them, until it is dropped.
struct Place {
    places: Arc<Places>,
    range: Range<u64>,
}

impl Places {
    fn occupy(self: &Arc<Self>, range: Range<u64>) -> Place {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.push(range.clone());
        self.count.store(ranges.len(), Ordering::Release);
        Place { places: self.clone(), range }
    }

    fn is_occupied(&self, range: &Range<u64>) -> bool {
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        self.count.load(Ordering::Acquire) != 0
            && self.ranges.lock().unwrap_or_else(PoisonError::into_inner).iter().any(overlaps)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut ranges = self.places.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = ranges.iter().position(|range| *range == self.range) {
            ranges.swap_remove(at);
        }
        self.places.count.store(ranges.len(), Ordering::Release);
    }
}

impl ProcessMemory {
    /// Opens the memory of process `pid`. The router must be allowed to trace it. Accesses that take too long count
    /// against `patience`, the descriptor against `share`.
    pub fn open(pid: i32, patience: &Patience, share: &Share) -> io::Result<Self> {
        let charge = share.take(Resource::Descriptors, 1)?;
        let fd = open(format!("/proc/{pid}/mem"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { file: Arc::new(File { fd, away: Arc::default(), _charge: charge }), patience: patience.clone() })
    }

    /// Copies `len` bytes from `addr` in the process to `to`, which the caller resolved to `len` writable bytes.
    pub(super) fn read_raw(&self, addr: u64, to: *mut u8, len: usize) -> Result<(), Fault> {
        for (done, part) in chunks(len) {
            let (file, at) = (self.file.clone(), offset(addr, done)?);
            let lease = self.lease(at, part)?;
            helper::run(
                &self.patience,
                lease,
                |buffer| {
                    buffer.resize(part, 0);
                    Ok(())
                },
                move |buffer| transfer(part, |done| pread(&file.fd, &mut buffer[done..], at + done as u64)),
                |buffer| raw::copy(buffer.as_ptr(), to.wrapping_add(done), part),
            )?;
        }
        Ok(())
    }

    /// Copies `len` bytes from `from`, which the caller resolved to `len` readable bytes, to `addr` in the process.
    pub(super) fn write_raw(&self, addr: u64, from: *const u8, len: usize) -> Result<(), Fault> {
        for (done, part) in chunks(len) {
            let (file, at) = (self.file.clone(), offset(addr, done)?);
            let lease = self.lease(at, part)?;
            helper::run(
                &self.patience,
                lease,
                |buffer| {
                    buffer.resize(part, 0);
                    raw::copy(from.wrapping_add(done), buffer.as_mut_ptr(), part)
                },
                move |buffer| transfer(part, |done| pwrite(&file.fd, &buffer[done..], at + done as u64)),
                |_| Ok(()),
            )?;
        }
        Ok(())
    }

    /// Whether an abandoned thread still copies a part of the range.
    pub(super) fn is_occupied(&self, addr: u64, len: usize) -> bool {
        self.file.away.is_occupied(&(addr..addr.saturating_add(len as u64)))
    }

    /// The lease of a thread that copies there, for when it is abandoned; a fault where an abandoned thread copies there
    /// already.
    fn lease(&self, addr: u64, len: usize) -> Result<impl FnOnce() -> Lease, Fault> {
        if self.is_occupied(addr, len) {
            return Err(Fault::Slow);
        }
        let places = self.file.away.clone();
        Ok(move || Box::new(places.occupy(addr..addr + len as u64)) as Lease)
    }
}

/// Where the pieces of a long copy begin, and how long they are.
fn chunks(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(CHUNK).map(move |done| (done, CHUNK.min(len - done)))
}

/// The offset in the file; none beyond what a file offset can express.
fn offset(addr: u64, done: usize) -> Result<u64, Fault> {
    let end = addr.checked_add((done + CHUNK) as u64).ok_or(Fault::Gone)?;
    if i64::try_from(end).is_ok() { Ok(addr + done as u64) } else { Err(Fault::Gone) }
}

/// Repeats a partial transfer until `len` bytes are done.
fn transfer(len: usize, mut step: impl FnMut(usize) -> io::Result<usize>) -> Result<(), Fault> {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(n) if n > 0 => done += n,
            Err(Errno::INTR) => {}
            _ => return Err(Fault::Gone),
        }
    }
    Ok(())
}

/// Copies between the private memories of two processes.
pub(super) fn copy(
    from: &ProcessMemory,
    from_addr: u64,
    to: &ProcessMemory,
    to_addr: u64,
    len: usize,
) -> Result<(), Fault> {
    let mut buffer = [0; CHUNK];
    let mut done = 0;
    while done < len {
        let take = buffer.len().min(len - done);
        from.read_raw(from_addr + done as u64, buffer.as_mut_ptr(), take)?;
        to.write_raw(to_addr + done as u64, buffer.as_ptr(), take)?;
        done += take;
    }
    Ok(())
}
