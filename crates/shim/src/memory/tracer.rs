//! Ptrace permission for the router (`PR_SET_PTRACER`): access to this process's memory where Yama restricts it to parents.
//!
//! It is given with the first registration of private memory, and taken back with the last device that the program closes. When
//! a router ends its permission ends too: the kernel gives it to a process, not to its number.
#![allow(unsafe_code)]

use rustix::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// This process's.
static TRACER: Tracer = Tracer::new();

struct Tracer {
    /// Devices that the program has open.
    open: AtomicUsize,
    allowed: AtomicBool,
}

/// Gives the router at the other end of `socket` access to this process. Only a router that this process can see is named: an
/// id from another namespace is none.
pub(crate) fn allow_router(socket: BorrowedFd<'_>) {
    let Ok(router) = rustix::net::sockopt::socket_peercred(socket) else { return };
    TRACER.allowed.store(true, Ordering::SeqCst);
    set(router.pid.as_raw_nonzero().get().unsigned_abs());
}

/// The program has opened a device.
pub(crate) fn device_opened() {
    TRACER.opened();
}

/// The program has closed its last descriptor of one.
pub(crate) fn device_closed() {
    if TRACER.closed() {
        set(0);
    }
}

fn set(process: u32) {
    // SAFETY: takes numbers only. Kernels without Yama refuse it, and need none.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(process), 0, 0, 0) };
}

impl Tracer {
    const fn new() -> Self {
        Self { open: AtomicUsize::new(0), allowed: AtomicBool::new(false) }
    }

    fn opened(&self) {
        self.open.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a permission is to be taken back.
    fn closed(&self) -> bool {
        self.open.fetch_sub(1, Ordering::SeqCst) == 1 && self.allowed.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_device_takes_the_permission_with_it() {
        let tracer = Tracer::new();
        tracer.opened();
        assert!(!tracer.closed(), "none was given");
        tracer.opened();
        tracer.opened();
        tracer.allowed.store(true, Ordering::SeqCst);
        assert!(!tracer.closed());
        assert!(tracer.closed());
    }
}
