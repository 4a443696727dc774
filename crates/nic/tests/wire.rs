//! Packets of a real peer: `data/rxe.pcap` holds the exchange of two Linux hosts with the rxe driver.

use rdmesh_nic::wire::{Header, IdSolver, IpUdp, Op, icrc, padded};
use std::collections::BTreeSet;

/// RoCEv2 packets in the capture, from the IP header on.
fn packets() -> Vec<Vec<u8>> {
    let capture = include_bytes!("data/rxe.pcap");
    let mut records = &capture[PCAP_HEADER..];
    let mut packets = Vec::new();
    while let Some((header, rest)) = records.split_at_checked(RECORD_HEADER) {
        let len = u32::from_le_bytes(*header[8..].first_chunk().expect("a length")) as usize;
        let (frame, rest) = rest.split_at(len);
        records = rest;
        let (ethernet, packet) = frame.split_at(ETHERNET);
        if ethernet[12..] == IPV4 && packet[9] == UDP && packet[22..24] == PORT {
            packets.push(packet.to_vec());
        }
    }
    assert_eq!(packets.len(), 537);
    packets
}

#[test]
fn every_packet_is_decoded_and_encoded_again() {
    let mut opcodes = BTreeSet::new();
    for packet in packets() {
        let (ip, bytes) = IpUdp::decode(&packet).expect("IP and UDP");
        assert!(icrc::check(&ip, bytes));
        let (header, payload) = Header::decode(bytes).expect("RoCEv2");
        opcodes.insert(bytes[0]);

        let start = ip.len();
        let body = header.len() + padded(payload.len());
        let mut again = vec![0; start + body];
        ip.encode(body + 4, &mut again);
        header.encode(payload.len(), &mut again[start..]);
        again[start + header.len()..][..payload.len()].copy_from_slice(payload);
        let crc = icrc::icrc(&ip, &again[start..]);
        again.extend(crc);
        assert_eq!(again, packet, "{header:?}");
    }
    let expected = [0, 1, 2, 4, 6, 7, 8, 0xc, 0xd, 0xe, 0xf, 0x11, 0x12, 0x14, 0x64];
    assert_eq!(opcodes, BTreeSet::from(expected));
}

#[test]
fn the_ipv4_identification_of_every_packet_is_found() {
    let mut solver = IdSolver::new();
    for packet in packets() {
        let (ip, bytes) = IpUdp::decode(&packet).expect("IP and UDP");
        assert_ne!(ip.id, 0);
        assert_eq!(solver.solve(&IpUdp { id: 0, ..ip }, bytes), Some(ip.id));
    }
}

#[test]
fn a_packet_with_one_wrong_byte_is_refused() {
    let mut solver = IdSolver::new();
    for (n, packet) in packets().into_iter().enumerate() {
        let (ip, bytes) = IpUdp::decode(&packet).expect("IP and UDP");
        let mut bytes = bytes.to_vec();
        // Some positions of every packet, spread over it; never the byte of the BTH that the CRC does not cover.
        for at in (n % 13..bytes.len()).step_by(61).filter(|at| *at != 4) {
            let flips = (n * 7 + at) as u8 | 1;
            bytes[at] ^= flips;
            assert!(!icrc::check(&ip, &bytes), "byte {at} of {n}");
            assert_eq!(solver.solve(&ip, &bytes), None, "byte {at} of {n}");
            bytes[at] ^= flips;
        }
    }
}

#[test]
fn acknowledgements_count_no_credits() {
    let acks = packets().into_iter().filter_map(|packet| {
        let (_, bytes) = IpUdp::decode(&packet).ok()?;
        match Header::decode(bytes).ok()?.0.op {
            Op::Acknowledge(aeth) => Some(aeth.syndrome),
            _ => None,
        }
    });
    assert!(acks.into_iter().all(|syndrome| syndrome == rdmesh_nic::wire::Syndrome::Ack { credits: 31 }));
}

const PCAP_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];
const UDP: u8 = 17;
const PORT: [u8; 2] = [0x12, 0xb7];
