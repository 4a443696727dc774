//! Deferred disposal: memory is unmapped and descriptors are closed on threads that serve no program.
//!
//! Both can take long. Unmapping takes its time with each page, and the last user of a memfd frees all its pages. A descriptor
//! that a tenant sent can be anything, and closing it can take as long as its maker likes: a socket that lingers, a file of a
//! filesystem that the tenant itself serves. Unread messages in a connection hold descriptors too.
//!
//! * [`Reclaimer`]: unmaps memory, drops objects and closes devices with many queue pairs, on one thread for all endpoints, in
//!   slices, endpoints in turn. Its work always ends.
//! * [`closer`]: closes descriptors, on a thread for each endpoint that has some.
//!
//! Memory and descriptors that wait stay charged to their endpoint, and that bounds both queues. An endpoint with a long
//! queue of descriptors is not served until the queue is empty.

mod closer;
mod heap;
mod reclaimer;

pub use reclaimer::Reclaimer;

use crate::budget::Share;
use crate::errands::Job;
use closer::Closer;
use rdmesh_uverbs::shared::UnusedMapping;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Way out for one endpoint's unused memory and descriptors. Clones share it.
#[derive(Clone)]
pub struct Disposal(Arc<Parts>);

struct Parts {
    share: Share,
    reclaimer: Reclaimer,
    closer: Closer,
}

impl Disposal {
    /// Nothing waits yet, and there is no thread. Queued descriptors are charged to `share`.
    pub fn new(share: Share, reclaimer: &Reclaimer) -> Self {
        let closer = Closer::new(share.clone());
        Self(Arc::new(Parts { share, reclaimer: reclaimer.clone(), closer }))
    }

    /// The account of the endpoint.
    pub fn share(&self) -> &Share {
        &self.0.share
    }

    /// Closes a descriptor, some time later.
    pub fn close(&self, fd: OwnedFd) {
        self.0.closer.close(fd);
    }

    /// Whether so many descriptors wait that no more messages are to be accepted.
    pub fn is_full(&self) -> bool {
        self.0.closer.is_full()
    }

    /// The same; if so, the end of the next one writes to the eventfd `wake`.
    pub fn ask_for_room(&self, wake: &Arc<OwnedFd>) -> bool {
        self.0.closer.ask_for_room(wake)
    }

    /// Unmaps memory, some time later; then drops `keep`.
    pub fn unmap(&self, pages: UnusedMapping, keep: Box<dyn Send>) {
        self.0.reclaimer.unmap(self.0.share.number(), pages, keep);
    }

    /// Drops a value, some time later.
    pub fn discard(&self, value: impl Send + 'static) {
        self.0.reclaimer.discard(self.0.share.number(), value);
    }

    /// Does a job that ends in the release of memory or objects, some time later.
    pub(crate) fn reclaim(&self, job: impl Job + 'static) {
        self.0.reclaimer.add(self.0.share.number(), job);
    }

    /// Whether memory or objects of the endpoint have yet to go: what they are charged will be given back.
    pub fn is_reclaiming(&self) -> bool {
        self.0.reclaimer.waiting(self.0.share.number()) > 0
    }

    /// Keeps descriptors from being closed until a job has ended.
    #[cfg(test)]
    pub(crate) fn hold_closer(&self, job: impl crate::errands::Job + 'static) {
        self.0.closer.hold(job);
    }

    /// Waits until memory and objects have gone.
    #[cfg(test)]
    pub(crate) fn finish(&self) {
        self.0.reclaimer.finish();
    }
}

#[cfg(test)]
mod tests;
