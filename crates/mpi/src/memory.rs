//! The program's buffers, and memory of our own that peers reach: copies, by address.
//!
//! MPI's calls name buffers by address. They are the program's for as long as an operation on them is pending (MPI 4.1, 3.7.2),
//! and are never referred to here but in these copies.
#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// Copies bytes out of the program's buffer.
pub(crate) fn read(address: usize, into: &mut [u8]) {
    // SAFETY: the program has given the buffer to a pending operation, which is at least this long.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::with_exposed_provenance(address), into.as_mut_ptr(), into.len()) }
}

/// Copies bytes into the program's buffer.
pub(crate) fn write(address: usize, from: &[u8]) {
    // SAFETY: as above, and the operation may write it.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), std::ptr::with_exposed_provenance_mut(address), from.len()) }
}

/// Copies between our pages and the program's buffer.
pub(crate) fn copy(from: usize, to: usize, len: usize) {
    let (from, to) = (std::ptr::with_exposed_provenance::<u8>(from), std::ptr::with_exposed_provenance_mut(to));
    // SAFETY: as above; a buffer of the program is no page of ours.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// A number in an array of the program.
pub(crate) fn number(at: *const libc::c_int, index: usize) -> libc::c_int {
    // SAFETY: the program gives an array with an element for each rank.
    unsafe { at.add(index).read() }
}

/// Pages of our own, which peers read and write by RDMA; unmapped when they are dropped.
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages belong to the value.
unsafe impl Send for Pages {}

impl Pages {
    /// New pages, with room for `len` bytes; they take memory as they are written.
    pub(crate) fn new(len: usize) -> rustix::io::Result<Self> {
        let len = len.max(1).next_multiple_of(4096);
        // SAFETY: new memory, at an address that the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    /// Their address.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Their length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A word of them, which a peer may have written meanwhile.
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.atomic(index).load(Ordering::Acquire)
    }

    /// Sets a word.
    pub(crate) fn set_word(&self, index: usize, value: u64) {
        self.atomic(index).store(value, Ordering::Release);
    }

    fn atomic(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len / size_of::<u64>());
        // SAFETY: inside the pages, aligned, and written by atomic stores only.
        unsafe { self.start.cast::<AtomicU64>().add(index).as_ref() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages are ours, and nothing refers to them.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
