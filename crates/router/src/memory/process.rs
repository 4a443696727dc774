//! Private memory of a tenant process, through `/proc/PID/mem`.

use super::allowance::WaitAllowance;
use super::helper::{self, CHUNK};
use super::late::{self, Buffer, Copy, Found, Kind, Lease};
use super::raw;
use crate::budget::{Charge, Exhausted, Resource, Share};
use rdmesh_nic::platform::Fault;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{self, Errno, pread, pwrite};
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A process's memory, by way of `/proc/PID/mem`.
///
/// The descriptor belongs to the address space that the process had when it was opened: should the process end and its
/// number be used again, reads give nothing; another process's memory is never reached.
#[derive(Clone)]
pub struct ProcessMemory {
    file: Arc<File>,
    allowance: WaitAllowance,
    share: Share,
}

struct File {
    fd: OwnedFd,
    /// Told from others, also earlier ones.
    number: u64,
    _charge: Charge,
}

impl ProcessMemory {
    /// Opens the memory of process `pid`. The router must be allowed to trace it. Accesses that take too long count
    /// against `allowance`, the descriptor against `share`.
    pub fn open(pid: i32, allowance: &WaitAllowance, share: &Share) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let charge = share.take(Resource::Descriptors, 1)?;
        let fd = open(format!("/proc/{pid}/mem"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let file = File { fd, number: NEXT.fetch_add(1, Ordering::Relaxed), _charge: charge };
        Ok(Self { file: Arc::new(file), allowance: allowance.clone(), share: share.clone() })
    }

    /// Copies `len` bytes from `addr` in the process to `to`, which the caller resolved to `len` writable bytes.
    pub(super) fn read_raw(&self, addr: u64, to: *mut u8, len: usize) -> Result<(), Fault> {
        for (done, part) in chunks(len) {
            let (file, at) = (self.file.clone(), offset(addr, done)?);
            self.run(
                self.copy(Kind::Read, at, part),
                |buffer| {
                    buffer.resize(part, 0);
                    Ok(())
                },
                move |buffer| file.read(at, &mut buffer[..part]),
                |buffer| raw::copy(buffer.as_ptr(), to.wrapping_add(done), part),
            )?;
        }
        Ok(())
    }

    /// Copies `len` bytes from `from`, which the caller resolved to `len` readable bytes, to `addr` in the process.
    pub(super) fn write_raw(&self, addr: u64, from: *const u8, len: usize) -> Result<(), Fault> {
        for (done, part) in chunks(len) {
            let (file, at) = (self.file.clone(), offset(addr, done)?);
            self.run(
                self.copy(Kind::Write, at, part),
                |buffer| {
                    buffer.resize(part, 0);
                    raw::copy(from.wrapping_add(done), buffer.as_mut_ptr(), part)
                },
                move |buffer| file.write(at, &buffer[..part]),
                |_| Ok(()),
            )?;
        }
        Ok(())
    }

    /// An atomic on the eight bytes at `addr` in the process: stores what `change` makes of them; returns the old ones. The
    /// atomics of an endpoint exclude each other.
    pub(super) fn atomic(&self, addr: u64, change: impl FnOnce(u64) -> u64 + Send + 'static) -> Result<u64, Fault> {
        let (file, allowance, at) = (self.file.clone(), self.allowance.clone(), offset(addr, 0)?);
        let job = move |buffer: &mut Buffer| {
            let _excluded = allowance.exclude_atomics();
            let mut word = [0; WORD];
            file.read(at, &mut word)?;
            buffer.clear();
            buffer.extend(word);
            let old = u64::from_ne_bytes(word);
            let new = change(old);
            if new == old { Ok(()) } else { file.write(at, &new.to_ne_bytes()) }
        };
        let mut old = 0;
        let take = |buffer: &Buffer| {
            old = u64::from_ne_bytes(buffer[..].try_into().map_err(|_| Fault::Gone)?);
            Ok(())
        };
        self.run(self.copy(Kind::Atomic, at, WORD), |_| Ok(()), job, take)?;
        Ok(old)
    }

    /// Has the helper run `job`, unless that was done for the same packet before.
    fn run(
        &self,
        copy: Copy,
        fill: impl Fn(&mut Buffer) -> Result<(), Fault>,
        job: impl FnOnce(&mut Buffer) -> Result<(), Fault> + Send + 'static,
        drain: impl FnOnce(&Buffer) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let late = self.allowance.late();
        match late.find(&copy) {
            Found::UnderWay => return Err(Fault::Slow),
            Found::Done(result, buffer) if copy.kind != Kind::Write || is_same(&buffer, &fill) => {
                return result.and_then(|()| drain(&buffer));
            }
            Found::Done(..) | Found::New => {}
        }
        // The first thread that stays away is the endpoint's by right.
        let mut charge = self.allowance.has_abandoned().then(|| self.thread()).transpose().map_err(|_| Fault::Slow)?;
        let (is_read, is_atomic, is_lost) = (copy.kind == Kind::Read, copy.kind == Kind::Atomic, Cell::new(false));
        let lease = || {
            let (under_way, is_kept) = late.begin(copy, charge.take().or_else(|| self.thread().ok()));
            is_lost.set(is_atomic && !is_kept);
            Box::new(under_way) as Box<dyn Lease>
        };
        let result = helper::run(&self.allowance, is_read, lease, &fill, job, drain);
        // Trying it again could execute it twice.
        if result == Err(Fault::Slow) && is_lost.get() { Err(Fault::Gone) } else { result }
    }

    fn copy(&self, kind: Kind, at: u64, len: usize) -> Copy {
        Copy { process: self.file.number, range: at..at + len as u64, kind, packet: late::served() }
    }

    /// The charge for a thread that a copy may block.
    fn thread(&self) -> Result<Charge, Exhausted> {
        self.share.take(Resource::Threads, 1)
    }
}

impl File {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Fault> {
        transfer(to.len(), |done| pread(&self.fd, &mut to[done..], at + done as u64))
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Fault> {
        transfer(from.len(), |done| pwrite(&self.fd, &from[done..], at + done as u64))
    }
}

/// Whether the data to be written is what was written before.
fn is_same(written: &Buffer, fill: impl FnOnce(&mut Buffer) -> Result<(), Fault>) -> bool {
    let mut data = Buffer::new();
    fill(&mut data).is_ok() && data == *written
}

/// Offset and length of the pieces of a long copy.
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

/// Bytes of an atomic.
const WORD: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, Limits};
    use rdmesh_nic::platform::PacketId;
    use rdmesh_verbs::{Psn, Qpn};
    use std::sync::atomic::AtomicU64;

