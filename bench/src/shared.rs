//! Memory shared between the benchmark's own processes.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// Bytes between two words: no two of them share a cache line, nor the line that is fetched with it.
const STRIDE: usize = 128;

/// A piece of memory, unmapped on drop.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    file: Option<OwnedFd>,
}

impl Mapping {
    /// Zeroed memory that other processes can map by its [`Mapping::path`].
    pub(crate) fn shared(len: usize) -> io::Result<Self> {
        let file = memfd_create("rdmesh-bench", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len as u64)?;
        Self::of_file(file, len)
    }

    /// The memory that another process made.
    pub(crate) fn open(path: &PathBuf, len: usize) -> io::Result<Self> {
        let file: File = OpenOptions::new().read(true).write(true).open(path)?;
        Self::of_file(file.into(), len)
    }

    /// Zeroed memory of this process alone.
    #[allow(unsafe_code)]
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        Ok(Self { start: NonNull::new(start.cast()).expect("mmap gives no null"), len, file: None })
    }

    #[allow(unsafe_code)]
    fn of_file(file: OwnedFd, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)? };
        Ok(Self { start: NonNull::new(start.cast()).expect("mmap gives no null"), len, file: Some(file) })
    }

    /// Path by which another process of the same user can open it, as long as this one lives.
    pub(crate) fn path(&self) -> PathBuf {
        let fd = self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        format!("/proc/{}/fd/{fd}", std::process::id()).into()
    }

    /// The `index`th word, each on cache lines of its own.
    #[allow(unsafe_code)]
    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        assert!((index + 1) * STRIDE <= self.len);
        // SAFETY: inside the mapping, which lives as long as the reference, aligned, and only ever used as an atomic.
        unsafe { self.start.add(index * STRIDE).cast().as_ref() }
    }

    /// Writes to every page, so that all of them are there.
    #[allow(unsafe_code)]
    pub(crate) fn touch(&self) {
        // SAFETY: inside the mapping; no reference to it is alive.
        unsafe { self.start.as_ptr().write_bytes(1, self.len) };
    }

    /// Copies the first `len` bytes to the beginning of `target`.
    #[allow(unsafe_code)]
    pub(crate) fn copy_to(&self, target: &Mapping, len: usize) {
        assert!(len <= self.len && len <= target.len && self.start != target.start);
        // SAFETY: both are mapped for `len` bytes and do not overlap: they are different mappings.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr(), target.start.as_ptr(), len) };
        // The copies must happen although their result is not read.
        std::hint::black_box(target.start.as_ptr());
    }
}

impl Drop for Mapping {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no reference to it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
