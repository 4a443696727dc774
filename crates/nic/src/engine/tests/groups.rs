//! Multicast tests: datagrams to groups with members on several hosts.

use super::world::*;
use crate::path::{Datagram, Origin};
use crate::timer::Time;
use crate::wire::{IpUdp, geneve};
use rdmesh_verbs::*;
use std::cell::RefCell;
use std::rc::Rc;

const UD: Setup = Setup { qp_type: QpType::Ud, vni: 1, cqe: 1000, srq: false, signal_all: true };

fn group() -> Gid {
    Gid::from_ip([239, 1, 2, 3].into())
}

/// A program with a datagram queue pair that is ready.
fn node(world: &mut World, engine: usize, host: u8, vni: u32) -> Node {
    let node = world.node(engine, host, Setup { vni, ..UD });
    world.connect(&node, &node);
    node
}

fn member(world: &mut World, engine: usize, host: u8, vni: u32) -> Node {
    let node = node(world, engine, host, vni);
    world.engines[engine].device(node.context).unwrap().attach_mcast(node.qp, group()).unwrap();
    node
}

/// The work request of `from` that sends its first `len` bytes to the group.
fn to_group(world: &mut World, from: &Node, id: u64, len: u32) -> SendWr {
    let av = AddressVector { dgid: group(), ..AddressVector::default() };
    let ah = world.engines[from.engine].device(from.context).unwrap().create_ah(from.pd, av).unwrap() + 1;
    let op = SendOp::Datagram { ah, qpn: Qpn::MULTICAST, qkey: QKEY, imm: None };
    wr(id, op, &[from.sge(0, len)])
}

fn receive(node: &Node, count: u64) {
    (0..count).for_each(|id| node.post_recv(id, &[node.sge(id * 100, 100)]));
}

fn received(node: &Node) -> usize {
    std::iter::from_fn(|| node.poll()).filter(|wc| wc.opcode == WcOpcode::Recv).count()
}

#[test]
fn every_member_on_every_host_gets_it_once() {
    for (hosts, shards, all_through_tunnel) in [
        (2, 1, false),
        (3, 1, false),
        (2, 3, false),
        (3, 2, false),
        (1, 1, true),
        (1, 3, true),
        (3, 1, true),
        (2, 2, true),
    ] {
        let what = format!("{hosts} hosts of {shards}, tunnel within: {all_through_tunnel}");
        let mut world = World::hosts(hosts, shards);
        world.all_through_tunnel = all_through_tunnel;
        let sender = member(&mut world, 0, 1, 1);
        let engines = 0..world.engines.len();
        let (mut members, mut others) = (Vec::new(), Vec::new());
        for engine in engines {
            let host = 10 * (engine as u8 + 1);
            members.push(member(&mut world, engine, host, 1));
            others.push(member(&mut world, engine, host, 2));
            others.push(node(&mut world, engine, host + 1, 1));
        }
        [&sender].into_iter().chain(&members).chain(&others).for_each(|node| receive(node, 10));
        sender.memory.put(5000, b"for all of you");
        for id in 0..3 {
            let mut request = to_group(&mut world, &sender, id, 14);
            request.sges[0].addr += 5000;
            world.post(&sender, request);
        }
        world.settle();
        let all = std::iter::from_fn(|| sender.poll());
        let (own, sent): (Vec<_>, Vec<_>) = all.partition(|wc| wc.opcode == WcOpcode::Recv);
        assert_eq!(own.len(), 3, "{what}: the sender is a member like the others");
        let sent: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(sent, [0, 1, 2].map(|id| (id, WcStatus::Success)), "{what}");
        for node in &members {
            assert_eq!(node.memory.get(240, 14), b"for all of you");
            assert_eq!(received(node), 3, "{what}: engine {}", node.engine);
        }
        assert!(others.iter().all(|node| node.poll().is_none()), "{what}");
        let copies = if all_through_tunnel { hosts } else { hosts - 1 };
        assert_eq!(world.datagrams, 3 * copies, "{what}: one for each host");
    }
}

#[test]
fn a_member_elsewhere_sees_who_sent_it_to_whom() {
    let mut world = World::two_hosts();
    let (a, b) = (node(&mut world, 0, 1, 1), member(&mut world, 1, 2, 1));
    receive(&b, 1);
    let request = to_group(&mut world, &a, 1, 8);
    world.post(&a, request);
    world.settle();
    let wc = b.poll().unwrap();
    assert_eq!((wc.byte_len, wc.src_qp, wc.flags), (48, a.qpn, WcFlags::GRH));
    assert_eq!((b.memory.get(32, 4), b.memory.get(36, 4)), (vec![10, 0, 0, 1], vec![239, 1, 2, 3]));
}

