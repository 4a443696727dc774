//! Sealing of a worker's tunnel packets, and authentication of received ones before anything else reads them.
//!
//! A packet from an address that is no host's, of no session, or that has been received before, is refused without a look at
//! its tag. All other packets cost the tag's computation and no more: no lock, no memory, no state that changes.

use super::inbox::Inbox;
use super::link::{PeerLink, Sessions, bump};
use super::session::{ReceiveSession, Refused};
use rdmesh_nic::wire::geneve::{self, Seal};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The other hosts, by address.
pub(crate) type Table = HashMap<IpAddr, Arc<PeerLink>>;

/// One worker's.
pub(crate) struct Guard {
    worker: usize,
    inbox: Arc<Inbox>,
    views: Vec<View>,
    places: HashMap<IpAddr, usize>,
    /// Index of the last packet's host, which is mostly that of the next packet too.
    last: usize,
}

/// Another host as a worker sees it.
struct View {
    link: Arc<PeerLink>,
    generation: u64,
    sessions: Sessions,
}

impl Guard {
    pub(super) fn new(worker: usize, inbox: Arc<Inbox>) -> Self {
        Self { worker, inbox, views: Vec::new(), places: HashMap::new(), last: 0 }
    }

    /// Takes another table into use.
    pub(crate) fn set_peers(&mut self, table: &Table) {
        self.views = table.values().map(|link| View::new(Arc::clone(link))).collect();
        self.places = self.views.iter().enumerate().map(|(at, view)| (view.link.address(), at)).collect();
        self.last = 0;
    }

    /// Seals a packet to the host at `to`; false where it cannot be, and must not be sent.
    pub(crate) fn seal(&mut self, to: IpAddr, packet: &mut [u8]) -> bool {
        let worker = self.worker;
        let Some(view) = self.view(to) else { return false };
        view.sessions.send.as_ref().is_some_and(|session| session.seal(worker, packet).is_ok())
    }

    /// So many packets to the host at `to` could not be sealed.
    pub(crate) fn count_unsent(&mut self, to: IpAddr, count: u64) {
        if let Some(view) = self.view(to) {
            view.link.counters.unsent.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Whether `packet`, from the address `from`, was sealed by the host there and is not a replay.
    pub(crate) fn open(&mut self, from: IpAddr, packet: &[u8]) -> bool {
        let Some(at) = self.place(from) else {
            // An empty datagram is the check for a listener, which `rdmesh doctor` makes.
            if !packet.is_empty() {
                self.inbox.strangers().note(from);
            }
            return false;
        };
        if let Some(body) = geneve::decode_control(packet) {
            self.inbox.post(from, body);
            return false;
        }
        let seal = geneve::read_seal(packet);
        let view = &self.views[at];
        let counters = &view.link.counters;
        let counter = match seal.map(|seal| (seal, view.session(seal))) {
            None if packet.is_empty() => return false,
            None => &counters.unsealed,
            Some((seal, None)) => {
                if view.link.note_lost(seal.session) {
                    self.inbox.wake();
                }
                &counters.unknown_session
            }
            Some((seal, Some(session))) => match session.open(seal, packet) {
                Ok(()) => return true,
                Err(Refused::Replayed) => &counters.replayed,
                Err(Refused::WrongTag) => &counters.wrong_tag,
            },
        };
        bump(counter);
        false
    }

    fn view(&mut self, address: IpAddr) -> Option<&View> {
        self.place(address).map(|at| &self.views[at])
    }

    /// Index of the host at `address` in the views, whose sessions are up to date afterwards.
    fn place(&mut self, address: IpAddr) -> Option<usize> {
        if self.views.get(self.last).is_none_or(|view| view.link.address() != address) {
            self.last = *self.places.get(&address)?;
        }
        self.views[self.last].refresh();
        Some(self.last)
    }
}

impl View {
    fn new(link: Arc<PeerLink>) -> Self {
        Self { link, generation: 0, sessions: Sessions::default() }
    }

    fn refresh(&mut self) {
        let generation = self.link.generation();
        if generation != self.generation {
            self.sessions = self.link.sessions().clone();
            self.generation = generation;
        }
    }

    fn session(&self, seal: Seal) -> Option<&ReceiveSession> {
        let Sessions { receive, previous, .. } = &self.sessions;
        let found = [receive, previous].into_iter().flatten().find(|session| session.reference() == seal.session);
        found.map(Arc::as_ref)
    }
}
