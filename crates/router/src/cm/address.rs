//! Socket addresses as programs pass them: `sockaddr_in`, `sockaddr_in6`, and of `sockaddr_ib` the wildcard.

use rdmesh_verbs::Gid;
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// `AF_IB` of linux/socket.h.
const AF_IB: u16 = 27;
const IB_GID_AT: usize = 8;

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
    let family = u16::from_ne_bytes(field(bytes, 0)?);
    let port = || field(bytes, 2).map(u16::from_be_bytes);
    match family {
        0 => Ok(None),
        AF_INET => Ok(Some(Address::Ip(SocketAddrV4::new(Ipv4Addr::from(field::<4>(bytes, 4)?), port()?).into()))),
        AF_INET6 => {
            let flow = u32::from_be_bytes(field(bytes, 4)?);
            let scope = u32::from_ne_bytes(field(bytes, 24)?);
            let ip = Ipv6Addr::from(field::<16>(bytes, 8)?);
            Ok(Some(Address::Ip(SocketAddrV6::new(ip, port()?, flow, scope).into())))
        }
        AF_IB if field::<16>(bytes, IB_GID_AT)? == [0; 16] => Ok(Some(Address::IbAny)),
        AF_IB => Ok(Some(Address::Ib)),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// Encoded length of an address.
pub(super) fn encoded_len(address: SocketAddr) -> usize {
    match address {
        SocketAddr::V4(_) => 16,
        SocketAddr::V6(_) => 28,
    }
}

/// Writes an address; the rest of `to` stays as it is.
pub(super) fn encode(address: SocketAddr, to: &mut [u8]) {
    let mut bytes = [0; 28];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address.ip().octets());
        }
        SocketAddr::V6(address) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&address.ip().octets());
            bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
        }
    }
    let len = encoded_len(address).min(to.len());
    to[..len].copy_from_slice(&bytes[..len]);
}

/// Bytes of a `sockaddr_ib`.
pub(super) const IB_LEN: usize = 48;

/// Writes a GID as a `sockaddr_ib`, with the service ID that stands for the port.
pub(super) fn encode_ib(gid: Gid, pkey: u16, service_id: u64, to: &mut [u8]) {
    let mut bytes = [0; IB_LEN];
    bytes[..2].copy_from_slice(&AF_IB.to_ne_bytes());
    bytes[2..4].copy_from_slice(&pkey.to_be_bytes());
    bytes[IB_GID_AT..24].copy_from_slice(&gid.0);
    bytes[24..32].copy_from_slice(&service_id.to_be_bytes());
    bytes[32..40].copy_from_slice(&u64::MAX.to_be_bytes());
    to[..IB_LEN].copy_from_slice(&bytes);
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

fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Errno> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Errno::INVAL)
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
        bytes[..2].copy_from_slice(&AF_IB.to_ne_bytes());
        assert_eq!(decode(&bytes), Ok(Some(Address::IbAny)));
        bytes[9] = 1;
        assert_eq!(decode(&bytes), Ok(Some(Address::Ib)));
        bytes[..2].copy_from_slice(&1u16.to_ne_bytes());
        assert_eq!(decode(&bytes), Err(Errno::AFNOSUPPORT));
        assert_eq!(decode(&AF_INET6.to_ne_bytes()), Err(Errno::INVAL));
    }

    #[test]
    fn only_fe80_is_link_local() {
        assert!(is_link_local("fe80::1".parse().unwrap()) && is_link_local("febf::1".parse().unwrap()));
        assert!(!is_link_local("fec0::1".parse().unwrap()) && !is_link_local("169.254.1.1".parse().unwrap()));
    }
}
