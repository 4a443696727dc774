//! Registry of accepted connections: how the connecting end finds the process at the other one.
//!
//! A table in shared memory for all accelerated programs of one user in one network namespace. Who accepts a local connection
//! enters the hash of its two addresses and the name of its own process; who has connected looks there. An entry is a hint: the
//! process that it names checks the connection itself (`process::agent`), and one that is wrong leads nowhere. No daemon is
//! needed: nothing here is more than what processes of one user can do to each other anyway.
#![allow(unsafe_code)]

use rdmesh_preload::OwnFd;
use rdmesh_streams::ends::Ends;
use rdmesh_streams::report::{NAME_PREFIX, REPORT_SUFFIX};
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, fstat, ftruncate, openat, stat};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Pid, test_kill_process};
use std::sync::atomic::{AtomicU64, Ordering};

/// Name of a process: its number, and a random one that tells it from others that have had that number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ProcessName {
    pub(crate) pid: u32,
    pub(crate) nonce: u32,
}

/// The mapped table.
pub(crate) struct Registry {
    entries: &'static [Entry; ENTRIES],
    file: OwnFd,
    /// Blocks of the file that have memory, one bit each.
    backed: [AtomicU64; BLOCKS / 64],
}

#[repr(C)]
struct Entry {
    /// Hash of the connection's ends; 0 where there is none.
    key: AtomicU64,
    name: AtomicU64,
}

impl ProcessName {
    fn word(self) -> u64 {
        u64::from(self.pid) << 32 | u64::from(self.nonce)
    }

    fn of(word: u64) -> Self {
        Self { pid: (word >> 32) as u32, nonce: word as u32 }
    }

    /// Its abstract Unix address.
    pub(crate) fn address(self) -> Vec<u8> {
        format!("{NAME_PREFIX}{}/{:08x}", self.pid, self.nonce).into_bytes()
    }

    /// Where it tells of its connections.
    pub(crate) fn report_address(self) -> Vec<u8> {
        [&self.address()[..], REPORT_SUFFIX.as_bytes()].concat()
    }

    fn is_alive(self) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
    }
}

