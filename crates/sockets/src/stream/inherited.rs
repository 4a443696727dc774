//! Connections that a fork has shared, before they have rings.
//!
//! Parent and child can both use such a connection, so it stays on TCP. A server that has a child for each connection closes its own
//! descriptor as soon as the child is there; then the connection is the child's alone. The child decides that with its first call
//! on it, before another call can be under way: the connection becomes its own, or stays on TCP for good.

use super::holders::Holders;
use super::{Stream, known};
use crate::fork;
use crate::process::as_stream;
use crate::table::{self, Object, TABLE};
use rdmesh_preload::gate;
use rdmesh_streams::report::Reason;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Stream {
    /// This process is about to fork, for the `fork`th time: the child has it too. Called for each of its descriptors.
    pub(crate) fn share(&self, fork: u32) {
        if self.shared_in.swap(fork, Ordering::Relaxed) == fork {
            return;
        }
        if self.channel().is_some() {
            self.is_shared.store(true, Ordering::Release);
            return;
        }
        if self.is_pinned.load(Ordering::Acquire) {
            return;
        }
        match self.holders() {
            Some(holders) => holders.add(),
            None => match Holders::of_fork() {
                Some(holders) => self.holders.store(holders.word(), Ordering::Release),
                None => self.pin(Reason::Fork),
            },
        }
    }

    /// Whether it was made by a process of which this one is a fork, and what becomes of it here has not been decided.
    #[inline]
    pub(crate) fn is_undecided(&self) -> bool {
        self.holders.load(Ordering::Relaxed) != 0 && !self.is_pinned.load(Ordering::Relaxed) && self.is_inherited()
    }

    /// Whether no other process has it, as far as is known: it may get rings.
    pub(super) fn is_alone(&self) -> bool {
        let alone = self.holders().is_none_or(|holders| holders.count() == Some(1));
        // The count comes first: this process may be the one that has left.
        alone && self.descriptors.load(Ordering::SeqCst) != 0 && !self.is_inherited()
    }

    /// This process has closed its last descriptor of it.
    pub(super) fn leave_holders(&self) {
        if let Some(holders) = self.holders() {
            holders.remove();
        }
    }

    fn holders(&self) -> Option<Holders> {
        Holders::of_word(self.holders.load(Ordering::Acquire))
    }

    /// After a fork, in the child: no other thread has the lock.
    pub(crate) fn unlock(&self) {
        self.phase.unlock();
    }

    /// Waits until all other processes have closed it, a moment after the fork at the longest; false where they have not.
    fn becomes_alone(&self) -> bool {
        loop {
            match self.holders().and_then(Holders::count) {
                Some(1) => return true,
                Some(_) if fork::age() < CLOSE_NS => std::thread::sleep(PAUSE),
                _ => return false,
            }
        }
    }

    /// The same connection as a stream of this process.
    fn as_own(&self) -> Option<Self> {
        // An instance of the parent's tells nobody of rings.
        let is_watched = self.channel().is_some() || !self.epolls().is_empty();
        if is_watched { None } else { Self::new(self.ends, self.offers.is_none()) }
    }
}

/// Decides what the inherited connection behind `fd` is in this process.
#[cold]
pub(crate) fn decide(fd: c_int) {
    let Some(object) = table::object(fd) else { return };
    let Some(stream) = as_stream(&object).filter(|stream| stream.is_undecided()) else { return };
    let is_alone = stream.becomes_alone();
    let _gate = gate::enter();
    let _held = stream.phase.lock();
    // Another thread may have decided meanwhile.
    if !stream.is_undecided() {
        return;
    }
    if let Some(own) = Some(stream).filter(|_| is_alone).and_then(Stream::as_own) {
        adopt(&object, known(own));
    }
    stream.is_pinned.store(true, Ordering::Release);
}

/// Puts `own` in the place of the inherited stream at all of its descriptors.
fn adopt(inherited: &Arc<Object>, own: Arc<Object>) {
    let mut first = None;
    TABLE.for_each(|fd| {
        if table::object(fd).is_some_and(|object| Arc::ptr_eq(&object, inherited)) {
            table::set(fd, Arc::clone(&own));
            first = first.or(Some(fd));
        }
    });
    let Some(stream) = as_stream(&own) else { return };
    if let (Some(fd), Some(ends)) = (first, stream.ends)
        && !stream.process.publish(ends, fd, &own)
    {
        stream.pin(Reason::Peer);
    }
}

/// Time after a fork in which the parent is expected to close its descriptor: it does so at once, unless it has lost its processor.
const CLOSE_NS: u64 = 10_000_000;
const PAUSE: Duration = Duration::from_micros(50);
