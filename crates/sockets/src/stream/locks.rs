//! Locks of a stream's directions, in memory that forked children share and peers do not.
#![allow(unsafe_code)]

use crate::lock::LockWord;
use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// State that a stream's processes share, which have inherited it from each other.
#[repr(C, align(64))]
pub(crate) struct Locks {
    /// Held by the thread that writes.
    pub(crate) tx: LockWord,
    /// Held by the thread that reads.
    pub(crate) rx: LockWord,
    left: AtomicU64,
}

impl Locks {
    /// As for a stream that has just been made.
    pub(crate) fn reset(&self) {
        self.left.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Bytes to be read from TCP before those of the ring; none while that has not been found out. For the reader.
    pub(crate) fn left(&self) -> Option<u64> {
        Some(self.left.load(Ordering::Acquire)).filter(|left| *left != UNKNOWN)
    }

    /// Sets it.
    pub(crate) fn set_left(&self, left: u64) {
        self.left.store(left, Ordering::Release);
    }
}

/// The locks of a process's streams.
pub(crate) struct LocksArea {
    base: NonNull<Locks>,
    count: usize,
}

// SAFETY: shared memory of atomics, which any thread may use.
unsafe impl Send for LocksArea {}
// SAFETY: as above.
unsafe impl Sync for LocksArea {}

impl LocksArea {
    /// Locks for so many streams. Pages that no stream needs cost nothing.
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), count * size_of::<Locks>(), prot, MapFlags::SHARED)? };
        Ok(Self { base: NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?, count })
    }

    /// Those of stream `index`.
    pub(crate) fn get(&self, index: u32) -> &Locks {
        assert!((index as usize) < self.count);
        // SAFETY: within the mapping, which is never unmapped; all zeros are unlocked locks.
        unsafe { self.base.add(index as usize).as_ref() }
    }
}

const UNKNOWN: u64 = u64::MAX;
