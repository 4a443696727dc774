//! The tunnel between routers: its sockets, and the authentication of its packets.
//!
//! Every packet is *sealed*: it has a tag that only its sending host can make, and that is accepted once.
//!
//! * [`guard`]: a worker's end: seals and opens packets.
//! * [`session`], [`gmac`], [`ghash`], [`replay`]: sessions, tags and the anti-replay window.
//! * [`service`], [`handshake`], [`control`], [`keys`]: session establishment between two hosts.
//! * [`link`], [`inbox`]: state shared by the workers and the handshake thread.
//! * [`rehearsal`]: one session without sockets, for tests.

mod control;
mod ghash;
mod gmac;
mod guard;
mod handshake;
mod inbox;
mod keys;
mod link;
mod rehearsal;
mod replay;
mod service;
mod session;

pub(crate) use guard::{Guard, Table};
pub(crate) use keys::pair_key;
pub use rehearsal::Rehearsal;
pub(crate) use service::Sessions;
pub use service::StrangersSeen;

use super::socket::{Purpose, Socket};
use super::steering::{self, Steering};
use rdmesh_nic::TUNNEL_PORT;
use rdmesh_nic::wire::geneve;
use rustix::io::{self, Errno};
use std::net::{IpAddr, SocketAddr};

/// Ends of the tunnel that a router opens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// One for each.
    pub(crate) workers: usize,
    /// UDP source ports of each.
    pub(crate) lanes: u8,
}

/// One worker's end of the tunnel.
pub(crate) struct Tunnel {
    pub(super) is_v4: bool,
    /// Bound to the tunnel's port, together with those of the other workers.
    pub(super) receiver: Socket,
    /// One for each lane. Their source ports tell routers between the hosts their datagrams from each other, and from those of other
    /// workers.
    pub(super) senders: Vec<Socket>,
    /// None where nothing is sealed.
    pub(super) guard: Option<Guard>,
}

impl Tunnel {
    /// The ends of all workers at the address `underlay`, which no other program may use at the tunnel's port.
    pub(crate) fn open(underlay: IpAddr, ends: Ends, sessions: Option<&Sessions>) -> io::Result<Vec<Self>> {
        Self::open_at(SocketAddr::new(underlay, TUNNEL_PORT), ends, sessions)
    }

    pub(super) fn open_at(
        address: SocketAddr,
        Ends { workers, lanes }: Ends,
        sessions: Option<&Sessions>,
    ) -> io::Result<Vec<Self>> {
        // Sockets that share would share with another router too.
        drop(Socket::open(address, Purpose::default())?);
        let mut tunnels = Vec::with_capacity(workers);
        for worker in 0..workers {
            let receiver = Socket::open(address, Purpose { is_shared: true, heeds_path: false })?;
            let numbers = (0..usize::from(lanes.max(1))).map(|lane| worker + lane * workers);
            let senders = numbers.map(|number| sender(address.ip(), number)).collect::<io::Result<_>>()?;
            let guard = sessions.map(|sessions| sessions.guard(worker));
            tunnels.push(Self { is_v4: address.is_ipv4(), receiver, senders, guard });
        }
        if let Some(first) = tunnels.first()
            && workers > 1
        {
            first.receiver.choose_by(&steering::by_number(workers as u32, first.header()))?;
        }
        Ok(tunnels)
    }

    /// Has the kernel look up which of the workers a datagram is for, where it lets the router.
    pub(crate) fn steer(tunnels: &[Self]) -> Option<Steering> {
        let first = tunnels.first().filter(|_| tunnels.len() > 1)?;
        let log = |error: &Errno| {
            tracing::info!(%error, "the kernel steers datagrams without a table: for queue pairs that move, workers hand them on");
        };
        Steering::start(&first.receiver, first.header()).inspect_err(log).ok()
    }

    /// Bytes before the inner IP header.
    fn header(&self) -> usize {
        if self.guard.is_some() { geneve::SEALED_LEN } else { geneve::LEN }
    }
}

/// A socket with a port that carries entropy (RFC 8926, 3.3): that with this number of all workers and lanes.
fn sender(underlay: IpAddr, number: usize) -> io::Result<Socket> {
    for attempt in 0..ATTEMPTS {
        let port = FIRST_PORT + (number as u16).wrapping_mul(STEP).wrapping_add(attempt) % (u16::MAX - FIRST_PORT + 1);
        match Socket::open(SocketAddr::new(underlay, port), Purpose::default()) {
            Err(Errno::ADDRINUSE) => {}
            result => return result,
        }
    }
    Err(Errno::ADDRINUSE)
}

/// IANA's dynamic ports begin here (RFC 6335).
const FIRST_PORT: u16 = 49_152;
const STEP: u16 = 97;
const ATTEMPTS: u16 = 64;