    fn own_memory() -> ProcessMemory {
        let share = Budget::new(Limits::of_this_process()).share(u32::MAX);
        ProcessMemory::open(rustix::process::getpid().as_raw_nonzero().get(), &WaitAllowance::default(), &share)
            .unwrap()
    }

    /// Tries again as a queue pair does.
    fn patiently<T>(attempt: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
        std::iter::repeat_with(attempt).find(|result| !matches!(result, Err(Fault::Slow))).unwrap()
    }

    #[test]
    fn an_atomic_is_executed_once_however_often_its_packet_comes() {
        static WORD: AtomicU64 = AtomicU64::new(7);
        let (memory, addr) = (own_memory(), WORD.as_ptr().addr() as u64);
        let packet = |psn| Some(PacketId { qpn: Qpn::new(17), connection: 1, is_response: false, psn: Psn::new(psn) });
        late::serve(packet(1));
        // Another thread has the lock: no worker waits for it.
        let excluded = memory.allowance.exclude_atomics();
        while !memory.allowance.has_abandoned() {
            assert_eq!(memory.atomic(addr, |old| old + 1), Err(Fault::Slow));
        }
        drop(excluded);
        assert_eq!(patiently(|| memory.atomic(addr, |old| old + 1)), Ok(7));
        // The same again: what was kept for it.
        assert_eq!((memory.atomic(addr, |old| old + 1), WORD.load(Ordering::Relaxed)), (Ok(7), 8));
        late::serve(packet(2));
        assert_eq!((patiently(|| memory.atomic(addr, |old| old + 1)), WORD.load(Ordering::Relaxed)), (Ok(8), 9));
        late::serve(None);
    }

    #[test]
    fn copies_of_any_length_arrive() {
        let (memory, from) = (own_memory(), (0..3 * CHUNK + 5).map(|i| i as u8).collect::<Vec<_>>());
        let mut to = vec![0u8; from.len()];
        let (at, there) = (from.as_ptr().addr() as u64, to.as_mut_ptr());
        assert_eq!(patiently(|| memory.read_raw(at, there, from.len())), Ok(()));
        assert!(to == from);
        to.fill(0);
        let at = to.as_mut_ptr().addr() as u64;
        assert_eq!(patiently(|| memory.write_raw(at, from.as_ptr(), from.len())), Ok(()));
        assert!(to == from);
    }
}
