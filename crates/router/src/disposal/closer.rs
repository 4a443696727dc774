//! Closing of descriptors that a tenant sent, on a thread of the endpoint's own: another endpoint's never waits for it.

use crate::budget::{Charge, Resource, Share};
use crate::errands::{Errands, Job};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The descriptors of one endpoint that are to be closed.
pub(super) struct Closer {
    errands: Errands,
    share: Share,
    /// The endpoint has no descriptors left for the queue.
    is_out: AtomicBool,
}

/// A descriptor, charged until it is closed.
struct Descriptor(Option<(OwnedFd, Option<Charge>)>);

impl Job for Descriptor {
    fn step(&mut self) -> bool {
        if let Some((fd, charge)) = self.0.take() {
            drop(fd);
            drop(charge);
        }
        false
    }
}

impl Closer {
    /// Descriptors that may wait: more than a program that keeps to the rules ever has closed at once.
    const MAX: usize = 1024;

    /// An empty queue; queued descriptors are charged to `share`.
    pub(super) fn new(share: Share) -> Self {
        Self { errands: Errands::new("rdmesh-closer"), share, is_out: AtomicBool::new(false) }
    }

    /// Whether the queue is so long that no more messages are to be accepted.
    pub(super) fn is_full(&self) -> bool {
        let waiting = self.errands.waiting(0);
        if waiting == 0 {
            self.is_out.store(false, Ordering::Relaxed);
        }
        waiting > Self::MAX || self.is_out.load(Ordering::Relaxed)
    }

    /// Makes the end of the next descriptor write to the eventfd `wake`, where the queue is too long. Returns whether it is.
    pub(super) fn ask_for_room(&self, wake: &Arc<OwnedFd>) -> bool {
        self.is_full() && self.errands.ask_for_wake(wake)
    }

    /// Closes a descriptor on the other thread.
    pub(super) fn close(&self, fd: OwnedFd) {
        let charge = self.share.take(Resource::Descriptors, 1).ok();
        if charge.is_none() {
            self.is_out.store(true, Ordering::Relaxed);
        }
        self.errands.add(0, Descriptor(Some((fd, charge))));
    }

    /// Has a job done before all descriptors that are added from now on.
    #[cfg(test)]
    pub(super) fn hold(&self, job: impl Job + 'static) {
        self.errands.add(0, job);
    }

    /// Waits until all are closed.
    #[cfg(test)]
    pub(super) fn finish(&self) {
        self.errands.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, Limits};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fd::AsFd;
    use rustix::pipe::{PipeFlags, pipe_with};

    /// Holds the thread until its other end is dropped.
    struct Held(OwnedFd);

    impl Job for Held {
        fn step(&mut self) -> bool {
            rustix::io::read(&self.0, &mut [0; 1]).unwrap();
            false
        }
    }

    #[test]
    fn what_waits_counts_as_the_endpoints_descriptors() {
        let budget = Budget::new(Limits::of_this_process().with(Resource::Descriptors, 64));
        let closer = Closer::new(budget.share(u32::MAX));
        let (wait, release) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        closer.errands.add(0, Held(wait));
        let close = |_: &u32| closer.close(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let taken = (0..64).take_while(|_| !closer.is_full()).inspect(close).count();
        assert!((1..64).contains(&taken), "{taken}");
        assert_eq!(budget.held(Resource::Descriptors), taken as u64 - 1);
        drop(release);
        closer.finish();
        assert_eq!(budget.held(Resource::Descriptors), 0);
        assert!(!closer.is_full());
    }

    #[test]
    fn nothing_is_closed_by_the_caller() {
        let closer = Closer::new(Budget::new(Limits::of_this_process()).share(u32::MAX));
        let (wait, release) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        closer.errands.add(0, Held(wait));
        let (end, other) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let (memory, memfd) = rdmesh_uverbs::shared::SharedMemory::create("test", 4096).unwrap();
        drop(memory);
        closer.close(memfd);
        closer.close(other);
        let is_open = || rustix::io::read(end.as_fd(), &mut [0; 1]) == Err(rustix::io::Errno::AGAIN);
        assert!(is_open());
        drop(release);
        closer.finish();
        assert!(!is_open());
    }
}
