//! State of the tunnel to one host, shared by the workers and the handshake thread.

use super::session::{ReceiveSession, SendSession};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Another host, as far as the tunnel is concerned.
pub(crate) struct PeerLink {
    address: IpAddr,
    /// Grows with every change of the sessions, so that workers look for them only then.
    generation: AtomicU64,
    sessions: Mutex<Sessions>,
    /// A session that packets came in and that there is not; 0 for none.
    lost: AtomicU64,
    pub(super) refusals: Refusals,
}

/// Sessions in use.
#[derive(Clone, Default)]
pub(super) struct Sessions {
    pub(super) send: Option<Arc<SendSession>>,
    pub(super) receive: Option<Arc<ReceiveSession>>,
    /// The one before, for a while.
    pub(super) previous: Option<Arc<ReceiveSession>>,
}

/// What was refused from a host's address, by reason.
#[derive(Default)]
pub(super) struct Refusals {
    pub(super) unsealed: AtomicU64,
    pub(super) unknown_session: AtomicU64,
    pub(super) wrong_tag: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) other_key: AtomicU64,
    pub(super) unsent: AtomicU64,
}

/// The state of the tunnel to another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunnelState {
    /// Its address.
    pub address: IpAddr,
    /// Whether there is a session to it.
    pub sends: bool,
    /// Whether there is a session from it.
    pub receives: bool,
    /// Whether it has not shown yet that it has the newest key.
    pub is_changing_key: bool,
    /// Packets from its address that are not sealed.
    pub unsealed: u64,
    /// Packets in sessions that there are not.
    pub unknown_session: u64,
    /// Packets and messages with a wrong tag.
    pub wrong_tag: u64,
    /// Packets that had been here.
    pub replayed: u64,
    /// Messages signed with a key that is not known here.
    pub other_key: u64,
    /// Packets that could not be sent for want of a session.
    pub unsent: u64,
}

impl TunnelState {
    /// That of a host with which nothing is shared.
    pub(crate) fn none(address: IpAddr) -> Self {
        PeerLink::new(address).state((false, false), false)
    }
}

impl PeerLink {
    pub(super) fn new(address: IpAddr) -> Self {
        Self {
            address,
            generation: AtomicU64::new(1),
            sessions: Mutex::default(),
            lost: AtomicU64::new(0),
            refusals: Refusals::default(),
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

    /// Notes a session that there is not. Returns whether none was noted before.
    pub(super) fn note_lost(&self, reference: u64) -> bool {
        self.lost.load(Ordering::Relaxed) == 0 && self.lost.swap(reference.max(1), Ordering::Relaxed) == 0
    }

    /// Takes what was noted.
    pub(super) fn take_lost(&self) -> Option<u64> {
        Some(self.lost.swap(0, Ordering::Relaxed)).filter(|reference| *reference != 0)
    }

    /// What was refused; the handshake knows the rest.
    pub(super) fn state(&self, (sends, receives): (bool, bool), is_changing_key: bool) -> TunnelState {
        let Refusals { unsealed, unknown_session, wrong_tag, replayed, other_key, unsent } = &self.refusals;
        let [unsealed, unknown_session, wrong_tag, replayed, other_key, unsent] =
            [unsealed, unknown_session, wrong_tag, replayed, other_key, unsent].map(|n| n.load(Ordering::Relaxed));
        let address = self.address;
        TunnelState {
            address,
            sends,
            receives,
            is_changing_key,
            unsealed,
            unknown_session,
            wrong_tag,
            replayed,
            other_key,
            unsent,
        }
    }
}

/// Counts one.
pub(super) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
