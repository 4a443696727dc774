//! Tests of access rules: commands are refused, datagrams dropped, and connections ended that the rules no longer allow.

use super::world::*;
use crate::engine::Event;
use crate::path::{AccessRules, ClassRules, Grant, Peers};
use crate::{AccessCounters, CommandError};
use rdmesh_verbs::*;

const UD: Setup = Setup { qp_type: QpType::Ud, vni: 1, cqe: 1000, srq: false, signal_all: true };

/// Rules by which `server` and `friends` may connect to each other, in both directions, and `strangers` may not.
fn only(server: &Node, friends: &[&Node], strangers: &[&Node]) -> AccessRules {
    let grants = |friend| vec![Grant { peers: Peers::Classes(vec![friend]), ports: 0..=u16::MAX }];
    rules(server, friends, strangers, |friend| ClassRules { to: grants(friend), from: grants(friend) })
}

/// Rules by which `server` takes connections from `clients`, on one port, and begins none.
fn one_way(server: &Node, clients: &[&Node]) -> AccessRules {
    let from = |client| vec![Grant { peers: Peers::Classes(vec![client]), ports: 7471..=7471 }];
    rules(server, clients, &[], |client| ClassRules { to: Vec::new(), from: from(client) })
}

fn rules(server: &Node, clients: &[&Node], strangers: &[&Node], of: impl FnOnce(u32) -> ClassRules) -> AccessRules {
    let mut access = AccessRules::new(3);
    let (client, stranger) = (access.add_class(None), access.add_class(None));
    let class = access.add_class(Some(of(client)));
    access.assign(Vni(1), server.gid, class);
    clients.iter().for_each(|node| access.assign(Vni(1), node.gid, client));
    strangers.iter().for_each(|node| access.assign(Vni(1), node.gid, stranger));
    access
}

fn counters(world: &World) -> AccessCounters {
    let all = world.engines.iter().map(|engine| engine.access_counters());
    all.fold(AccessCounters::default(), |sum, next| AccessCounters {
        refused: sum.refused + next.refused,
        dropped: sum.dropped + next.dropped,
        ended: sum.ended + next.ended,
    })
}

fn fatal_events(world: &World) -> usize {
    let is_fatal = |event: &&Event| matches!(event, Event::Async { event: AsyncEvent::QpFatal, .. });
    world.events.iter().filter(is_fatal).count()
}

