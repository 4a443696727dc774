//! userfaultfd write protection: faults of other threads on the pages wait until the pages are replaced.
#![allow(unsafe_code)]

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::{self, Errno};
use rustix::mm::UserfaultfdFlags;

/// A userfaultfd that can write-protect anonymous memory, also where no page is yet.
pub(super) struct FaultHold(OwnedFd);

const UFFD_API: u64 = 0xaa;
/// `USERFAULTFD_IOC_NEW`.
const IOC_NEW: u64 = 0xaa00;
/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_UNPOPULATED`.
const FEATURES: u64 = 1 | 1 << 13;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_WAKE: u64 = 0x8010_aa02;
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;
const REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1;
const FLAGS: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK;

impl FaultHold {
    /// Opens one for all faults. One for those of user mode alone, which needs no privilege, would not do: a system call
    /// that writes to the pages at that moment, or a signal on a stack among them, would end with EFAULT or SIGSEGV.
    pub(super) fn new() -> io::Result<Self> {
        let fd = open().or_else(|_| open_device())?;
        let mut api = [UFFD_API, FEATURES, 0];
        request(&fd, UFFDIO_API, &mut api)?;
        Ok(Self(fd))
    }

    /// Runs `replace` with `start..end` write-protected. It must not write to the range but replace it, or leave it.
    pub(super) fn during<R>(&self, start: u64, end: u64, replace: impl FnOnce() -> R) -> Option<R> {
        let len = end - start;
        request(&self.0, UFFDIO_REGISTER, &mut [start, len, REGISTER_MODE_WP, 0]).ok()?;
        let protected = request(&self.0, UFFDIO_WRITEPROTECT, &mut [start, len, WRITEPROTECT_MODE_WP]);
        let result = protected.is_ok().then(replace);
        // Removes the protection, if the mapping still is the old one.
        let _ = request(&self.0, UFFDIO_UNREGISTER, &mut [start, len]);
        let _ = request(&self.0, UFFDIO_WAKE, &mut [start, len]);
        result
    }
}

/// By the system call, which needs privilege (CAP_SYS_PTRACE or the sysctl vm.unprivileged_userfaultfd).
fn open() -> io::Result<OwnedFd> {
    // SAFETY: nothing is registered with it yet.
    unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) }
}

/// By the device, where its owner and mode allow it.
fn open_device() -> io::Result<OwnedFd> {
    let device = rustix::fs::openat(CWD, c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: takes numbers only, and makes a descriptor, which is ours then.
    unsafe {
        match libc::syscall(libc::SYS_ioctl, device.as_raw_fd(), IOC_NEW, FLAGS) {
            -1 => Err(Errno::from_raw_os_error(*libc::__errno_location())),
            fd => Ok(OwnedFd::from_raw_fd(fd as i32)),
        }
    }
}

fn request(fd: &OwnedFd, request: u64, argument: &mut [u64]) -> io::Result<()> {
    // SAFETY: every request here takes a struct of as many words as its size field says, and gets that many.
    unsafe {
        match libc::syscall(libc::SYS_ioctl, fd.as_fd().as_raw_fd(), request, argument.as_mut_ptr()) {
            -1 => Err(Errno::from_raw_os_error(*libc::__errno_location())),
            _ => Ok(()),
        }
    }
}
