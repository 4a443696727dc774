//! Addresses of sockets, and those that programs pass.
#![allow(unsafe_code)]

use libc::{c_int, sockaddr, sockaddr_storage, socklen_t};
use rdmesh_preload::real;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

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
