//! Traits of mappings beyond their rights (mlock, NUMA policy, MADV_DONTDUMP), which the conversion carries over, or for which it leaves them alone.
//!
//! | | |
//! |---|---|
//! | locked (`mlock`), `MADV_DONTDUMP`, NUMA policy (`mbind`) | carried over |
//! | `MADV_WIPEONFORK`, protection keys, the program's own userfaultfd | the memory stays private |
//!
//! The kernel tells of most only in `/proc/self/smaps`, which takes long in a large process. So that is read only where the
//! program is known to have asked for such a thing, by the functions of libc, for memory near by.
#![allow(unsafe_code)]

use super::status;
use rustix::fd::BorrowedFd;
use rustix::io;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that may have such traits lies between these.
static LOW: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGH: AtomicU64 = AtomicU64::new(0);

/// The program asked for a trait of the memory at `start`. Takes no lock, for the caller may be an allocator.
pub(crate) fn may_have_traits(start: u64, len: u64) {
    LOW.fetch_min(start, Ordering::Relaxed);
    HIGH.fetch_max(start.saturating_add(len), Ordering::Relaxed);
}

/// Mappings with traits in a range.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Traits {
    /// To be left alone.
    pub(super) private: Vec<(u64, u64)>,
    /// Not to be dumped.
    pub(super) no_dump: Vec<(u64, u64)>,
}

impl Traits {
    /// Those of `start..end`.
    pub(super) fn of(start: u64, end: u64) -> Self {
        if end <= LOW.load(Ordering::Relaxed) || HIGH.load(Ordering::Relaxed) <= start {
            return Self::default();
        }
        match status::whole("/proc/self/smaps") {
            Some(text) => Self::parse(&text, start, end),
            None => Self { private: vec![(start, end)], no_dump: Vec::new() },
        }
    }

    fn parse(text: &str, start: u64, end: u64) -> Self {
        let (mut traits, mut here) = (Self::default(), None);
        for line in text.lines() {
            if let Some(range) = range(line) {
                here = Some(range).filter(|&(from, to)| from < end && start < to);
            }
            let Some(range) = here else { continue };
            if let Some(flags) = line.strip_prefix("VmFlags:") {
                let has = |wanted: &[&str]| flags.split_ascii_whitespace().any(|flag| wanted.contains(&flag));
                if has(&["wf", "um", "uw", "ui", "gd", "ss", "sl"]) {
                    traits.private.push(range);
                }
                if has(&["dd"]) {
                    traits.no_dump.push(range);
                }
            } else if line.strip_prefix("ProtectionKey:").is_some_and(|key| key.trim() != "0") {
                traits.private.push(range);
            }
        }
        traits
    }
}

/// The range at the beginning of a mapping's first line.
fn range(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
}

/// Attributes of a mapping that are carried over to the one that replaces it.
pub(super) struct Carried {
    locked: u64,
    no_dump: bool,
}

impl Carried {
    /// Of `start..`, before it is replaced by the arena from `offset` on. Its NUMA policy is the arena's then.
    pub(super) fn of(start: u64, len: u64, arena: BorrowedFd<'_>, offset: u64, no_dump: bool) -> Self {
        if let Some(policy) = Policy::of(start) {
            // Without it the pages come from where the thread takes its memory.
            let _ = policy.give(len, arena, offset);
        }
        Self { locked: status::bytes("VmLck"), no_dump }
    }

    /// Gives it to `start..end`, which has been replaced.
    pub(super) fn give(&self, start: u64, end: u64) {
        let (at, len) = (std::ptr::with_exposed_provenance_mut::<c_void>(start as usize), (end - start) as usize);
        // Less is locked than was: all of what was replaced, for that was one mapping.
        if self.locked > 0 && status::bytes("VmLck") < self.locked {
            // SAFETY: changes no content.
            unsafe { libc::syscall(libc::SYS_mlock, at, len) };
        }
        if self.no_dump {
            // SAFETY: changes no content.
            unsafe { libc::syscall(libc::SYS_madvise, at, len, libc::MADV_DONTDUMP) };
        }
    }
}

/// A NUMA policy other than the default.
struct Policy {
    mode: i32,
    nodes: [u64; NODES / 64],
}

const NODES: usize = 1024;
const MPOL_F_ADDR: u32 = 1 << 1;

impl Policy {
    /// That of the mapping at `address`.
    fn of(address: u64) -> Option<Self> {
        let mut policy = Self { mode: 0, nodes: [0; NODES / 64] };
        let (mode, nodes) = (&raw mut policy.mode, policy.nodes.as_mut_ptr());
        // SAFETY: the kernel writes an integer and a mask of as many bits.
        let known = unsafe { libc::syscall(libc::SYS_get_mempolicy, mode, nodes, NODES, address, MPOL_F_ADDR) };
        (known == 0 && policy.mode != libc::MPOL_DEFAULT).then_some(policy)
    }

    /// Gives it to a part of the arena, which keeps it: pages made there later obey it.
    fn give(&self, len: u64, arena: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        // SAFETY: fresh memory, gone again at the end.
        unsafe {
            let there =
                rustix::mm::mmap(null_mut(), len as usize, ProtFlags::empty(), MapFlags::SHARED, arena, offset)?;
            // The kernel takes one bit less than it is told.
            libc::syscall(libc::SYS_mbind, there, len, self.mode, self.nodes.as_ptr(), NODES + 1, 0);
            rustix::mm::munmap(there, len as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traits_are_read_as_the_kernel_lists_them() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nProtectionKey:         0\nVmFlags: rd wr mr mw me dd \n\
                    3000-4000 rw-p 00000000 00:00 0 [heap]\nProtectionKey:         3\nVmFlags: rd wr mr mw me \n\
                    4000-5000 rw-p 00000000 00:00 0 \nProtectionKey:         0\nVmFlags: rd wr wf \n\
                    5000-6000 rw-p 00000000 00:00 0 \nVmFlags: rd wr um \n";
        let traits = Traits::parse(text, 0x2000, 0x5000);
        assert_eq!(traits.no_dump, [(0x1000, 0x3000)]);
        assert_eq!(traits.private, [(0x3000, 0x4000), (0x4000, 0x5000)]);
    }
}
