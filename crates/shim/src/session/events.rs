//! Asynchronous event descriptor of a context.
//!
//! The older GET_CONTEXT returns it, the newer one leaves it to a method of its own. The router hands it over with the
//! context in any case: until the program asks for it, it waits here.
#![allow(unsafe_code)]

use super::link::{borrow, identity};
use crate::memory;
use rdmesh_preload::OwnFd;
use rustix::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// State of the descriptor.
#[derive(Default)]
pub(super) struct Events {
    /// Device and inode, by which its duplicates are known too.
    identity: OnceLock<(u64, u64)>,
    waiting: Mutex<Option<OwnFd>>,
    /// The program was told that the device has gone.
    is_over: AtomicBool,
}

impl Events {
    /// The router has handed over `fd`, which is the program's now.
    pub(super) fn made(&self, fd: RawFd) {
        // SAFETY: the number was received just now.
        if let Ok(identity) = identity(unsafe { borrow(fd) }) {
            // There is one for the life of a context.
            let _ = self.identity.set(identity);
        }
    }

    /// Whether the router has handed it over, and there is a context.
    pub(super) fn is_made(&self) -> bool {
        self.identity.get().is_some()
    }

    /// Takes `fd`, which was [`Events::made`], back from the program, which does not know of it yet.
    pub(super) fn keep(&self, fd: RawFd) {
        let _gate = memory::gate();
        // SAFETY: no other code knows the number.
        let fd = OwnFd::new(unsafe { OwnedFd::from_raw_fd(fd) });
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(fd);
    }

    /// Gives the program the descriptor that is kept for it. EINVAL before there is a context; a second descriptor, with events
    /// of its own, is not supported.
    pub(super) fn hand_over(&self) -> Result<RawFd, Errno> {
        let _gate = memory::gate();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let refusal = if self.is_made() { Errno::OPNOTSUPP } else { Errno::INVAL };
        let fd = rustix::io::fcntl_dupfd_cloexec(waiting.as_ref().ok_or(refusal)?.as_fd(), 0)?;
        *waiting = None;
        Ok(fd.into_raw_fd())
    }

    /// Whether the device has gone and the program was told so.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Records that the program was told of the device's removal; returns whether it was not told before.
    pub(super) fn end(&self) -> bool {
        !self.is_over.swap(true, Ordering::AcqRel)
    }

    /// Checks that the program's `fd` is the descriptor, or a duplicate of it.
    pub(super) fn check(&self, fd: RawFd) -> Result<(), Errno> {
        // SAFETY: a number that is not open has no identity.
        let found = if fd < 0 { None } else { identity(unsafe { borrow(fd) }).ok() };
        if found.is_some() && found.as_ref() == self.identity.get() { Ok(()) } else { Err(Errno::BADF) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;

    #[test]
    fn the_descriptor_waits_for_the_program() {
        let events = Events::default();
        assert_eq!(events.hand_over(), Err(Errno::INVAL));
        let [(fd, _), (other, _)] = [rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap()];
        assert_eq!(events.check(fd.as_raw_fd()), Err(Errno::BADF));
        let number = fd.into_raw_fd();
        events.made(number);
        events.keep(number);
        assert_eq!(events.check(other.as_raw_fd()), Err(Errno::BADF));
        assert_eq!(events.check(-1), Err(Errno::BADF));
        let program = events.hand_over().unwrap();
        assert_eq!(events.check(program), Ok(()));
        assert_eq!(events.hand_over(), Err(Errno::OPNOTSUPP));
        super::super::link::discard(program);
        assert_eq!(events.check(program), Err(Errno::BADF));
    }
}