/// The result of bringing `a` to RTR, connected to `b`.
fn try_connect(world: &mut World, a: &Node, b: &Node) -> Result<(), CommandError> {
    use AttrMask as M;
    let device = &mut world.engines[a.engine].device(a.context).unwrap();
    let av = AddressVector { dgid: b.gid, ..AddressVector::default() };
    let mut attr = QpAttr { port: 1, av, dest_qpn: b.qpn, state: QpState::Init, ..QpAttr::default() };
    device.modify_qp(world.now, a.qp, &attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
    attr.state = QpState::Rtr;
    let mask = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    device.modify_qp(world.now, a.qp, &attr, mask)
}

#[test]
fn a_queue_pair_is_connected_to_an_allowed_peer_only() {
    for mut world in World::kinds() {
        let last = world.engines.len() - 1;
        let nodes: Vec<Node> = (1..5).map(|host| world.node(last, host, Setup::default())).collect();
        let [server, client, stranger, other] = &nodes[..] else { unreachable!() };
        world.set_access(only(server, &[client], &[stranger, other]));
        assert_eq!(try_connect(&mut world, stranger, server), Err(CommandError::Forbidden));
        assert_eq!(try_connect(&mut world, server, stranger), Err(CommandError::Forbidden), "nor the other way round");
        assert_eq!((world.state(stranger), counters(&world).refused), (QpState::Init, 2));
        assert_eq!(try_connect(&mut world, client, server), Ok(()));
        assert_eq!(try_connect(&mut world, other, stranger), Ok(()), "neither is in a group");
        assert_eq!(try_connect(&mut world, server, server), Ok(()), "an endpoint always reaches itself");
        let av = AddressVector { dgid: server.gid, ..AddressVector::default() };
        let handle = world.engines[last].device(stranger.context).unwrap().create_ah(stranger.pd, av);
        assert_eq!(handle, Err(CommandError::Forbidden));
    }
}

#[test]
fn one_direction_is_enough_for_a_connection_that_was_begun_in_it() {
    for mut world in World::kinds() {
        let last = world.engines.len() - 1;
        let nodes: Vec<Node> = (1..4).map(|host| world.node(last, host, Setup::default())).collect();
        let [server, client, other] = &nodes[..] else { unreachable!() };
        world.set_access(one_way(server, &[client, other]));
        for (a, b) in [(client, server), (server, client), (other, server)] {
            assert_eq!(try_connect(&mut world, a, b), Err(CommandError::Forbidden));
        }
        world.change_routes(|routes| routes.track(Vni(1), client.gid, server.gid));
        assert_eq!(try_connect(&mut world, client, server), Ok(()));
        assert_eq!(try_connect(&mut world, server, client), Ok(()));
        assert_eq!(try_connect(&mut world, other, server), Err(CommandError::Forbidden));
        // Other rules that allow it change nothing, those that do not end it.
        world.set_access(one_way(server, &[client]));
        world.settle();
        assert_eq!((world.state(client), world.state(server)), (QpState::Rtr, QpState::Rtr));
        world.set_access(only(server, &[other], &[client]));
        world.settle();
        assert_eq!((world.state(client), world.state(server)), (QpState::Error, QpState::Error));
    }
}

#[test]
fn a_server_without_a_connection_sends_no_datagram_to_its_clients() {
    for mut world in World::kinds() {
        let last = world.engines.len() - 1;
        let (server, client) = (world.node(0, 1, UD), world.node(last, 2, UD));
        [&server, &client].into_iter().for_each(|node| world.connect(node, node));
        let av = AddressVector { dgid: client.gid, ..AddressVector::default() };
        let ah = world.engines[0].device(server.context).unwrap().create_ah(server.pd, av).unwrap() + 1;
        let op = SendOp::Datagram { ah, qpn: client.qpn, qkey: QKEY, imm: None };
        client.post_recv(7, &[client.sge(0, 100)]);
        world.set_access(one_way(&server, &[&client]));
        let mut received = Vec::new();
        for is_tracked in [false, true, false] {
            world.change_routes(|routes| match is_tracked {
                true => routes.track(Vni(1), client.gid, server.gid),
                false => routes.untrack(Vni(1), client.gid, server.gid),
            });
            world.post(&server, wr(1, op, &[server.sge(0, 8)]));
            world.settle();
            received.extend(client.done());
        }
        assert_eq!((received, counters(&world).dropped), (vec![(7, WcStatus::Success)], 2));
    }
}

#[test]
fn a_change_ends_what_is_no_longer_allowed() {
    for mut world in World::kinds() {
        let (a, b) = world.pair(Setup::default());
        let (c, d) = world.pair_at(5, Setup::default());
        world.set_access(only(&b, &[&a], &[]));
        world.settle();
        assert_eq!((world.state(&a), world.state(&b)), (QpState::Rts, QpState::Rts));
        b.post_recv(1, &[b.sge(0, 8)]);
        world.set_access(only(&b, &[], &[]));
        world.settle();
        assert_eq!(world.state(&b), QpState::Rts, "nothing is known of the peer");
        world.set_access(only(&b, &[], &[&a]));
        world.settle();
        assert_eq!((world.state(&a), world.state(&b)), (QpState::Error, QpState::Error));
        assert_eq!((fatal_events(&world), counters(&world).ended), (2, 2));
        assert_eq!(b.done(), Some((1, WcStatus::FlushError)));
        world.post(&a, wr(3, SendOp::Send { imm: None }, &[a.sge(0, 8)]));
        world.settle();
        assert_eq!(a.done(), Some((3, WcStatus::FlushError)));
        assert_eq!((world.state(&c), world.state(&d)), (QpState::Rts, QpState::Rts), "others go on");
    }
}

#[test]
fn every_queue_pair_is_looked_at_however_many_there_are() {
    let mut world = World::new(1);
    let pairs: Vec<_> = (0..200u8).step_by(2).map(|host| world.pair_at(host, Setup::default())).collect();
    let more: Vec<_> = (0..200u8).step_by(2).map(|host| world.pair_at(host, Setup::default())).collect();
    let mut access = AccessRules::new(1);
    let class = access.add_class(Some(ClassRules::default()));
    (0..=200).for_each(|host| access.assign(Vni(1), Gid::from_ip([10, 0, 0, host].into()), class));
    world.set_access(access);
    world.settle();
    for (a, b) in pairs.iter().chain(&more) {
        assert_eq!((world.state(a), world.state(b)), (QpState::Error, QpState::Error));
    }
    assert_eq!(fatal_events(&world), 400);
}

#[test]
fn a_peer_that_was_not_told_runs_into_its_time_out() {
    let mut world = World::two_hosts();
    let (a, b) = world.pair(Setup::default());
    let before = world.routes.clone();
    world.set_access(only(&b, &[], &[&a]));
    // The rules have not come to the host of `a`.
    world.routes = before;
    let (first, _) = world.engines.split_at_mut(1);
    first[0].set_routes(std::sync::Arc::new(world.routes.clone().unwrap()));
    world.settle();
    assert_eq!((world.state(&a), world.state(&b)), (QpState::Rts, QpState::Error));
    world.post(&a, wr(3, SendOp::Send { imm: None }, &[a.sge(0, 8)]));
    world.run_until(crate::timer::Time(2_000_000_000));
    assert_eq!(a.done(), Some((3, WcStatus::RetryExceeded)));
}

#[test]
fn datagrams_are_dropped_on_both_sides() {
    for mut world in World::kinds() {
        let last = world.engines.len() - 1;
        let (a, b) = (world.node(0, 1, UD), world.node(last, 2, UD));
        [&a, &b].into_iter().for_each(|node| world.connect(node, node));
        let av = AddressVector { dgid: b.gid, ..AddressVector::default() };
        let ah = world.engines[0].device(a.context).unwrap().create_ah(a.pd, av).unwrap() + 1;
        let op = SendOp::Datagram { ah, qpn: b.qpn, qkey: QKEY, imm: None };
        (0..2).for_each(|id| b.post_recv(id, &[b.sge(id * 100, 100)]));
        world.set_access(only(&b, &[], &[&a]));
        world.post(&a, wr(1, op, &[a.sge(0, 8)]));
        world.settle();
        assert_eq!(a.done(), Some((1, WcStatus::Success)), "the sender does not learn it");
        assert_eq!((b.done(), counters(&world).dropped), (None, 1));
        world.set_access(only(&b, &[&a], &[]));
        world.post(&a, wr(2, op, &[a.sge(0, 8)]));
        world.settle();
        assert_eq!((a.done(), b.done()), (Some((2, WcStatus::Success)), Some((0, WcStatus::Success))));
    }
}