#[test]
fn only_hosts_with_the_network_get_a_copy() {
    let mut world = World::hosts(3, 1);
    let (a, b) = (node(&mut world, 0, 1, 1), member(&mut world, 2, 2, 1));
    member(&mut world, 1, 3, 2);
    receive(&b, 1);
    let request = to_group(&mut world, &a, 1, 8);
    world.post(&a, request);
    world.settle();
    assert_eq!((a.done(), received(&b), world.datagrams), (Some((1, WcStatus::Success)), 1, 1));
}

#[test]
fn more_hosts_than_fit_one_turn_all_get_everything() {
    let (mut world, count) = (World::hosts(40, 1), 200);
    let a = node(&mut world, 0, 1, 1);
    let members: Vec<_> = (0..40).map(|engine| member(&mut world, engine, 10 + engine as u8, 1)).collect();
    members.iter().for_each(|node| receive(node, count));
    let request = to_group(&mut world, &a, 0, 8);
    for id in 0..count {
        world.post(&a, SendWr { wr_id: id, ..request.clone() });
    }
    world.settle();
    let done: Vec<_> = std::iter::from_fn(|| a.done()).collect();
    assert_eq!(done, (0..count).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
    assert!(members.iter().all(|node| received(node) == count as usize));
    assert_eq!(world.datagrams, 39 * count as usize);
}

#[test]
fn who_leaves_a_group_gets_no_more() {
    let mut world = World::two_hosts();
    let (a, b) = (node(&mut world, 0, 1, 1), member(&mut world, 1, 2, 1));
    receive(&b, 2);
    for expected in [1, 0] {
        let request = to_group(&mut world, &a, 1, 8);
        world.post(&a, request);
        world.settle();
        assert_eq!((a.done(), received(&b)), (Some((1, WcStatus::Success)), expected));
        let _ = world.engines[1].device(b.context).unwrap().detach_mcast(b.qp, group());
    }
    let counters = world.engines[1].wire_counters();
    assert_eq!((counters.unknown_qp, counters.wrong_source), (0, 0));
}

#[test]
fn a_bad_key_ends_the_send_queue_and_nothing_is_sent() {
    let mut world = World::two_hosts();
    let (a, b) = (member(&mut world, 0, 1, 1), member(&mut world, 1, 2, 1));
    let mut request = to_group(&mut world, &a, 1, 8);
    request.sges[0].lkey = Key(1);
    world.post(&a, request);
    world.settle();
    assert_eq!((a.done(), a.poll(), b.poll()), (Some((1, WcStatus::LocalProtectionError)), None, None));
    assert_eq!((world.state(&a), world.datagrams), (QpState::Sqe, 0));
}

#[test]
fn only_the_senders_host_and_network_are_heard() {
    let mut world = World::two_hosts();
    let (a, b) = (node(&mut world, 0, 1, 1), member(&mut world, 1, 2, 1));
    receive(&b, 5);
    let log = Rc::new(RefCell::new(Vec::new()));
    let copy = log.clone();
    world.lose = Box::new(move |_, bytes| {
        copy.borrow_mut().push(bytes.to_vec());
        true
    });
    let request = to_group(&mut world, &a, 1, 8);
    world.post(&a, request);
    world.settle();
    let bytes = log.borrow()[0].clone();
    let deliver = |world: &mut World, origin, bytes: &[u8]| {
        world.engines[1].handle_datagram(Time(2000), &Datagram { origin, traffic_class: 0, received: None, bytes });
        received(&b)
    };
    let host = Origin::Host(World::host(0));
    assert_eq!(deliver(&mut world, Origin::Host(World::host(1)), &bytes), 0);
    let mut other = bytes.clone();
    geneve::encode(Vni(2), false, &mut other[..geneve::LEN]);
    assert_eq!(deliver(&mut world, host, &other), 0);
    let (ip, udp) = IpUdp::decode(&bytes[geneve::LEN..]).unwrap();
    let mut other = bytes.clone();
    IpUdp { source: b.gid, ..ip }.encode(udp.len(), &mut other[geneve::LEN..]);
    assert_eq!(deliver(&mut world, host, &other), 0);
    let mut broken = bytes.clone();
    *broken.last_mut().unwrap() ^= 1;
    assert_eq!(deliver(&mut world, host, &broken), 0);
    let outside =
        Origin::External { id: crate::ExternalId(0), from: a.gid.ip(), from_port: ip.source_port, to: group().ip() };
    assert_eq!(deliver(&mut world, outside, udp), 0);
    let counters = world.engines[1].wire_counters();
    assert_eq!((counters.wrong_source, counters.bad_icrc, counters.unknown_qp), (2, 1, 1));
    assert_eq!(deliver(&mut world, host, &bytes), 1);
}
