//! Socket addresses as programs pass them: `sockaddr_in`, `sockaddr_in6`, and of `sockaddr_ib` the wildcard.

use rdmesh_uverbs::abi::{SockaddrIb, SockaddrIn, SockaddrIn6, address_family};
use rdmesh_verbs::Gid;
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An address that a program may name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Address {
    /// `AF_INET` or `AF_INET6`.
    Ip(SocketAddr),
    /// `AF_IB` without an address: librdmacm binds to one to learn whether the kernel knows the family.
    IbAny,
    /// `AF_IB` with an address, which only InfiniBand links have.
    Ib,
}

/// Reads a socket address; none where its family is `AF_UNSPEC`.
pub(super) fn decode(bytes: &[u8]) -> Result<Option<Address>, Errno> {
    match read::<u16>(bytes)? {
        0 => Ok(None),
        address_family::INET => {
            let SockaddrIn { port, addr, .. } = read(bytes)?;
            Ok(Some(Address::Ip(SocketAddrV4::new(Ipv4Addr::from(addr), u16::from_be_bytes(port)).into())))
        }
        address_family::INET6 => {
            let SockaddrIn6 { port, flowinfo, addr, scope_id, .. } = read(bytes)?;
            let (port, flow) = (u16::from_be_bytes(port), u32::from_be_bytes(flowinfo));
            Ok(Some(Address::Ip(SocketAddrV6::new(Ipv6Addr::from(addr), port, flow, scope_id).into())))
        }
        address_family::IB => {
            let is_any = read::<SockaddrIb>(bytes)?.addr == [0; 16];
            Ok(Some(if is_any { Address::IbAny } else { Address::Ib }))
        }
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// Length of the addresses of a family.
pub(super) fn len_of(family: u16) -> Option<usize> {
    match family {
        address_family::INET => Some(size_of::<SockaddrIn>()),
        address_family::INET6 => Some(size_of::<SockaddrIn6>()),
        address_family::IB => Some(size_of::<SockaddrIb>()),
        _ => None,
    }
}

/// The family of an address.
pub(super) fn family(bytes: &[u8]) -> Result<u16, Errno> {
    read(bytes)
}

/// Encoded length of an address.
pub(super) fn encoded_len(address: SocketAddr) -> usize {
    if address.is_ipv4() { size_of::<SockaddrIn>() } else { size_of::<SockaddrIn6>() }
}

/// Writes an address; the rest of `to` stays as it is.
pub(super) fn encode(address: SocketAddr, to: &mut [u8]) {
    let port = address.port().to_be_bytes();
    match address {
        SocketAddr::V4(v4) => {
            write(&SockaddrIn { family: address_family::INET, port, addr: v4.ip().octets(), zero: [0; 8] }, to);
        }
        SocketAddr::V6(v6) => {
            let (flowinfo, addr, scope_id) = (v6.flowinfo().to_be_bytes(), v6.ip().octets(), v6.scope_id());
            write(&SockaddrIn6 { family: address_family::INET6, port, flowinfo, addr, scope_id }, to);
        }
    }
}

/// Bytes of a `sockaddr_ib`.
pub(super) const IB_LEN: usize = size_of::<SockaddrIb>();

/// Writes a GID as a `sockaddr_ib`, with the service ID that stands for the port.
pub(super) fn encode_ib(gid: Gid, pkey: u16, service_id: u64, to: &mut [u8]) {
    let address = SockaddrIb {
        family: address_family::IB,
        pkey: pkey.to_be_bytes(),
        addr: gid.0,
        sid: service_id.to_be_bytes(),
        sid_mask: [0xff; 8],
        ..Default::default()
    };
    write(&address, to);
}

/// The wildcard of the family of `address`.
pub(super) fn any_like(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

/// Whether an IPv6 address counts on one link only, and so needs a scope.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80)
}

fn read<T: FromBytes>(bytes: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(bytes).map(|(address, _)| address).map_err(|_| Errno::INVAL)
}

/// Writes as much of an address as there is room for.
fn write(address: &(impl IntoBytes + Immutable), to: &mut [u8]) {
    let len = size_of_val(address).min(to.len());
    to[..len].copy_from_slice(&address.as_bytes()[..len]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_both_ways() {
        for text in ["10.1.2.3:4791", "[fe80::1%7]:1", "0.0.0.0:0", "[2001:db8::2]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut bytes = [0; 128];
            encode(address, &mut bytes);
            assert_eq!(decode(&bytes), Ok(Some(Address::Ip(address))), "{text}");
        }
    }

    #[test]
    fn other_families_are_told_apart() {
        assert_eq!(decode(&[0; 128]), Ok(None));
        let mut bytes = [0; 128];
        bytes[..2].copy_from_slice(&address_family::IB.to_ne_bytes());
        assert_eq!(decode(&bytes), Ok(Some(Address::IbAny)));
        bytes[std::mem::offset_of!(SockaddrIb, addr) + 1] = 1;
        assert_eq!(decode(&bytes), Ok(Some(Address::Ib)));
        bytes[..2].copy_from_slice(&1u16.to_ne_bytes());
        assert_eq!(decode(&bytes), Err(Errno::AFNOSUPPORT));
        assert_eq!(decode(&address_family::INET6.to_ne_bytes()), Err(Errno::INVAL));
    }

    #[test]
    fn only_fe80_is_link_local() {
        assert!(is_link_local("fe80::1".parse().unwrap()) && is_link_local("febf::1".parse().unwrap()));
        assert!(!is_link_local("fec0::1".parse().unwrap()) && !is_link_local("169.254.1.1".parse().unwrap()));
    }
}
