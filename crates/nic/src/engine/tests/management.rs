//! Tests of management datagrams between two hosts.

use super::world::*;
use crate::cm::{CmPath, Mad};
use crate::engine::{MadError, Owners, ReceivedMad};
use crate::numbers::Numbers;
use crate::path::{Datagram, ExternalId, ExternalPort, Opened, Origin, Target, Transmits};
use crate::wire::{Header, IpUdp, Op, Service, geneve, icrc};
use crate::{CaptureFilter, Engine};
use rdmesh_verbs::*;

const PLAIN: ExternalPort = ExternalPort { id: ExternalId(3), source_port: 4791 };

fn mad(from: Gid, to: Gid, first: u8) -> Mad {
    let mut bytes = [0; 256];
    bytes.iter_mut().zip(first..=255).for_each(|(byte, n)| *byte = n);
    Mad { path: CmPath { vni: Vni(1), local: from, remote: to, external: None }, bytes }
}

/// The datagrams that an engine has to send, each with where it goes.
fn transmits(engine: &mut Engine<Test>) -> Vec<(Target, Vec<u8>)> {
    let (mut to, mut all) = (Transmits::new(), Vec::new());
    while engine.poll_transmit(crate::Time(5), &mut to) {
        for train in to.trains() {
            all.extend(to.bytes(train).chunks(train.segment).map(|bytes| (train.target, bytes.to_vec())));
        }
        to.clear();
    }
    all
}

fn receive(engine: &mut Engine<Test>, origin: Origin, bytes: &[u8]) -> Option<ReceivedMad> {
    engine.handle_datagram(crate::Time(6), &Datagram { origin, traffic_class: 0, received: None, bytes });
    engine.poll_mad()
}

#[test]
fn they_go_through_the_tunnel_both_ways() {
    for (shards, all_through_tunnel) in [(1, false), (3, false), (1, true)] {
        let mut world = World::hosts(2, shards);
        world.all_through_tunnel = all_through_tunnel;
        let last = world.engines.len() - 1;
        let (a, b) = (world.node(0, 1, Setup::default()), world.node(last, 2, Setup::default()));
        for (from, to, first) in [(&a, &b, 1), (&b, &a, 2)] {
            let sent = mad(from.gid, to.gid, first);
            world.engines[from.engine].send_mad(world.now, &sent).unwrap();
            world.settle();
            let got: Vec<_> = world.engines.iter_mut().filter_map(|engine| engine.poll_mad()).collect();
            let (vni, source, dest) = (Some(Vni(1)), from.gid, to.gid);
            assert_eq!(got, [ReceivedMad { external_origin: None, vni, source, dest, bytes: sent.bytes }]);
        }
    }
}

#[test]
fn they_are_what_any_connection_manager_sends() {
    let mut world = World::two_hosts();
    let (a, b) = (world.node(0, 1, Setup::default()), world.node(1, 2, Setup::default()));
    for n in 0..3 {
        world.engines[0].send_mad(world.now, &mad(a.gid, b.gid, n)).unwrap();
    }
    let sent = transmits(&mut world.engines[0]);
    for (n, (target, bytes)) in sent.iter().enumerate() {
        assert_eq!(*target, Target::Host(World::host(1)));
        let (vni, inner) = geneve::decode(bytes).unwrap();
        let (ip, udp) = IpUdp::decode(inner).unwrap();
        let (header, payload) = Header::decode(udp).unwrap();
        assert!(icrc::check(&ip, udp));
        assert_eq!((vni, ip.source, ip.dest, payload.len()), (Vni(1), a.gid, b.gid, 256));
        let op = Op::Datagram { qkey: Qkey(0x8001_0000), source: Qpn::new(1), imm: None };
        assert_eq!((header.service, header.op, header.dest, header.pkey), (Service::Ud, op, Qpn::new(1), 0xffff));
        assert_eq!(header.psn, Psn::new(n as u32));
        let datagram = Datagram { origin: Origin::Host(World::host(0)), traffic_class: 0, received: None, bytes };
        assert_eq!(Owners::of(&Numbers::new(4), &Opened::new(&datagram).unwrap()), Owners::Any);
    }
    assert_eq!(sent.len(), 3);
}