impl Registry {
    /// The table of this user and network namespace. None where it cannot be had, or is not this user's alone.
    pub(crate) fn open() -> Option<Self> {
        let namespace = stat("/proc/thread-self/ns/net").ok()?.st_ino;
        let user = rustix::process::geteuid();
        let path = rdmesh_streams::table::path(user.as_raw(), namespace);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = OwnFd::new(openat(CWD, path, flags, Mode::RUSR | Mode::WUSR).ok()?);
        let found = fstat(&file).ok()?;
        let is_ours = found.st_uid == user.as_raw() && found.st_mode & !0o600 == REGULAR;
        if !is_ours || (found.st_size as usize) < BYTES && ftruncate(&file, BYTES as u64).is_err() {
            return None;
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), BYTES, prot, MapFlags::SHARED, &file, 0).ok()?
        };
        // SAFETY: as long as the array, aligned to a page, never unmapped; atomics, for which every content is valid.
        Some(Self { entries: unsafe { &*base.cast() }, file, backed: [const { AtomicU64::new(0) }; BLOCKS / 64] })
    }

    /// Enters a connection that process `name` has accepted. False where there is no room.
    pub(crate) fn enter(&self, ends: &Ends, name: ProcessName) -> bool {
        let key = ends.hash();
        let claim = |entry: &Entry| {
            let before = entry.key.load(Ordering::Acquire);
            let is_free =
                before == 0 || before == key || !ProcessName::of(entry.name.load(Ordering::Acquire)).is_alive();
            is_free && entry.key.compare_exchange(before, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        // Free ones first: whether a process is alive costs a system call.
        let free = self.places(key).find(|entry| entry.key.load(Ordering::Relaxed) == 0 && claim(entry));
        let Some(entry) = free.or_else(|| self.places(key).find(|entry| claim(entry))) else { return false };
        entry.name.store(name.word(), Ordering::Release);
        entry.key.store(key, Ordering::Release);
        true
    }

    /// The process that has accepted a connection.
    pub(crate) fn find(&self, ends: &Ends) -> Option<ProcessName> {
        let key = ends.hash();
        let entry = self.places(key).find(|entry| entry.key.load(Ordering::Acquire) == key)?;
        Some(ProcessName::of(entry.name.load(Ordering::Acquire)))
    }

    /// Removes what process `name` has entered for a connection.
    pub(crate) fn remove(&self, ends: &Ends, name: ProcessName) {
        let key = ends.hash();
        let is_own = |entry: &&Entry| {
            entry.key.load(Ordering::Acquire) == key && entry.name.load(Ordering::Acquire) == name.word()
        };
        if let Some(entry) = self.places(key).find(is_own) {
            let _ = entry.key.compare_exchange(key, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Entries where a key may be, as far as they have memory.
    fn places(&self, key: u64) -> impl Iterator<Item = &Entry> {
        let numbers = (0..PROBES).map(move |n| (key as usize).wrapping_add(n) % ENTRIES);
        numbers.filter(|&n| self.is_backed(n * size_of::<Entry>() / BLOCK)).map(|n| &self.entries[n])
    }

    /// Whether a block has memory, which it is given now unless it has. Whoever touches one that gets none, because `/dev/shm` is
    /// full, ends by SIGBUS.
    fn is_backed(&self, block: usize) -> bool {
        let (word, bit) = (&self.backed[block / 64], 1 << (block % 64));
        if word.load(Ordering::Relaxed) & bit != 0 {
            return true;
        }
        let give = || fallocate(&self.file, FallocateFlags::empty(), (block * BLOCK) as u64, BLOCK as u64);
        let is_given = retry_on_intr(give).is_ok();
        if is_given {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        is_given
    }
}

const ENTRIES: usize = 1 << 16;
const PROBES: usize = 16;
const BYTES: usize = ENTRIES * size_of::<Entry>();
/// Bytes that are given memory at once.
const BLOCK: usize = 4096;
const BLOCKS: usize = BYTES / BLOCK;
/// `S_IFREG` (stat.h).
const REGULAR: u32 = 0o100_000;
/// Key of an entry that is being written; no hash is that.
const BUSY: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn ends(port: u16) -> Ends {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Ends { connector: address(port), acceptor: address(1) }
    }

    #[test]
    fn a_connection_is_found_until_it_is_removed_by_its_process() {
        let registry = Registry::open().expect("a table");
        let own = ProcessName { pid: std::process::id(), nonce: 7 };
        let other = ProcessName { nonce: 8, ..own };
        assert_eq!(registry.find(&ends(9)), None);
        assert!(registry.enter(&ends(9), own));
        assert_eq!(registry.find(&ends(9)), Some(own));
        registry.remove(&ends(9), other);
        assert_eq!(registry.find(&ends(9)), Some(own));
        registry.remove(&ends(9), own);
        assert_eq!(registry.find(&ends(9)), None);
    }

    #[test]
    fn entries_of_dead_processes_give_way() {
        let registry = Registry::open().expect("a table");
        let dead = ProcessName { pid: i32::MAX as u32, nonce: 1 };
        let own = ProcessName { pid: std::process::id(), nonce: 7 };
        let wanted = ends(10).hash();
        for entry in registry.places(wanted) {
            let key = if entry.key.load(Ordering::SeqCst) == 0 { 99 } else { continue };
            entry.name.store(dead.word(), Ordering::SeqCst);
            entry.key.store(key, Ordering::SeqCst);
        }
        assert!(registry.enter(&ends(10), own));
        assert_eq!(registry.find(&ends(10)), Some(own));
        registry.places(wanted).for_each(|entry| entry.key.store(0, Ordering::SeqCst));
    }
}
