//! Handshake thread: establishes and renews sessions with the other hosts.

use super::guard::{Guard, Table};
use super::handshake::{Handshake, Outcome, Unheard};
use super::inbox::Inbox;
use super::link::{PeerLink, bump};
use super::session::{ReceiveSession, SendSession};
use crate::io::clock::Clock;
use rdmesh_fabric::api::TunnelState;
use rdmesh_fabric::{Rotated, TunnelKey};
use rdmesh_nic::{TUNNEL_PORT, Time};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The sessions with all other hosts. Dropping it ends the thread.
pub(crate) struct Sessions {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    own: IpAddr,
    workers: usize,
    clock: Clock,
    /// Secret for the cookies of this process.
    secret: [u8; 32],
    socket: UdpSocket,
    inbox: Arc<Inbox>,
    peers: Mutex<BTreeMap<IpAddr, HostState>>,
    stop: AtomicBool,
}

struct HostState {
    link: Arc<PeerLink>,
    handshake: Handshake,
}

/// Packets from addresses that are not a host's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StrangersSeen {
    /// Packets.
    pub packets: u64,
    /// Source of the last one.
    pub last: Option<IpAddr>,
    /// Control messages that were not read, because too many came at once.
    pub unread: u64,
}

impl Sessions {
    /// Starts the thread for the host at `own`, whose router has so many workers.
    pub(crate) fn start(own: IpAddr, workers: usize, clock: Clock) -> Result<Self, Errno> {
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let socket = UdpSocket::bind((own, 0)).map_err(errno)?;
        socket.set_nonblocking(true).map_err(errno)?;
        let mut secret = [0; 32];
        getrandom(&mut secret, GetRandomFlags::empty())?;
        let (inbox, peers, stop) = (Arc::new(Inbox::new()), Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { own, workers, clock, secret, socket, inbox, peers, stop });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("rdmesh-sessions".to_owned()).spawn(move || theirs.run());
        let thread = thread.map_err(errno)?;
        shared.inbox.set_reader(thread.thread().clone());
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The end of a worker, which seals and opens.
    pub(crate) fn guard(&self, worker: usize) -> Guard {
        Guard::new(worker, Arc::clone(&self.shared.inbox))
    }

    /// The host at `address` has the newest of these keys, or will have it. Returns the table for the workers.
    pub(crate) fn set_peer(&self, address: IpAddr, key: &Rotated<TunnelKey>) -> Table {
        let Shared { own, clock, secret, .. } = &*self.shared;
        let mut peers = self.shared.peers();
        // A host that is known already has the older key, or one before it.
        let peer = peers.entry(address).or_insert_with(|| {
            let first = key.oldest();
            let handshake = Handshake::new(*own, address, first, *secret, clock.now());
            HostState { link: Arc::new(PeerLink::new(address)), handshake }
        });
        peer.handshake.set_key(&key.newest, clock.now());
        drop(peers);
        self.shared.inbox.wake();
        self.table()
    }

    /// There is no host at `address` any more.
    pub(crate) fn remove_peer(&self, address: IpAddr) -> Table {
        self.shared.peers().remove(&address);
        self.table()
    }

    /// The tunnel to each host, by address.
    pub(crate) fn states(&self) -> BTreeMap<IpAddr, TunnelState> {
        let state = |peer: &HostState| {
            let (sends, receives) = peer.handshake.is_agreed();
            peer.link.state(sends, receives, peer.handshake.is_changing())
        };
        self.shared.peers().iter().map(|(address, peer)| (*address, state(peer))).collect()
    }

    /// Packets from unknown addresses.
    pub(crate) fn strangers(&self) -> StrangersSeen {
        let (packets, last) = self.shared.inbox.strangers().seen();
        StrangersSeen { packets, last, unread: self.shared.inbox.dropped() }
    }

    fn table(&self) -> Table {
        self.shared.peers().iter().map(|(address, peer)| (*address, Arc::clone(&peer.link))).collect()
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.inbox.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let has_read = self.read();
            let (deadline, has_lost) = self.tend();
            let wait = deadline.map_or(LONGEST, |at| Duration::from_nanos(at.0.saturating_sub(self.clock.now().0)));
            if has_read || has_lost {
                // However many packets provoke this, it costs a small part of a processor.
                thread::sleep(PACE);
            } else {
                thread::park_timeout(wait.min(LONGEST));
            }
        }
    }

    /// Reads the messages that wait. Returns whether there were any.
    fn read(&self) -> bool {
        let mut was_busy = false;
        while let Some((from, body)) = self.inbox.take() {
            was_busy = true;
            let mut peers = self.peers();
            let Some(peer) = peers.get_mut(&from) else {
                self.inbox.strangers().note(from);
                continue;
            };
            match peer.handshake.handle(self.clock.now(), &body) {
                Ok(outcome) => self.follow(peer, outcome),
                Err(Unheard::OtherKey) => bump(&peer.link.counters.other_key),
                Err(Unheard::Forged) => bump(&peer.link.counters.wrong_tag),
            }
        }
        was_busy
    }

    /// Handles expired deadlines; returns the next one, and whether packets came in unknown sessions.
    fn tend(&self) -> (Option<Time>, bool) {
        let mut has_lost = false;
        let mut peers = self.peers();
        for peer in peers.values_mut() {
            let now = self.clock.now();
            let outcome = peer.handshake.poll(now, &mut random);
            self.follow(peer, outcome);
            if let Some(reference) = peer.link.take_lost() {
                has_lost = true;
                let notice = peer.handshake.lost(now, reference);
                notice.iter().for_each(|packet| self.send(peer, packet));
            }
        }
        (peers.values().filter_map(|peer| peer.handshake.deadline()).min(), has_lost)
    }

    fn follow(&self, peer: &HostState, outcome: Outcome) {
        let Outcome { packet, send, receive, forget_previous } = outcome;
        if let Some(secret) = receive {
            let session = Arc::new(ReceiveSession::new(&secret));
            peer.link.update(|sessions| sessions.previous = sessions.receive.replace(session));
            tracing::info!(host = %peer.link.address(), "the tunnel from there is authenticated");
        }
        if let Some(secret) = send {
            let session = Arc::new(SendSession::new(&secret, self.workers));
            peer.link.update(|sessions| sessions.send = Some(session));
        }
        if forget_previous {
            peer.link.update(|sessions| sessions.previous = None);
        }
        // Last: a host that is told that a session is open may use it at once.
        if let Some(packet) = packet {
            self.send(peer, &packet);
        }
    }

    /// A message that cannot be sent counts as lost.
    fn send(&self, peer: &HostState, packet: &[u8]) {
        let _ = self.socket.send_to(packet, (peer.link.address(), TUNNEL_PORT));
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<IpAddr, HostState>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Chance, from the kernel.
fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    // A kernel that had some when the thread began has some now.
    getrandom(&mut bytes, GetRandomFlags::empty()).expect("the kernel's random numbers");
    bytes
}

/// Between two looks at the inbox while messages come.
const PACE: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(60);
