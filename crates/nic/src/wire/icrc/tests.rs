use super::*;
use crate::wire::Header;
use proptest::prelude::*;
use rdmesh_verbs::Gid;
use std::net::IpAddr;

/// A congestion notification of a ConnectX-4 Lx.
const NOTIFICATION: &str = "45c2003c718c4000401191610a0011010a001201 000012b700280000 8100ffff4000011800000000
    00000000000000000000000000000000 82fd002a";
/// WRITE_ONLY of an unreliable connection (scapy's tests of RoCE).
const OVER_IPV4: &str = "45010040047840004011b4d5c0a80007c0a80007 c00012b7002caca2 2460ffff000000d300cf1710
    4630818be28935d90e9a95505401be885e500000 78f353f3";
/// The same over IPv6.
const OVER_IPV6: &str = "6e21face002c11ff 20220000000000000000000000001023 20230000000000000000000000001024
    c00012b7002ce7c5 2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000 3e5b743b";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("hex")).collect()
}

#[test]
fn the_crc_is_that_of_other_implementations() {
    for vector in [NOTIFICATION, OVER_IPV4, OVER_IPV6] {
        let packet = bytes(vector);
        let (ip, payload) = IpUdp::decode(&packet).expect("IP");
        assert!(check(&ip, payload), "{vector}");
        assert!(Header::decode(payload).is_ok());
        let (body, found) = split(payload).expect("a CRC");
        assert_eq!(icrc(&ip, body), found);
    }
}

#[test]
fn what_routers_change_is_not_covered() {
    for vector in [NOTIFICATION, OVER_IPV6] {
        let packet = bytes(vector);
        let (ip, payload) = IpUdp::decode(&packet).expect("IP");
        let flow_label = if ip.is_ipv4() { 0 } else { 1 };
        assert!(check(&IpUdp { traffic_class: 3, hop_limit: 1, flow_label, ..ip }, payload));
        assert!(!check(&IpUdp { source_port: ip.source_port ^ 1, ..ip }, payload));
        assert!(!check(&IpUdp { source: ip.dest, dest: ip.source, ..ip }, payload));
        let mut marked = payload.to_vec();
        marked[CONGESTION] ^= 0xc0;
        assert!(check(&ip, &marked));
    }
}

#[test]
fn the_identification_is_found() {
    let packet = bytes(NOTIFICATION);
    let (ip, payload) = IpUdp::decode(&packet).expect("IP");
    let mut solver = IdSolver::new();
    assert_eq!(solver.solve(&IpUdp { id: 0xffff, ..ip }, payload), Some(0x718c));
    assert_eq!(solver.solve(&IpUdp { id: 0, ..ip }, payload), Some(ip.id));
}

#[test]
fn an_ipv6_packet_is_right_or_wrong() {
    let mut packet = bytes(OVER_IPV6);
    let (ip, payload) = IpUdp::decode(&packet).expect("IP");
    let mut solver = IdSolver::new();
    assert_eq!(solver.solve(&ip, payload), Some(0));
    *packet.last_mut().expect("a byte") ^= 1;
    let (ip, payload) = IpUdp::decode(&packet).expect("IP");
    assert_eq!(solver.solve(&ip, payload), None);
}

#[test]
fn what_has_no_room_for_a_crc_is_wrong() {
    let packet = bytes(OVER_IPV4);
    let (ip, payload) = IpUdp::decode(&packet).expect("IP");
    for len in 0..payload.len() {
        assert!(!check(&ip, &payload[..len]));
        assert!(len >= ICRC_LEN || IdSolver::new().solve(&ip, &payload[..len]).is_none());
    }
}

/// The CRC as the specification words it, bit by bit.
fn by_definition(packet: &[u8]) -> [u8; ICRC_LEN] {
    let mut register = u32::MAX;
    for &byte in [0xff; 8].iter().chain(packet) {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = register >> 1 ^ if register & 1 != 0 { POLYNOMIAL } else { 0 };
        }
    }
    (!register).to_le_bytes()
}

fn headers(is_v6: bool, id: u16) -> IpUdp {
    let gid = |v4: &str, v6: &str| Gid::from_ip(if is_v6 { v6 } else { v4 }.parse::<IpAddr>().expect("an address"));
    let (source, dest) = (gid("10.0.0.1", "fd00::1"), gid("10.0.0.2", "fd00::2"));
    IpUdp { source, dest, traffic_class: 2, hop_limit: 64, flow_label: 0, id, source_port: 0xc123 }
}

proptest! {
    #[test]
    fn the_crc_is_that_of_the_definition(is_v6: bool, id: u16, body in prop::collection::vec(any::<u8>(), 12..300)) {
        let ip = headers(is_v6, id);
        let mut packet = vec![0; ip.len()];
        ip.encode(body.len() + ICRC_LEN, &mut packet);
        let variant: &[usize] = if is_v6 { &[1, 2, 3, 7, 46, 47, 52] } else { &[1, 8, 10, 11, 26, 27, 32] };
        packet.extend(&body);
        for &at in variant {
            packet[at] = 0xff;
        }
        if is_v6 {
            packet[0] |= 0x0f;
        }
        prop_assert_eq!(icrc(&ip, &body), by_definition(&packet));
    }

    #[test]
    fn every_identification_is_found_at_every_length(
        id: u16,
        lengths in prop::collection::vec(1..1100usize, 1..4),
        fill: u8,
    ) {
        let ip = headers(false, id);
        let mut solver = IdSolver::new();
        for words in lengths {
            let mut body = vec![fill; words * 4];
            let crc = icrc(&ip, &body);
            body.extend(crc);
            prop_assert_eq!(solver.solve(&headers(false, 0), &body), Some(id));
        }
    }
}
