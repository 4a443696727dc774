//! Deferred closing of descriptors that a tenant sent.
//!
//! A descriptor can be anything, and closing it can take as long as its maker likes: a socket that lingers, a file of a
//! filesystem that the tenant itself serves. Only sealed memory is known to close at once. All other descriptors are closed on
//! a thread of the endpoint's own. So are connections, since unread descriptors that were sent over them are closed with them.
//! An endpoint with a long queue there is not served until the queue is empty.

use crate::budget::{Charge, Resource, Share};
use rustix::fs::fcntl_get_seals;
use rustix::io;
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};

/// The thread that closes what one endpoint's programs sent. Another endpoint's never waits for it.
pub(super) struct Disposal {
    sender: Sender<(OwnedFd, Option<Charge>)>,
    waiting: Arc<AtomicU32>,
    share: Share,
    /// The endpoint has no descriptors left for the queue.
    is_out: Cell<bool>,
}

impl Disposal {
    /// Descriptors that may wait: more than a program that keeps to the rules ever has closed at once.
    const MAX: u32 = 1024;
    /// The thread calls nothing but `close`.
    const STACK: usize = 64 * 1024;

    /// Starts it; queued descriptors are charged to `share`.
    pub(super) fn start(share: Share) -> io::Result<Self> {
        let (sender, receiver) = channel::<(OwnedFd, Option<Charge>)>();
        let waiting = Arc::new(AtomicU32::new(0));
        let counter = waiting.clone();
        // The thread is not joined: a close may block for ever. It ends when all queued descriptors are closed.
        std::thread::Builder::new()
            .name("rdmesh-disposal".into())
            .stack_size(Self::STACK)
            .spawn(move || {
                for (fd, charge) in receiver {
                    drop(fd);
                    drop(charge);
                    counter.fetch_sub(1, Ordering::Relaxed);
                }
            })
            .map_err(|_| io::Errno::AGAIN)?;
        Ok(Self { sender, waiting, share, is_out: Cell::new(false) })
    }

    /// Whether the queue is so long that no more messages are to be accepted.
    pub(super) fn is_full(&self) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting == 0 {
            self.is_out.set(false);
        }
        waiting > Self::MAX || self.is_out.get()
    }

    /// Closes a descriptor that a tenant sent.
    pub(super) fn close(&self, fd: OwnedFd) {
        if fcntl_get_seals(&fd).is_err() {
            self.close_later(fd);
        }
    }

    /// Closes a descriptor on the other thread.
    pub(super) fn close_later(&self, fd: OwnedFd) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let charge = self.share.take(Resource::Descriptors, 1).ok();
        self.is_out.set(self.is_out.get() || charge.is_none());
        // Without the thread the descriptor is closed here, which may block.
        let _ = self.sender.send((fd, charge));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, Limits};
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn what_waits_counts_as_the_endpoints_descriptors() {
        let budget = Budget::new(Limits::of_this_process().with(Resource::Descriptors, 64));
        let (sender, never_received) = channel();
        let share = budget.share(u32::MAX);
        let disposal = Disposal { sender, waiting: Arc::default(), share, is_out: Cell::new(false) };
        let close = |_: &u32| disposal.close_later(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let taken = (0..64).take_while(|_| !disposal.is_full()).inspect(close).count();
        assert!((1..64).contains(&taken), "{taken}");
        assert_eq!(budget.held(Resource::Descriptors), taken as u64 - 1);
        drop(never_received);
        assert_eq!(budget.held(Resource::Descriptors), 0);
    }

    #[test]
    fn what_waits_is_counted_until_it_is_closed() {
        let disposal = Disposal::start(Budget::new(Limits::of_this_process()).share(u32::MAX)).unwrap();
        let (memory, memfd) = rdmesh_uverbs::shared::SharedMemory::create("test", 4096).unwrap();
        drop(memory);
        disposal.close(memfd);
        assert_eq!(disposal.waiting.load(Ordering::Relaxed), 0);
        for _ in 0..3 {
            disposal.close(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        }
        while disposal.waiting.load(Ordering::Relaxed) != 0 {
            std::thread::yield_now();
        }
        assert!(!disposal.is_full());
    }
}