#[test]
fn an_external_peer_is_reached_by_plain_rocev2() {
    let mut world = World::two_hosts();
    let a = world.node(0, 1, Setup::default());
    let outside = Gid::from_ip([172, 16, 0, 9].into());
    let mut sent = mad(a.gid, outside, 7);
    assert_eq!(world.engines[0].send_mad(world.now, &sent), Err(MadError::Unreachable));
    sent.path.external = Some(PLAIN);
    // In a train the kernel numbers the packets, which the CRC covers.
    for _ in 0..3 {
        world.engines[0].send_mad(world.now, &sent).unwrap();
    }
    let datagrams = transmits(&mut world.engines[0]);
    assert_eq!(datagrams.len(), 3);
    for (target, bytes) in &datagrams {
        let (from, to) = (a.gid.ip(), outside.ip());
        assert_eq!((*target, bytes.len()), (Target::External { id: PLAIN.id, from, to }, 12 + 8 + 256 + 4));
        // And back to any address: even to the wrong one, which the engine does not check.
        let origin = Origin::External { id: ExternalId(8), from, from_port: 4791, to };
        let got = receive(&mut world.engines[1], origin, bytes).unwrap();
        let expected = ReceivedMad {
            external_origin: Some(ExternalId(8)),
            vni: None,
            source: a.gid,
            dest: outside,
            bytes: sent.bytes,
        };
        assert_eq!(got, expected);
    }
    let mut broken = datagrams[0].1.clone();
    broken[30] ^= 4;
    let origin = Origin::External { id: ExternalId(8), from: a.gid.ip(), from_port: 4791, to: outside.ip() };
    assert_eq!(receive(&mut world.engines[1], origin, &broken), None);
    assert_eq!(world.engines[1].wire_counters().bad_icrc, 1);
}

#[test]
fn one_for_this_host_arrives_at_once() {
    let mut world = World::two_hosts();
    let (a, b) = (world.node(0, 1, Setup::default()), world.node(0, 2, Setup::default()));
    let sent = mad(a.gid, b.gid, 1);
    world.engines[0].send_mad(world.now, &sent).unwrap();
    let got = world.engines[0].poll_mad().unwrap();
    assert_eq!((got.vni, got.source, got.dest, got.bytes), (Some(Vni(1)), a.gid, b.gid, sent.bytes));
    assert!(transmits(&mut world.engines[0]).is_empty());
}

#[test]
fn what_is_no_management_datagram_of_the_senders_host_is_dropped() {
    let mut world = World::two_hosts();
    let (a, b) = (world.node(0, 1, Setup::default()), world.node(1, 2, Setup::default()));
    world.engines[0].send_mad(world.now, &mad(a.gid, b.gid, 1)).unwrap();
    let good = transmits(&mut world.engines[0]).remove(0).1;
    let (ip, udp) = IpUdp::decode(&good[geneve::LEN..]).unwrap();
    let (header, payload) = Header::decode(udp).unwrap();
    let make = |vni, ip: IpUdp, header: Header, payload: &[u8]| {
        let udp_len = header.len() + payload.len() + 4;
        let mut bytes = vec![0; geneve::LEN + ip.len() + udp_len];
        geneve::encode(vni, false, &mut bytes[..geneve::LEN]);
        ip.encode(udp_len, &mut bytes[geneve::LEN..]);
        let udp = &mut bytes[geneve::LEN + ip.len()..];
        header.encode(payload.len(), udp);
        udp[header.len()..header.len() + payload.len()].copy_from_slice(payload);
        let crc = icrc::icrc(&ip, &udp[..udp_len - 4]);
        udp[udp_len - 4..].copy_from_slice(&crc);
        bytes
    };
    let datagram =
        |qkey, source, imm| Header { op: Op::Datagram { qkey: Qkey(qkey), source: Qpn::new(source), imm }, ..header };
    let host = Origin::Host(World::host(0));
    let engine = &mut world.engines[1];
    let refused = [
        make(Vni(1), ip, datagram(0x8001_0001, 1, None), payload),
        make(Vni(1), ip, datagram(0x1111, 1, None), payload),
        // A tenant's queue pair.
        make(Vni(1), ip, datagram(0x8001_0000, 17, None), payload),
        make(Vni(1), ip, datagram(0x8001_0000, 1, Some(1)), payload),
        make(Vni(1), ip, Header { pkey: 0x8001, ..header }, payload),
        make(Vni(1), ip, header, &payload[..252]),
        make(Vni(1), ip, header, &[payload, &[0; 4]].concat()),
    ];
    for bytes in &refused {
        assert_eq!(receive(engine, host, bytes), None);
    }
    let from_elsewhere = [
        (Origin::Host([192, 168, 0, 77].into()), good.clone()),
        (host, make(Vni(2), ip, header, payload)),
        (host, make(Vni(1), IpUdp { source: b.gid, ..ip }, header, payload)),
        (host, make(Vni(1), IpUdp { source: Gid::from_ip([10, 0, 0, 99].into()), ..ip }, header, payload)),
        (host, make(Vni(1), IpUdp { dest: Gid::from_ip([239, 0, 0, 1].into()), ..ip }, header, payload)),
    ];
    for (origin, bytes) in &from_elsewhere {
        assert_eq!(receive(engine, *origin, bytes), None);
    }
    let counters = engine.wire_counters();
    assert_eq!((counters.unknown_qp, counters.wrong_source), (refused.len() as u64, from_elsewhere.len() as u64));
    assert_eq!(
        receive(engine, host, &make(Vni(1), ip, Header { pkey: 0x7fff, ..header }, payload)).unwrap().source,
        a.gid
    );
    assert!(receive(engine, host, &good).is_some());
}

