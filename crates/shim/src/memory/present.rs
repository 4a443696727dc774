//! Population of arena pages: they are made by this process, and so charged to its cgroup.
#![allow(unsafe_code)]

use super::PAGE;
use rustix::io::{self, Errno};
use rustix::mm::Advice;
use std::ffi::c_void;

/// Bytes that are populated in one call: a signal that ends the process waits for no more.
const STEP: u64 = 256 << 20;

/// Makes every page of `start..end`, arena memory, and maps it.
pub(super) fn make(start: u64, end: u64) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let to = end.min(at + STEP);
        match populate(at, to) {
            Ok(()) => at = to,
            Err(Errno::INTR | Errno::AGAIN) => {}
            // Kernels before 5.14 have no such call.
            Err(Errno::INVAL) => {
                touch(at, to)?;
                at = to;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// For reading: pages that are there are mapped many at a time, writable as the mapping is.
fn populate(start: u64, end: u64) -> io::Result<()> {
    let address = std::ptr::with_exposed_provenance_mut::<c_void>(start as usize);
    // SAFETY: changes no content.
    unsafe { rustix::mm::madvise(address, (end - start) as usize, Advice::LinuxPopulateRead) }
}

/// The same page by page, by the kernel: where there is no memory that is an error for it, and no signal.
fn touch(start: u64, end: u64) -> io::Result<()> {
    let mut sink = [0u8; 1];
    for page in (start..end).step_by(PAGE as usize) {
        let local = libc::iovec { iov_base: sink.as_mut_ptr().cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(page as usize), iov_len: 1 };
        // SAFETY: writes one byte to `sink`; what it reads the kernel checks.
        if unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) } != 1 {
            return Err(Errno::NOMEM);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    /// Bytes that the file takes.
    fn made_by(make: impl Fn(u64, u64) -> io::Result<()>) -> u64 {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 1 << 30).unwrap();
        let (len, prot) = (64 * PAGE as usize, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: fresh memory, which goes again.
        unsafe {
            let at = mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &file, 0).unwrap();
            make(at as u64, at as u64 + len as u64).unwrap();
            munmap(at, len).unwrap();
        }
        rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512
    }

    #[test]
    fn all_pages_are_made_in_either_way() {
        assert_eq!(made_by(make), 64 * PAGE);
        assert_eq!(made_by(touch), 64 * PAGE);
    }
}
