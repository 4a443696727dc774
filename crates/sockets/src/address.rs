//! Addresses of TCP connections, and whether both ends are on this host.
#![allow(unsafe_code)]

use libc::{c_int, sockaddr, sockaddr_storage, socklen_t};
use rdmesh_preload::real;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The two ends of a connection, by who began it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ends {
    pub(crate) connector: SocketAddr,
    pub(crate) acceptor: SocketAddr,
}

impl Ends {
    /// Of socket `fd`, which has connected, or else was accepted.
    pub(crate) fn of(fd: c_int, has_connected: bool) -> Option<Self> {
        let (own, peer) = (own(fd)?, peer(fd)?);
        Some(if has_connected {
            Self { connector: own, acceptor: peer }
        } else {
            Self { connector: peer, acceptor: own }
        })
    }

    /// Whether both are in one network namespace as far as addresses tell: a host's connections to itself have one address at
    /// both ends, unless a program has chosen another.
    pub(crate) fn are_local(&self) -> bool {
        let (a, b) = (self.connector.ip(), self.acceptor.ip());
        a == b || a.is_loopback() && b.is_loopback()
    }

    /// A number that tells them from others. Not 0 or 1.
    pub(crate) fn hash(&self) -> u64 {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        Hash::hash(self, &mut hasher);
        hasher.finish() | 2
    }
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

/// The address of socket `fd` itself.
pub(crate) fn own(fd: c_int) -> Option<SocketAddr> {
    named(|name, len| real::getsockname(fd, name, len))
}

/// The address of its peer.
pub(crate) fn peer(fd: c_int) -> Option<SocketAddr> {
    named(|name, len| real::getpeername(fd, name, len))
}

fn named(call: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int) -> Option<SocketAddr> {
    // SAFETY: plain data, of which all zeros is a value.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let result = call((&raw mut storage).cast(), &raw mut len);
    if result == 0 { parse((&raw const storage).cast(), len) } else { None }
}

/// The address that a program passes; none where it is of another family. IPv4 in IPv6 is IPv4.
pub(crate) fn parse(name: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    if name.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the caller has so many readable bytes there, perhaps not aligned.
    unsafe {
        match c_int::from((&raw const (*name).sa_family).read_unaligned()) {
            libc::AF_INET if len as usize >= size_of::<libc::sockaddr_in>() => {
                let name = name.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
                Some(SocketAddr::new(ip.into(), u16::from_be(name.sin_port)))
            }
            libc::AF_INET6 if len as usize >= size_of::<libc::sockaddr_in6>() => {
                let name = name.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = IpAddr::from(Ipv6Addr::from(name.sin6_addr.s6_addr)).to_canonical();
                Some(SocketAddr::new(ip, u16::from_be(name.sin6_port)))
            }
            _ => None,
        }
    }
}
