//! Global route header (GRH): the 40 bytes in front of every received datagram (IBA 8.3, annex A17.4.4).

use crate::wire::IpUdp;
use core::net::Ipv4Addr;
use rdmesh_verbs::Gid;

/// The IP header that the datagram would have had on the wire: an IPv6 header, or an IPv4 header in the last 20 bytes.
pub(super) fn grh(ip: &IpUdp, len: u32, has_imm: bool) -> [u8; 40] {
    let hop_limit = if ip.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { ip.hop_limit };
    let imm_len = if has_imm { 4 } else { 0 };
    let padded = len.next_multiple_of(4) as u16;
    let udp_len = UDP_LEN + BTH_LEN + DETH_LEN + imm_len + padded + ICRC_LEN;
    match (ip.source.as_ipv4(), ip.dest.as_ipv4()) {
        (Some(from), Some(to)) => ipv4(from, to, ip.traffic_class, hop_limit, udp_len),
        _ => ipv6(ip.source, ip.dest, ip.traffic_class, hop_limit, ip.flow_label, udp_len),
    }
}

fn ipv4(from: Ipv4Addr, to: Ipv4Addr, tos: u8, ttl: u8, udp_len: u16) -> [u8; 40] {
    const DONT_FRAGMENT: u8 = 0x40;
    let mut grh = [0; 40];
    let header = &mut grh[20..];
    header[0] = 0x45;
    header[1] = tos;
    header[2..4].copy_from_slice(&(IPV4_LEN + udp_len).to_be_bytes());
    header[6] = DONT_FRAGMENT;
    header[8] = ttl;
    header[9] = UDP;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let sum = header.chunks(2).fold(0u32, |sum, pair| sum + u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    grh
}

fn ipv6(from: Gid, to: Gid, traffic_class: u8, hop_limit: u8, flow_label: u32, udp_len: u16) -> [u8; 40] {
    let mut grh = [0; 40];
    let first = 6 << 28 | u32::from(traffic_class) << 20 | (flow_label & 0xf_ffff);
    grh[0..4].copy_from_slice(&first.to_be_bytes());
    grh[4..6].copy_from_slice(&udp_len.to_be_bytes());
    grh[6] = UDP;
    grh[7] = hop_limit;
    grh[8..24].copy_from_slice(&from.0);
    grh[24..40].copy_from_slice(&to.0);
    grh
}

const DEFAULT_HOP_LIMIT: u8 = 64;
const UDP: u8 = 17;
const IPV4_LEN: u16 = 20;
const UDP_LEN: u16 = 8;
const BTH_LEN: u16 = 12;
const DETH_LEN: u16 = 8;
const ICRC_LEN: u16 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_header_sums_to_zero() {
        let grh = ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 3, 64, 100);
        let sum: u32 = grh[20..].chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
