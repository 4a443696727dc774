//! Local identifiers (LIDs).
//!
//! An Ethernet port has none, and programs that know no GIDs (qperf without its connection manager, datagram sockets of
//! rsocket, the pingpong programs without `-g`) do not work there. Here the low half of an endpoint's IPv4 address is its
//! LID: within a network of at most 65,536 addresses it leads to the peer with no table and no manager.

use rdmesh_verbs::Gid;
use std::net::Ipv4Addr;

/// Those from here on are multicast LIDs (IBA 4.1.3).
const FIRST_MULTICAST: u16 = 0xc000;

/// The LID of the endpoint with this GID table; 0 where it has none.
pub(crate) fn lid(table: &[Gid]) -> u16 {
    ipv4(table).map(|(_, address)| low_half(address)).filter(|lid| *lid < FIRST_MULTICAST).unwrap_or(0)
}

/// The entry of the own table, and the destination GID, for `lid`.
pub(crate) fn resolve(table: &[Gid], lid: u16) -> Option<(u8, Gid)> {
    let (index, own) = ipv4(table).filter(|_| (1..FIRST_MULTICAST).contains(&lid))?;
    let [a, b, ..] = own.octets();
    let [c, d] = lid.to_be_bytes();
    Some((index as u8, Gid::from_ip(Ipv4Addr::new(a, b, c, d).into())))
}

fn low_half(address: Ipv4Addr) -> u16 {
    let [.., c, d] = address.octets();
    u16::from_be_bytes([c, d])
}

fn ipv4(table: &[Gid]) -> Option<(usize, Ipv4Addr)> {
    table.iter().enumerate().find_map(|(index, gid)| Some((index, gid.as_ipv4()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(address: &str) -> [Gid; 2] {
        [Gid::from_ip("fe80::1".parse().unwrap()), Gid::from_ip(address.parse().unwrap())]
    }

    #[test]
    fn a_lid_is_half_an_address() {
        let (a, b) = (table("10.7.1.2"), table("10.7.0.3"));
        assert_eq!((lid(&a), lid(&b)), (0x102, 3));
        assert_eq!(resolve(&a, lid(&b)), Some((1, b[1])));
        assert_eq!(resolve(&a, lid(&a)), Some((1, a[1])));
    }

    #[test]
    fn not_everybody_has_one() {
        assert_eq!([lid(&table("fd00::2")), lid(&table("10.7.200.1")), lid(&table("10.7.0.0")), lid(&[])], [0; 4]);
        assert_eq!(resolve(&table("10.7.0.1"), 0), None);
        assert_eq!(resolve(&table("10.7.0.1"), FIRST_MULTICAST), None);
        assert_eq!(resolve(&table("fd00::2"), 1), None);
    }
}
