//! The private memory of a tenant process.

use rdmesh_nic::platform::Fault;
use rustix::fs::{Mode, OFlags, open};
use rustix::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// A process's memory, by way of `/proc/PID/mem`.
///
/// The descriptor belongs to the address space that the process had when it was opened: should the process end and its
/// number be used again, reads give nothing; another process's memory is never reached.
#[derive(Clone)]
pub struct ProcessMemory(Arc<OwnedFd>);

impl ProcessMemory {
    /// Opens the memory of process `pid`. The router must be allowed to trace it.
    pub fn open(pid: i32) -> io::Result<Self> {
        let file = open(format!("/proc/{pid}/mem"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self(Arc::new(file)))
    }

    /// Copies `len` bytes from `addr` in the process to `to`.
    pub(super) fn read_raw(&self, addr: u64, to: *mut u8, len: usize) -> Result<(), Fault> {
        transfer(addr, len, |done, at| {
            #[allow(unsafe_code)]
            // SAFETY: the caller resolved `to` to `len` writable bytes; the kernel writes at most `len - done` from `done` on.
            unsafe {
                libc::pread64(self.0.as_raw_fd(), to.add(done).cast(), len - done, at)
            }
        })
    }

    /// Copies `len` bytes from `from` to `addr` in the process.
    pub(super) fn write_raw(&self, addr: u64, from: *const u8, len: usize) -> Result<(), Fault> {
        transfer(addr, len, |done, at| {
            #[allow(unsafe_code)]
            // SAFETY: the caller resolved `from` to `len` readable bytes; the kernel reads at most `len - done` from `done` on.
            unsafe {
                libc::pwrite64(self.0.as_raw_fd(), from.add(done).cast(), len - done, at)
            }
        })
    }
}

/// Repeats a partial transfer until `len` bytes are done.
fn transfer(addr: u64, len: usize, mut step: impl FnMut(usize, i64) -> isize) -> Result<(), Fault> {
    let mut done = 0;
    while done < len {
        let at = addr.checked_add(done as u64).and_then(|at| i64::try_from(at).ok()).ok_or(Fault)?;
        match step(done, at) {
            n if n > 0 => done += n as usize,
            n if n < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            _ => return Err(Fault),
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
    let mut buffer = [0; 16 * 1024];
    let mut done = 0;
    while done < len {
        let take = buffer.len().min(len - done);
        from.read_raw(from_addr + done as u64, buffer.as_mut_ptr(), take)?;
        to.write_raw(to_addr + done as u64, buffer.as_ptr(), take)?;
        done += take;
    }
    Ok(())
}
