//! State of the tunnel to one host, shared by the workers and the handshake thread.

use super::session::{ReceiveSession, SendSession};
use rdmesh_fabric::api::{TunnelCounters, TunnelState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Another host, as far as the tunnel is concerned.
pub(crate) struct PeerLink {
    address: IpAddr,
    /// Grows with every change of the sessions, so that workers look for them only then.
    generation: AtomicU64,
    sessions: Mutex<Sessions>,
    /// The unknown session of received packets; 0 for none.
    lost: AtomicU64,
    pub(super) counters: TunnelCounters<AtomicU64>,
}

/// Sessions in use.
#[derive(Clone, Default)]
pub(super) struct Sessions {
    pub(super) send: Option<Arc<SendSession>>,
    pub(super) receive: Option<Arc<ReceiveSession>>,
    /// The one before, for a while.
    pub(super) previous: Option<Arc<ReceiveSession>>,
}

impl PeerLink {
    pub(super) fn new(address: IpAddr) -> Self {
        Self {
            address,
            generation: AtomicU64::new(1),
            sessions: Mutex::default(),
            lost: AtomicU64::new(0),
            counters: TunnelCounters::default(),
        }
    }

    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Changes the sessions.
    pub(super) fn update(&self, change: impl FnOnce(&mut Sessions)) {
        change(&mut self.sessions());
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// A number that changes with the sessions.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an unknown session. Returns whether none was recorded before.
    pub(super) fn note_lost(&self, reference: u64) -> bool {
        self.lost.load(Ordering::Relaxed) == 0 && self.lost.swap(reference.max(1), Ordering::Relaxed) == 0
    }

    /// Takes the recorded unknown session.
    pub(super) fn take_lost(&self) -> Option<u64> {
        Some(self.lost.swap(0, Ordering::Relaxed)).filter(|reference| *reference != 0)
    }

    /// State of the tunnel: the counters of this link, the rest from the handshake.
    pub(super) fn state(&self, sends: bool, receives: bool, is_changing_key: bool) -> TunnelState {
        let counters = self.counters.map(|counter| counter.load(Ordering::Relaxed));
        TunnelState { sends, receives, is_changing_key, counters }
    }
}

/// Counts one.
pub(super) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
