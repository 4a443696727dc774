//! Ends of a TCP connection, by which both processes name it.

use rustix::fd::BorrowedFd;
use rustix::net::{SocketAddrAny, getpeername, getsockname};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

/// The two ends of a connection, by who began it. IPv4 in IPv6 is IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ends {
    /// Address of the end that has connected.
    pub connector: SocketAddr,
    /// Address of the end that has accepted.
    pub acceptor: SocketAddr,
}

impl Ends {
    /// Of socket `fd`, which has connected, or else was accepted, as the kernel says; none where it is not connected.
    pub fn of(fd: BorrowedFd<'_>, has_connected: bool) -> Option<Self> {
        let own = canonical(getsockname(fd).ok()?)?;
        let peer = canonical(getpeername(fd).ok()??)?;
        Some(if has_connected {
            Self { connector: own, acceptor: peer }
        } else {
            Self { connector: peer, acceptor: own }
        })
    }

    /// Whether both are in one network namespace as far as addresses tell: a host's connections to itself have one address at
    /// both ends, unless a program has chosen another.
    pub fn are_local(&self) -> bool {
        is_local(self.connector.ip(), self.acceptor.ip())
    }

    /// A number that tells them from others, the same in every process. Not 0 or 1.
    pub fn hash(&self) -> u64 {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        Hash::hash(self, &mut hasher);
        hasher.finish() | 2
    }
}

/// Whether two addresses are one network namespace's, as far as they tell.
pub fn is_local(a: IpAddr, b: IpAddr) -> bool {
    a == b || a.is_loopback() && b.is_loopback()
}

fn canonical(address: SocketAddrAny) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(address).ok()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// FNV-1a: the same in every process, unlike the standard library's.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
