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

use super::raw::Instruction;
use super::socket::{Purpose, Socket};
use rdmesh_nic::TUNNEL_PORT;
use rdmesh_nic::wire::geneve;
use rustix::io::{self, Errno};
use std::net::{IpAddr, SocketAddr};

/// One worker's end of the tunnel.
pub(crate) struct Tunnel {
    pub(super) is_v4: bool,
    /// Bound to the tunnel's port, together with those of the other workers.
    pub(super) receiver: Socket,
    /// Its source port tells routers between the hosts its datagrams from those of other workers.
    pub(super) sender: Socket,
    /// None where nothing is sealed.
    pub(super) guard: Option<Guard>,
}

impl Tunnel {
    /// The ends of all workers at the address `underlay`, which no other program may use at the tunnel's port.
    pub(crate) fn open(underlay: IpAddr, workers: usize, sessions: Option<&Sessions>) -> io::Result<Vec<Self>> {
        Self::open_at(SocketAddr::new(underlay, TUNNEL_PORT), workers, sessions)
    }

    pub(super) fn open_at(address: SocketAddr, workers: usize, sessions: Option<&Sessions>) -> io::Result<Vec<Self>> {
        // Sockets that share would share with another router too.
        drop(Socket::open(address, Purpose::default())?);
        let mut tunnels = Vec::with_capacity(workers);
        for worker in 0..workers {
            let receiver = Socket::open(address, Purpose { is_shared: true, heeds_path: false })?;
            let (sender, guard) = (sender(address.ip(), worker)?, sessions.map(|sessions| sessions.guard(worker)));
            tunnels.push(Self { is_v4: address.is_ipv4(), receiver, sender, guard });
        }
        if let Some(first) = tunnels.first()
            && workers > 1
        {
            let header = if sessions.is_some() { geneve::SEALED_LEN } else { geneve::LEN };
            first.receiver.choose_by(&program(workers as u32, header as u32))?;
        }
        Ok(tunnels)
    }
}

/// A socket with a port that carries entropy (RFC 8926, 3.3), other than those of the other workers.
fn sender(underlay: IpAddr, worker: usize) -> io::Result<Socket> {
    for attempt in 0..ATTEMPTS {
        let port = FIRST_PORT + (worker as u16).wrapping_mul(STEP).wrapping_add(attempt) % (u16::MAX - FIRST_PORT + 1);
        match Socket::open(SocketAddr::new(underlay, port), Purpose::default()) {
            Err(Errno::ADDRINUSE) => {}
            result => return result,
        }
    }
    Err(Errno::ADDRINUSE)
}

/// Chooses a worker by the queue pair that a datagram is for, as the engine does. A datagram that is not laid out as
/// routers lay them out goes to any of them.
fn program(workers: u32, geneve: u32) -> [Instruction; 8] {
    let op = |code: u32, k: u32| Instruction { code: code as u16, jt: 0, jf: 0, k };
    let skip_unless = |k| Instruction { jf: 2, ..op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k) };
    [
        op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, GENEVE_PROTOCOL),
        skip_unless(IPV6),
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, geneve + QUEUE_PAIR + 20),
        op(libc::BPF_JMP | libc::BPF_JA, 1),
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, geneve + QUEUE_PAIR),
        op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xff_ffff),
        op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, workers),
        op(libc::BPF_RET | libc::BPF_A, 0),
    ]
}

/// IANA's dynamic ports begin here (RFC 6335).
const FIRST_PORT: u16 = 49_152;
const STEP: u16 = 97;
const ATTEMPTS: u16 = 64;
/// Where a Geneve header says what follows it.
const GENEVE_PROTOCOL: u32 = 2;
const IPV6: u32 = 0x86dd;
/// Where, behind Geneve's header, the four bytes begin that end with the queue pair's number: IPv4, UDP, and the base
/// transport header.
const QUEUE_PAIR: u32 = 20 + 8 + 4;