#[test]
fn full_queues_refuse_or_drop() {
    let mut world = World::two_hosts();
    let (a, b) = (world.node(0, 1, Setup::default()), world.node(1, 2, Setup::default()));
    let sent = mad(a.gid, b.gid, 1);
    for _ in 0..256 {
        world.engines[0].send_mad(world.now, &sent).unwrap();
    }
    assert_eq!(world.engines[0].send_mad(world.now, &sent), Err(MadError::Full));
    world.settle();
    world.engines[0].send_mad(world.now, &sent).unwrap();
    world.settle();
    let counters = world.engines[1].wire_counters();
    assert_eq!((counters.mads_received, counters.mads_dropped), (256, 1));
    assert_eq!(std::iter::from_fn(|| world.engines[1].poll_mad()).count(), 256);
    assert_eq!(world.engines[0].wire_counters().mads_sent, 257);
}

#[test]
fn neither_they_nor_queue_pairs_wait_for_the_others_to_end() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    for _ in 0..200 {
        world.engines[0].send_mad(world.now, &mad(a.gid, b.gid, 1)).unwrap();
    }
    let write = SendOp::Write { remote_addr: BASE, rkey: b.key, imm: None };
    world.post(&a, wr(1, write, &[a.sge(0, 100_000)]));
    world.engines[0].poll(world.now);
    let mut to = Transmits::new();
    assert!(world.engines[0].poll_transmit(world.now, &mut to));
    let mads = world.engines[0].wire_counters().mads_sent as usize;
    assert!(mads > 0 && mads < 200 && to.count() > mads, "{mads} of {}", to.count());
}

#[test]
fn captures_show_them() {
    let mut world = World::two_hosts();
    let (a, b) = (world.node(0, 1, Setup::default()), world.node(1, 2, Setup::default()));
    let filter = CaptureFilter { vni: Vni(1), gids: vec![b.gid], snap_len: 1 << 16 };
    let captures: Vec<_> = world.engines.iter_mut().map(|engine| engine.captures().start(filter.clone())).collect();
    world.engines[0].send_mad(world.now, &mad(a.gid, b.gid, 1)).unwrap();
    world.settle();
    for (engine, capture) in world.engines.iter_mut().zip(captures) {
        let captured = engine.captures().poll(capture).unwrap();
        let (ip, udp) = IpUdp::decode(&captured.bytes).unwrap();
        assert!(icrc::check(&ip, udp));
        assert_eq!(Header::decode(udp).unwrap().0.dest, Qpn::new(1));
        assert!(engine.captures().poll(capture).is_none());
    }
}
