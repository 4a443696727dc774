//! Stalled directions: where a ring stays full and its reader takes nothing, the direction goes back to TCP, whose buffers are longer
//! than a ring. Two programs that send to each other before they read would otherwise wait for each other for ever.

use super::{Channel, Stream};
use crate::spin::now;
use crate::table::descriptor_of;
use rdmesh_streams::report::Reason;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// A full ring that the agent looks at.
#[derive(Default)]
pub(super) struct Stall {
    is_watched: AtomicBool,
    /// Bytes that the reader had taken at the last look that found news, and its time.
    taken: AtomicU64,
    since: AtomicU64,
}

impl Stream {
    /// The ring that this end writes is full: the agent sees whether its reader goes on. Called without locks.
    pub(super) fn watch_for_stall(&self, channel: &Channel) {
        let stall = &channel.stall;
        if self.is_inherited() || stall.is_watched.swap(true, Ordering::SeqCst) {
            return;
        }
        stall.note(channel);
        self.process.watch_for_stall(self.index);
    }

    /// Looks at its full ring, and leaves it where the reader stands still. Returns whether to look again. Called by the agent.
    pub(crate) fn look_at_stall(&self) -> bool {
        let Some(channel) = self.channel().filter(|channel| self.writes_to_ring(channel)) else { return false };
        let (stall, ring) = (&channel.stall, channel.out());
        if ring.free() != Ok(0) {
            stall.is_watched.store(false, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            // A writer that has filled it meanwhile takes it to be watched.
            return ring.free() == Ok(0) && !stall.is_watched.swap(true, Ordering::SeqCst);
        }
        if stall.taken.load(Ordering::Relaxed) != ring.header.consumer.head.load(Ordering::Acquire) {
            stall.note(channel);
            return true;
        }
        let patience = if channel.is_relayed() { RELAYED_STALL_NS } else { STALL_NS };
        if now().saturating_sub(stall.since.load(Ordering::Relaxed)) < patience {
            return true;
        }
        let Some(fd) = descriptor_of(self) else { return false };
        self.give_reason(Reason::Stalled);
        self.leave(fd, channel);
        self.tell_of_path();
        false
    }
}

impl Stall {
    fn note(&self, channel: &Channel) {
        self.taken.store(channel.out().header.consumer.head.load(Ordering::Acquire), Ordering::Relaxed);
        self.since.store(now(), Ordering::Relaxed);
    }
}

/// Time after which a reader counts as standing still.
const STALL_NS: u64 = 100_000_000;
/// Likewise where other connections, and the network, are between the two.
const RELAYED_STALL_NS: u64 = 3_000_000_000;
