//! Closing what a tenant sent.
//!
//! A descriptor can be anything, and closing it can take as long as its maker likes: a socket that lingers, a file of
//! a filesystem that the tenant itself serves. Only sealed memory is known to close at once. Everything else is closed
//! on a thread of its own, and an endpoint with much waiting there is not served until it is done.

use rustix::fs::fcntl_get_seals;
use rustix::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};

/// The thread that closes.
pub(super) struct Disposal(Sender<(OwnedFd, Backlog)>);

/// How many descriptors of one endpoint wait to be closed.
#[derive(Clone, Default)]
pub(super) struct Backlog(Arc<AtomicU32>);

impl Backlog {
    const MAX: u32 = 64;

    /// Whether so much waits that nothing more is to be taken.
    pub(super) fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) > Self::MAX
    }
}

impl Disposal {
    pub(super) fn start() -> io::Result<Self> {
        let (sender, receiver) = channel::<(OwnedFd, Backlog)>();
        // The thread is not waited for: what it closes may never be closed.
        std::thread::Builder::new()
            .name("rdmesh-disposal".into())
            .spawn(move || {
                for (fd, backlog) in receiver {
                    drop(fd);
                    backlog.0.fetch_sub(1, Ordering::Relaxed);
                }
            })
            .map_err(|_| io::Errno::AGAIN)?;
        Ok(Self(sender))
    }

    /// Closes a descriptor that a tenant sent.
    pub(super) fn close(&self, fd: OwnedFd, backlog: &Backlog) {
        if fcntl_get_seals(&fd).is_ok() {
            return;
        }
        self.close_later(fd, backlog);
    }

    /// Closes a descriptor on the other thread.
    pub(super) fn close_later(&self, fd: OwnedFd, backlog: &Backlog) {
        backlog.0.fetch_add(1, Ordering::Relaxed);
        // Without the thread the descriptor is closed here and now, for better or worse.
        let _ = self.0.send((fd, backlog.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn what_waits_is_counted_until_it_is_closed() {
        let disposal = Disposal::start().unwrap();
        let backlog = Backlog::default();
        let (memory, memfd) = rdmesh_uverbs::shared::SharedMemory::create("test", 4096).unwrap();
        drop(memory);
        disposal.close(memfd, &backlog);
        assert_eq!(backlog.0.load(Ordering::Relaxed), 0);
        for _ in 0..3 {
            disposal.close(eventfd(0, EventfdFlags::CLOEXEC).unwrap(), &backlog);
        }
        while backlog.0.load(Ordering::Relaxed) != 0 {
            std::thread::yield_now();
        }
        assert!(!backlog.is_full());
    }
}
