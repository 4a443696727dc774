//! Fuzz target for packets: arbitrary bytes from the tunnel, from a network and from a socket.
//!
//! A packet that is decoded must be encoded again as one that means the same, with a CRC that is right.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmesh_nic::wire::{Header, IdSolver, IpUdp, Op, SelectiveAck, geneve, icrc, padded};
use rdmesh_verbs::{Gid, Vni};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => tunnel(bytes),
        1 => network(bytes),
        _ => socket(bytes, kind & 0x80 != 0),
    }
});

fn tunnel(bytes: &[u8]) {
    assert!(geneve::read_seal(bytes).is_none() || geneve::decode_control(bytes).is_none());
    let Ok((vni, inner)) = geneve::decode(bytes) else { return };
    let mut again = vec![0; geneve::LEN];
    geneve::encode(vni, inner[0] >> 4 == 6, &mut again);
    again.extend_from_slice(inner);
    assert_eq!(geneve::decode(&again), Ok((Vni(vni.0), inner)));
    network(inner);
}

fn network(bytes: &[u8]) {
    let Ok((ip, payload)) = IpUdp::decode(bytes) else { return };
    let mut again = vec![0; ip.len()];
    ip.encode(payload.len(), &mut again);
    again.extend_from_slice(payload);
    assert_eq!(IpUdp::decode(&again), Ok((ip, payload)));
    packet(&ip, payload);
}

fn socket(bytes: &[u8], is_v6: bool) {
    let (source, dest): (IpAddr, IpAddr) = if is_v6 {
        (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::UNSPECIFIED.into())
    } else {
        (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::BROADCAST.into())
    };
    let (source, dest) = (Gid::from_ip(source), Gid::from_ip(dest));
    let (traffic_class, hop_limit) = (0, 64);
    packet(&IpUdp { source, dest, traffic_class, hop_limit, flow_label: 0, id: 0, source_port: 0xc000 }, bytes);
}

fn packet(ip: &IpUdp, bytes: &[u8]) {
    let mut solver = IdSolver::new();
    if let Some(id) = solver.solve(ip, bytes) {
        assert!(icrc::check(&IpUdp { id, ..*ip }, bytes));
    } else {
        assert!(!icrc::check(ip, bytes));
    }
    let Ok((header, payload)) = Header::decode(bytes) else { return };
    if header.op == Op::SelectiveAcknowledge {
        selective(payload);
    }
    let mut again = vec![0; header.len() + padded(payload.len())];
    header.encode(payload.len(), &mut again);
    again[header.len()..][..payload.len()].copy_from_slice(payload);
    again.extend(icrc::icrc(ip, &again));
    assert_eq!(again.len(), bytes.len());
    assert_eq!(Header::decode(&again), Ok((header, payload)));
    assert!(icrc::check(ip, &again));
    assert_eq!(solver.solve(&IpUdp { id: 0, ..*ip }, &again), Some(ip.id));
}

fn selective(bytes: &[u8]) {
    let Ok(ack) = SelectiveAck::decode(bytes) else { return };
    let mut again = SelectiveAck::new(ack.duplicates, ack.repeats);
    ack.marked().for_each(|mark| again.mark(mark));
    assert!(again.marked().eq(ack.marked()));
    let mut encoded = vec![0; ack.len()];
    ack.encode(&mut encoded);
    assert_eq!(encoded, bytes);
}
