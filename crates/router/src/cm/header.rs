//! rdma_cm's header in front of a program's private data (IBA annex A11, "RDMA IP CM service"), and its service IDs.

use super::id::PortSpace;
use arrayvec::ArrayVec;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of the header.
pub(super) const LEN: usize = 36;
/// Bytes of private data that a REQ has.
pub(super) const REQ_PRIVATE: usize = 92;
/// Bytes of private data that a SIDR_REQ has.
pub(super) const SIDR_PRIVATE: usize = 216;

const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// IP addresses and source port of a connection request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IpHeader {
    pub(super) source: SocketAddr,
    /// The port is in the service ID.
    pub(super) dest: IpAddr,
}

impl IpHeader {
    /// The header and the program's own data after it.
    pub(super) fn encode<const N: usize>(&self, private: &[u8]) -> ArrayVec<u8, N> {
        let mut bytes = ArrayVec::new();
        let version = if self.dest.is_ipv4() { IPV4 } else { IPV6 };
        bytes.extend([0, version << 4]);
        bytes.extend(self.source.port().to_be_bytes());
        bytes.extend(octets(self.source.ip()));
        bytes.extend(octets(self.dest));
        let room = bytes.remaining_capacity();
        bytes.extend(private.iter().copied().take(room));
        bytes
    }

    /// Removes the header; none where there is none, or one of an unknown version.
    pub(super) fn decode(private: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = private.split_first_chunk::<LEN>()?;
        if header[0] != 0 {
            return None;
        }
        let port = u16::from_be_bytes([header[2], header[3]]);
        let (source, dest) = match header[1] >> 4 {
            IPV4 => (ipv4(&header[4..20])?, ipv4(&header[20..36])?),
            IPV6 => (ipv6(&header[4..20])?, ipv6(&header[20..36])?),
            _ => return None,
        };
        Some((Self { source: SocketAddr::new(source, port), dest }, rest))
    }
}

/// The service ID of a port (`rdma_get_service_id`).
pub(super) fn service_id(space: PortSpace, port: u16) -> u64 {
    u64::from(space.number()) << 16 | u64::from(port)
}

/// The port that a service ID stands for.
pub(super) fn port_of(service_id: u64) -> Option<(PortSpace, u16)> {
    let number = u16::try_from(service_id >> 16).ok()?;
    Some((PortSpace::from_number(number)?, service_id as u16))
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[12..].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn ipv4(bytes: &[u8]) -> Option<IpAddr> {
    Some(Ipv4Addr::from(*bytes.last_chunk::<4>()?).into())
}

fn ipv6(bytes: &[u8]) -> Option<IpAddr> {
    Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_annex_a11s() {
        let header = IpHeader { source: "10.0.0.1:4660".parse().unwrap(), dest: "10.0.0.2".parse().unwrap() };
        let bytes: ArrayVec<u8, REQ_PRIVATE> = header.encode(b"hello");
        assert_eq!(&bytes[..4], [0, 0x40, 0x12, 0x34]);
        assert_eq!((&bytes[16..20], &bytes[32..36]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
        assert_eq!(IpHeader::decode(&bytes), Some((header, &b"hello"[..])));
        let header = IpHeader { source: "[fd00::1]:1".parse().unwrap(), dest: "fd00::2".parse().unwrap() };
        let bytes: ArrayVec<u8, REQ_PRIVATE> = header.encode(&[]);
        assert_eq!(IpHeader::decode(&bytes), Some((header, &[][..])));
    }

    #[test]
    fn unknown_versions_are_refused() {
        assert_eq!(IpHeader::decode(&[0; LEN]), None);
        assert_eq!(IpHeader::decode(&[0; LEN - 1]), None);
        let mut bytes = [0; LEN];
        bytes[..2].copy_from_slice(&[1, 0x40]);
        assert_eq!(IpHeader::decode(&bytes), None);
    }

    #[test]
    fn service_ids_carry_space_and_port() {
        assert_eq!(service_id(PortSpace::Tcp, 0x1c5b), 0x0106_1c5b);
        for space in [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib, PortSpace::IpoIb] {
            assert_eq!(port_of(service_id(space, 7471)), Some((space, 7471)), "{space:?}");
        }
        for other in [0x0107_0001, 0x0206_0001, 1 << 32 | 0x0106_0001, 0] {
            assert_eq!(port_of(other), None, "{other:#x}");
        }
    }
}
