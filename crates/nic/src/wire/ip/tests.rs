//! Tests of IP and UDP headers.

use super::*;
use proptest::prelude::*;
use std::net::IpAddr;

fn gid(ip: &str) -> Gid {
    Gid::from_ip(ip.parse::<IpAddr>().expect("an address"))
}

fn headers(source: &str, dest: &str) -> IpUdp {
    let (source, dest) = (gid(source), gid(dest));
    let flow_label = if source.as_ipv4().is_some() { 0 } else { 0xf_ffff };
    IpUdp { source, dest, traffic_class: 0xb9, hop_limit: 63, flow_label, id: 0, source_port: 0xc000 }
}

fn packet(headers: &IpUdp, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0xee; headers.len()];
    headers.encode(payload.len(), &mut packet);
    packet.extend_from_slice(payload);
    packet
}

/// `packet` with the byte at `at` changed and, for IPv4, the checksum made right again.
fn changed(packet: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[at] = byte;
    if packet[0] >> 4 == 4 {
        packet[10..12].fill(0);
        let sum = internet_sum(packet.first_chunk().expect("a header"));
        packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
    }
    packet
}

#[test]
fn an_ipv4_packet_is_what_others_send() {
    let headers = IpUdp { id: 0x7a12, ..headers("10.0.0.1", "10.0.0.2") };
    let expected = "45b9002c7a1240003f11acf30a0000010a000002 c00012b700180000";
    let bytes: String = packet(&headers, &[0; 16])[..28].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(bytes, expected.replace(' ', ""));
}

#[test]
fn what_is_no_rocev2_over_ipv4_is_refused() {
    let good = packet(&headers("10.0.0.1", "10.0.0.2"), &[0; 16]);
    assert!(IpUdp::decode(&good).is_ok());
    let cases = [
        (0, 0x55, Malformed::Version),
        (0, 0x46, Malformed::Options),
        (3, 45, Malformed::TooShort),
        (3, 19, Malformed::Length),
        (3, 27, Malformed::Length),
        (3, 43, Malformed::Length),
        (6, 0x00, Malformed::Fragment),
        (6, 0x60, Malformed::Fragment),
        (7, 0x01, Malformed::Fragment),
        (9, 6, Malformed::Protocol),
        (23, 0xb8, Malformed::Port),
        (25, 23, Malformed::Length),
    ];
    for (at, byte, why) in cases {
        assert_eq!(IpUdp::decode(&changed(&good, at, byte)), Err(why), "{byte:#x} at {at}");
    }
}

#[test]
fn what_is_no_rocev2_over_ipv6_is_refused() {
    let good = packet(&headers("fd00::1", "fd00::2"), &[0; 16]);
    assert!(IpUdp::decode(&good).is_ok());
    let cases = [
        (5, 25, Malformed::TooShort),
        (5, 7, Malformed::Length),
        (5, 5, Malformed::TooShort),
        (6, 0, Malformed::Protocol),
        (6, 44, Malformed::Protocol),
        (43, 0xb8, Malformed::Port),
        (45, 23, Malformed::Length),
    ];
    for (at, byte, why) in cases {
        assert_eq!(IpUdp::decode(&changed(&good, at, byte)), Err(why), "{byte:#x} at {at}");
    }
}

#[test]
fn an_ipv4_address_in_an_ipv6_packet_is_refused() {
    let mut bytes = packet(&headers("fd00::1", "fd00::2"), &[0; 16]);
    bytes[8..24].copy_from_slice(&gid("10.0.0.1").0);
    assert_eq!(IpUdp::decode(&bytes), Err(Malformed::Address));
}

#[test]
fn a_wrong_ipv4_checksum_is_refused() {
    let good = packet(&headers("10.0.0.1", "10.0.0.2"), &[0; 16]);
    for bit in 0..20 * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(IpUdp::decode(&bytes).is_err(), "bit {bit}");
    }
}

#[test]
fn what_follows_a_packet_is_ignored() {
    for headers in [headers("10.0.0.1", "10.0.0.2"), headers("fd00::1", "fd00::2")] {
        let mut bytes = packet(&headers, &[1; 16]);
        bytes.extend([2; 6]);
        assert_eq!(IpUdp::decode(&bytes), Ok((headers, &[1; 16][..])));
    }
}

prop_compose! {
    fn any_headers()(
        is_v6: bool,
        (source, dest) in any::<([u8; 16], [u8; 16])>(),
        (traffic_class, hop_limit, id, source_port) in any::<(u8, u8, u16, u16)>(),
        flow_label in 0..1u32 << 20,
    ) -> IpUdp {
        let gid = |bytes: [u8; 16]| match bytes {
            [a, b, c, d, ..] if !is_v6 => Gid::from_ip(IpAddr::from([a, b, c, d])),
            [_, rest @ ..] => Gid::from_ip(IpAddr::from(std::array::from_fn::<u8, 16, _>(|at| if at == 0 { 0xfd } else { rest[at - 1] }))),
        };
        let (flow_label, id) = if is_v6 { (flow_label, 0) } else { (0, id) };
        IpUdp { source: gid(source), dest: gid(dest), traffic_class, hop_limit, flow_label, id, source_port }
    }
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(headers in any_headers(), payload in prop::collection::vec(any::<u8>(), 0..=4200)) {
        let packet = packet(&headers, &payload);
        prop_assert_eq!(packet.len(), headers.len() + payload.len());
        prop_assert_eq!(IpUdp::decode(&packet), Ok((headers, &payload[..])));
        prop_assert_eq!(IpUdp::decode(&packet[..packet.len() - 1]), Err(Malformed::TooShort));
    }

    #[test]
    fn whatever_is_decoded_is_encoded_again(
        headers in any_headers(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut: prop::sample::Index,
    ) {
        let mut packet = packet(&headers, &[7; 24]);
        for (at, bits) in flips {
            let at = at.index(packet.len());
            packet[at] ^= bits;
        }
        let end = cut.index(packet.len() + 1);
        if let Ok((headers, payload)) = IpUdp::decode(&packet[..end]) {
            let again = self::packet(&headers, payload);
            prop_assert_eq!(IpUdp::decode(&again), Ok((headers, payload)));
        }
    }

    #[test]
    fn arbitrary_bytes_are_decoded_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = IpUdp::decode(&bytes);
    }
}
