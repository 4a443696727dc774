//! Queues of received management datagrams, from the workers to rdma_cm.
//!
//! Each origin has a queue of its own, of bounded length, and the queues have their turns: an origin that sends more than can be
//! handled loses its own datagrams, and delays those of others by one at a time.

use super::stats::{MadCounters, bump};
use super::wait;
use crate::memory::HostPlatform;
use crate::turns::{Pool, Turns};
use rdmesh_nic::{Engine, ExternalId, ReceivedMad};
use rdmesh_verbs::Vni;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The queues. Clones share them.
#[derive(Clone, Debug)]
pub struct MadQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the reader.
    wake: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
struct State {
    queues: Turns<Origin, VecDeque<ReceivedMad>>,
    len: usize,
}

/// Origin of a datagram, which has a budget of its own: the namespace of the sockets that it came in through, or the tenant network of which another
/// host says that it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Origin {
    External(ExternalId),
    Network(Option<Vni>),
}

impl MadQueue {
    /// Empty queues. `wake` is an eventfd, written to when there is something after there was nothing.
    pub fn new(wake: Arc<OwnedFd>) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), wake }))
    }

    /// The next datagram, of each origin in turn.
    pub fn take(&self) -> Option<ReceivedMad> {
        let mut state = self.lock();
        let mad = state.queues.take()?;
        state.len -= 1;
        Some(mad)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lock().len == 0
    }

    /// Adds a datagram, if its origin has room; otherwise it is lost, as on a network.
    fn put(&self, mad: ReceivedMad) -> bool {
        let origin = mad.external_origin.map_or(Origin::Network(mad.vni), Origin::External);
        let mut state = self.lock();
        if state.len >= MOST || state.queues.get(origin).is_some_and(|queue| queue.len() >= MOST_OF_ORIGIN) {
            return false;
        }
        state.queues.group(origin).push_back(mad);
        state.len += 1;
        if state.len == 1 {
            drop(state);
            wait::notify(&self.0.wake);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands over the datagrams that the engine has received. Returns whether there were any.
pub(super) fn pass(engine: &mut Engine<HostPlatform>, queue: Option<&MadQueue>, counters: &MadCounters) -> bool {
    let mut some = false;
    while let Some(mad) = engine.poll_mad() {
        some = true;
        // Before there is a reader they are lost.
        if let Some(queue) = queue {
            bump(if queue.put(mad) { &counters.passed } else { &counters.dropped });
        }
    }
    some
}

/// Datagrams that wait, of one origin and of all.
const MOST_OF_ORIGIN: usize = 256;
const MOST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_verbs::Gid;

    fn mad(external_origin: Option<u32>, number: u8) -> ReceivedMad {
        let vni = external_origin.is_none().then_some(Vni(1));
        let external_origin = external_origin.map(ExternalId);
        ReceivedMad { external_origin, vni, source: Gid::default(), dest: Gid::default(), bytes: [number; 256] }
    }

    #[test]
    fn an_origin_loses_its_own_and_delays_others_by_one() {
        let queue = MadQueue::new(Arc::new(wait::new_eventfd().unwrap()));
        let taken = (0..100_000).filter(|n| queue.put(mad(Some(7), *n as u8))).count();
        assert_eq!(taken, MOST_OF_ORIGIN);
        assert!(queue.put(mad(None, 1)) && queue.put(mad(Some(8), 2)));
        let origins = std::iter::from_fn(|| queue.take()).map(|mad| mad.external_origin.map(|id| id.0));
        assert_eq!(origins.take(4).collect::<Vec<_>>(), [Some(7), None, Some(8), Some(7)]);
    }

    #[test]
    fn the_reader_is_woken_when_there_is_something_again() {
        let wake = Arc::new(wait::new_eventfd().unwrap());
        let queue = MadQueue::new(Arc::clone(&wake));
        let mut count = [0; 8];
        for _ in 0..2 {
            (0..5).for_each(|n| assert!(queue.put(mad(None, n))));
            rustix::io::read(&*wake, &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), 1, "once for all");
            assert_eq!(
                std::iter::from_fn(|| queue.take()).map(|mad| mad.bytes[0]).collect::<Vec<_>>(),
                [0, 1, 2, 3, 4]
            );
            assert!(queue.is_empty());
        }
    }
}
