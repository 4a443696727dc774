//! Tests of connections, from the request to the release.

use super::*;
use rdmesh_nic::{AccessRules, ClassRules, Grant, Peers};
use rdmesh_verbs::{AttrMask, QpState};

#[test]
fn a_connection_lives_the_same_on_one_host_and_on_two() {
    for mut world in [World::one_host(), World::two_hosts()] {
        let (server, client) = (world.open(0), world.open(1));
        let listener = world.listener(&server, cm_port_space::TCP, "0.0.0.0:7471");
        let active = world.create(&client, cm_port_space::TCP, 1);
        world.resolve(&client, active, &format!("{A}:7471")).unwrap();
        world.connect(&client, active, b"hello").unwrap();
        let request = world.expect(&server, Kind::ConnectRequest);
        assert_eq!((request.uid, request.connection().qp_num), (100, qpn_of(active)));
        assert_eq!(&request.connection().private_data[..6], b"hello\0");
        assert_eq!(request.connection().private_data_len, 56);
        world.accept(&server, request.id, 2).unwrap();
        let answer = world.expect(&client, Kind::ConnectResponse);
        assert_eq!((answer.uid, answer.id, answer.connection().qp_num), (1, active, qpn_of(request.id)));
        assert_eq!(&answer.connection().private_data[..8], b"welcome\0");
        world.ready(&client, active).unwrap();
        assert_eq!(world.expect(&server, Kind::Established).uid, 2);
        world.expect_none(&client);
        // One side ends it; the other is told, and answers.
        world.disconnect(&client, active).unwrap();
        world.expect(&server, Kind::Disconnected);
        world.disconnect(&server, request.id).unwrap();
        world.expect(&client, Kind::Disconnected);
        world.pass(120_000_000_000);
        world.expect(&server, Kind::TimeWaitExit);
        world.expect(&client, Kind::TimeWaitExit);
        // Address, route, answer, end, time-wait.
        assert_eq!(world.destroy(&client, active), Ok(5));
        assert_eq!(world.destroy(&server, request.id), Ok(3));
        assert_eq!(world.destroy(&server, listener), Ok(1));
        world.close(server);
        world.close(client);
        world.expect_nothing_left();
    }
}

#[test]
fn both_sides_tell_their_queue_pairs_what_fits() {
    let mut world = World::two_hosts();
    let (server, client) = (world.open(0), world.open(1));
    world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
    let (passive, active) = world.connected(&server, &client, 1);
    let mut attr = |channel: &Channel, id, state: QpState| {
        let command = InitQpAttr { id, qp_state: state as u32, ..Default::default() };
        world.ask::<UverbsQpAttr>(channel, cm_command::INIT_QP_ATTR, &command).unwrap()
    };
    let (to, from) = (attr(&client, active, QpState::Rtr), attr(&server, passive, QpState::Rtr));
    assert_eq!((to.dest_qp_num, from.dest_qp_num), (qpn_of(passive), qpn_of(active)));
    assert_eq!((to.ah_attr.grh.dgid, from.ah_attr.grh.dgid), (gid(A).0, gid(B).0));
    assert_eq!((to.max_dest_rd_atomic, from.max_dest_rd_atomic), (5, 3));
    let mask = AttrMask::from_bits_retain(to.qp_attr_mask);
    assert!(mask.contains(AttrMask::AV | AttrMask::MIN_RNR_TIMER) && !mask.contains(AttrMask::SQ_PSN));
    let (sends, receives) = (attr(&client, active, QpState::Rts), attr(&server, passive, QpState::Rts));
    assert_eq!((sends.sq_psn, receives.sq_psn), (from.rq_psn, to.rq_psn));
    assert_eq!((sends.retry_cnt, sends.rnr_retry, sends.max_rd_atomic), (7, 7, 3));
    let init = attr(&server, passive, QpState::Init);
    assert_eq!((init.qp_access_flags, init.port_num), (0b1110, 1));
    let command = InitQpAttr { id: active, qp_state: QpState::Error as u32, ..Default::default() };
    assert_eq!(world.tell(&client, cm_command::INIT_QP_ATTR, &command), Err(Errno::INVAL));
}

#[test]
fn events_tell_the_receiver_what_it_is_to_have() {
    for mut world in [World::one_host(), World::two_hosts()] {
        let (server, client) = (world.open(0), world.open(1));
        world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
        let active = world.create(&client, cm_port_space::TCP, 1);
        world.resolve(&client, active, &format!("{A}:1")).unwrap();
        let mut asked = Connect { id: active, conn_param: param(qpn_of(active), &[1]), ..Default::default() };
        let (retry_count, rnr_retry_count) = (6, 4);
        let of_both = ConnParam { rnr_retry_count, srq: 1, flow_control: 1, valid: 1, ..Default::default() };
        asked.conn_param =
            ConnParam { responder_resources: 5, initiator_depth: 1, retry_count, qp_num: qpn_of(active), ..of_both };
        world.tell(&client, cm_command::CONNECT, &asked).unwrap();
        let request = world.expect(&server, Kind::ConnectRequest);
        let told = request.connection();
        assert_eq!((told.responder_resources, told.initiator_depth), (1, 5));
        assert_eq!((told.retry_count, told.rnr_retry_count, told.srq, told.flow_control), (6, 4, 1, 1));
        // The peer's queue pair answers one READ at a time, and asks for three.
        let conn_param =
            ConnParam { responder_resources: 1, initiator_depth: 3, qp_num: qpn_of(request.id), ..of_both };
        let answered = Accept { id: request.id, uid: 2, conn_param, ..Default::default() };
        world.tell(&server, cm_command::ACCEPT, &answered).unwrap();
        let answer = world.expect(&client, Kind::ConnectResponse).connection();
        assert_eq!((answer.responder_resources, answer.initiator_depth), (3, 1));
        assert_eq!((answer.retry_count, answer.rnr_retry_count, answer.srq, answer.flow_control), (0, 4, 1, 1));
        world.ready(&client, active).unwrap();
        for kind in [Kind::Established, Kind::Disconnected] {
            let told = world.expect(&server, kind);
            assert_eq!((told.status, told.response.param), (0, [0; 304]));
            if kind == Kind::Established {
                world.disconnect(&client, active).unwrap();
            }
        }
    }
}

#[test]
fn a_disconnect_without_an_answer_says_so() {
    let mut world = World::one_host();
    let (server, client) = (world.open(0), world.open(1));
    world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
    let (_, active) = world.connected(&server, &client, 1);
    let (manager, now) = (&mut world.managers[0], world.now);
    let comm = manager.connections.registry.get(active).unwrap().comm.unwrap();
    manager.connections.handle_event(now, comm, rdmesh_nic::cm::Event::DisconnectTimedOut);
    assert_eq!(world.expect(&client, Kind::Disconnected).status, -Errno::TIMEDOUT.raw_os_error());
}

#[test]
fn a_request_waits_for_a_server_that_listens_again() {
    for mut world in [World::one_host(), World::two_hosts()] {
        let (server, client) = (world.open(0), world.open(1));
        let ask = |world: &mut World, ps| {
            let active = world.create(&client, ps, 1);
            world.resolve(&client, active, &format!("{A}:7")).unwrap();
            world.connect(&client, active, &[]).unwrap();
            active
        };
        for ps in [cm_port_space::TCP, cm_port_space::UDP] {
            let first = world.listener(&server, ps, "0.0.0.0:7");
            world.destroy(&server, first).unwrap();
            ask(&mut world, ps);
            world.pass(WAIT_LIMIT / 2);
            world.expect_none(&client);
            let second = world.listener(&server, ps, "0.0.0.0:7");
            let request = world.expect(&server, Kind::ConnectRequest);
            world.accept(&server, request.id, 2).unwrap();
            let answer = if ps == cm_port_space::TCP { Kind::ConnectResponse } else { Kind::Established };
            world.expect(&client, answer);
            // One that is withdrawn in the meantime is forgotten.
            world.destroy(&server, second).unwrap();
            let active = ask(&mut world, ps);
            world.destroy(&client, active).unwrap();
            if ps == cm_port_space::TCP {
                let third = world.listener(&server, ps, "0.0.0.0:7");
                world.expect_none(&server);
                world.destroy(&server, third).unwrap();
            }
            // Without another listener the answer is the usual one, only later.
            ask(&mut world, ps);
            world.pass(WAIT_LIMIT / 2);
            world.expect_none(&client);
            world.pass(WAIT_LIMIT);
            let refusal = if ps == cm_port_space::TCP { (Kind::Rejected, 8) } else { (Kind::Unreachable, 1) };
            assert_eq!(world.expect(&client, refusal.0).status, refusal.1);
            world.expect_none(&server);
            // By then it is the only one.
            ask(&mut world, ps);
            assert_eq!(world.expect(&client, refusal.0).status, refusal.1);
        }
        world.close(server);
        world.close(client);
        world.expect_nothing_left();
    }
}

/// Waiting time of requests in the grace period, in nanoseconds (`grace`).
const WAIT_LIMIT: u64 = 1_000_000_000;

#[test]
fn a_request_waits_for_a_program_that_is_bound_and_about_to_listen() {
    let mut world = World::two_hosts();
    let (server, client) = (world.open(0), world.open(1));
    let id = world.create(&server, cm_port_space::TCP, 100);
    world.bind(&server, id, "0.0.0.0:7").unwrap();
    let ask = |world: &mut World| {
        let active = world.create(&client, cm_port_space::TCP, 1);
        world.resolve(&client, active, &format!("{A}:7")).unwrap();
        world.connect(&client, active, &[]).unwrap();
    };
    // It never listens: the usual answer, only later, every time.
    for _ in 0..2 {
        ask(&mut world);
        world.pass(WAIT_LIMIT / 2);
        world.expect_none(&client);
        world.pass(WAIT_LIMIT);
        assert_eq!(world.expect(&client, Kind::Rejected).status, 8);
    }
    ask(&mut world);
    world.pass(WAIT_LIMIT / 2);
    world.expect_none(&client);
    world.listen(&server, id, 0).unwrap();
    let request = world.expect(&server, Kind::ConnectRequest);
    world.accept(&server, request.id, 2).unwrap();
    world.expect(&client, Kind::ConnectResponse);
}

#[test]
fn nobody_waits_for_a_program_that_has_ended() {
    let mut world = World::one_host();
    let (server, client) = (world.open(0), world.open(1));
    world.listener(&server, cm_port_space::TCP, "0.0.0.0:7");
    world.close(server);
    let active = world.create(&client, cm_port_space::TCP, 1);
    world.resolve(&client, active, &format!("{A}:7")).unwrap();
    world.connect(&client, active, &[]).unwrap();
    assert_eq!(world.expect(&client, Kind::Rejected).status, 8);
}

#[test]
fn nobody_listening_is_a_refusal() {
    let mut world = World::two_hosts();
    let (server, client) = (world.open(0), world.open(1));
    let active = world.create(&client, cm_port_space::TCP, 1);
    world.resolve(&client, active, &format!("{A}:9")).unwrap();
    world.connect(&client, active, &[]).unwrap();
    // Invalid service ID.
    assert_eq!(world.expect(&client, Kind::Rejected).status, 8);
    // The program refuses, with its own words.
    world.listener(&server, cm_port_space::TCP, "0.0.0.0:10");
    let active = world.create(&client, cm_port_space::TCP, 1);
    world.resolve(&client, active, &format!("{A}:10")).unwrap();
    world.connect(&client, active, &[]).unwrap();
    let request = world.expect(&server, Kind::ConnectRequest);
    let (private_data, private_data_len) = crate::cm::event::padded(b"no");
    let reject = Reject { id: request.id, private_data_len, private_data, ..Default::default() };
    world.tell(&server, cm_command::REJECT, &Reject { reason: 3, ..reject }).unwrap_err();
    world.tell(&server, cm_command::REJECT, &reject).unwrap();
    let refusal = world.expect(&client, Kind::Rejected);
    assert_eq!((refusal.status, &refusal.connection().private_data[..3]), (28, &b"no\0"[..]));
}

#[test]
fn a_peer_that_does_not_answer_is_unreachable() {
    let mut world = World::two_hosts();
    world.lose = 256;
    let client = world.open(1);
    let active = world.create(&client, cm_port_space::TCP, 1);
    world.resolve(&client, active, &format!("{A}:9")).unwrap();
    world.connect(&client, active, &[]).unwrap();
    world.pass(60_000_000_000);
    world.expect_none(&client);
    // 16 times 4.3 s.
    world.pass(60_000_000_000);
    assert_eq!(world.expect(&client, Kind::Unreachable).status, -110);
    assert!(world.carried >= 16, "{} messages", world.carried);
}

#[test]
fn what_the_network_loses_is_said_again() {
    for lose in [128, 85, 51] {
        let mut world = World::two_hosts();
        world.lose = lose;
        let (server, client) = (world.open(0), world.open(1));
        world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
        let active = world.create(&client, cm_port_space::TCP, 1);
        world.resolve(&client, active, &format!("{A}:1")).unwrap();
        world.connect(&client, active, &[]).unwrap();
        world.pass(30_000_000_000);
        let passive = world.expect(&server, Kind::ConnectRequest).id;
        world.accept(&server, passive, 2).unwrap();
        world.pass(30_000_000_000);
        world.expect(&client, Kind::ConnectResponse);
        world.ready(&client, active).unwrap();
        world.pass(30_000_000_000);
        world.expect(&server, Kind::Established);
        world.expect_none(&server);
        world.close(client);
        world.pass(60_000_000_000);
        world.expect(&server, Kind::Disconnected);
        world.close(server);
        world.expect_nothing_left();
    }
}

#[test]
fn data_before_the_last_message_establishes() {
    let mut world = World::two_hosts();
    let (server, client) = (world.open(0), world.open(1));
    world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
    let active = world.create(&client, cm_port_space::TCP, 1);
    world.resolve(&client, active, &format!("{A}:1")).unwrap();
    world.connect(&client, active, &[]).unwrap();
    let passive = world.expect(&server, Kind::ConnectRequest).id;
    world.accept(&server, passive, 2).unwrap();
    const COMM_EST: u32 = 4;
    let notify = Notify { id: passive, event: COMM_EST };
    world.tell(&server, cm_command::NOTIFY, &notify).unwrap();
    world.expect(&server, Kind::Established);
    assert_eq!(world.tell(&server, cm_command::NOTIFY, &notify), Err(Errno::ISCONN));
    world.expect(&client, Kind::ConnectResponse);
    world.ready(&client, active).unwrap();
    world.expect_none(&server);
}

#[test]
fn datagram_services_answer_with_queue_pair_and_key() {
    for mut world in [World::one_host(), World::two_hosts()] {
        let (server, client) = (world.open(0), world.open(1));
        world.listener(&server, cm_port_space::UDP, "0.0.0.0:1");
        let active = world.create(&client, cm_port_space::UDP, 1);
        world.resolve(&client, active, &format!("{A}:1")).unwrap();
        world.connect(&client, active, b"who?").unwrap();
        let request = world.expect(&server, Kind::ConnectRequest);
        assert_eq!(&request.datagram().private_data[..5], b"who?\0");
        world.accept(&server, request.id, 2).unwrap();
        let answer = world.expect(&client, Kind::Established).datagram();
        assert_eq!((answer.qp_num, answer.qkey), (qpn_of(request.id), 0x0123_4567));
        assert_eq!((answer.ah_attr.grh.dgid, answer.ah_attr.is_global), (gid(A).0, 1));
        world.expect_none(&server);
        // A service that is not there.
        let other = world.create(&client, cm_port_space::UDP, 1);
        world.resolve(&client, other, &format!("{A}:2")).unwrap();
        world.connect(&client, other, &[]).unwrap();
        let refusal = world.expect(&client, Kind::Unreachable);
        assert_eq!((refusal.status, refusal.datagram().private_data_len), (1, 136));
        world.close(client);
        world.close(server);
        world.expect_nothing_left();
    }
}

#[test]
fn a_dead_program_disconnects_its_peers() {
    for mut world in [World::one_host(), World::two_hosts()] {
        let (server, client) = (world.open(0), world.open(1));
        world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
        let (passive, _) = world.connected(&server, &client, 1);
        // Another one waits to be accepted.
        let waiting = world.create(&client, cm_port_space::TCP, 1);
        world.resolve(&client, waiting, &format!("{A}:1")).unwrap();
        world.connect(&client, waiting, &[]).unwrap();
        world.close(client);
        assert_eq!(world.expect(&server, Kind::ConnectRequest).uid, 100);
        assert_eq!(world.expect(&server, Kind::Disconnected).id, passive);
        world.expect_none(&server);
        world.close(server);
        world.expect_nothing_left();
    }
}

#[test]
fn an_endpoint_can_connect_to_itself() {
    for address in [A, "127.0.0.1", "0.0.0.0"] {
        let mut world = World::one_host();
        let (server, client) = (world.open(0), world.open(0));
        world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
        let active = world.create(&client, cm_port_space::TCP, 1);
        world.resolve(&client, active, &format!("{address}:1")).unwrap();
        world.connect(&client, active, &[]).unwrap();
        let passive = world.expect(&server, Kind::ConnectRequest).id;
        world.accept(&server, passive, 2).unwrap();
        world.expect(&client, Kind::ConnectResponse);
        world.ready(&client, active).unwrap();
        world.expect(&server, Kind::Established);
        world.close(client);
        world.expect(&server, Kind::Disconnected);
        world.close(server);
        world.expect_nothing_left();
    }
}

#[test]
fn a_loopback_listener_hears_its_endpoint_only() {
    let mut world = World::one_host();
    let (server, client, stranger) = (world.open(0), world.open(0), world.open(1));
    world.listener(&server, cm_port_space::TCP, "127.0.0.1:1");
    for (channel, dest, is_heard) in [(&client, "127.0.0.1:1", true), (&stranger, "10.7.0.2:1", false)] {
        let active = world.create(channel, cm_port_space::TCP, 1);
        world.resolve(channel, active, dest).unwrap();
        world.connect(channel, active, &[]).unwrap();
        if is_heard {
            world.expect(&server, Kind::ConnectRequest);
        } else {
            assert_eq!(world.expect(channel, Kind::Rejected).status, 28);
        }
    }
}

#[test]
fn many_connections_come_and_go() {
    let mut world = World::one_host();
    let (server, client) = (world.open(0), world.open(1));
    world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
    for round in 0..1000 {
        let (passive, active) = world.connected(&server, &client, 1);
        world.disconnect(&client, active).unwrap();
        world.expect(&server, Kind::Disconnected);
        world.destroy(&server, passive).unwrap();
        world.destroy(&client, active).unwrap();
        assert_eq!(world.census().ids, 1, "after {round}");
        world.pass(1_000_000);
    }
    world.close(client);
    world.close(server);
    world.expect_nothing_left();
}

#[test]
fn security_groups_refuse_a_connection_on_either_side() {
    for (mut world, at) in [(World::one_host(), 0), (World::two_hosts(), 0), (World::two_hosts(), 1)] {
        let (server, client) = (world.open(0), world.open(1));
        world.listener(&server, cm_port_space::TCP, "0.0.0.0:7471");
        world.listener(&server, cm_port_space::TCP, "0.0.0.0:7472");
        // The server takes connections to 7472 only; of two hosts one knows that.
        let mut access = AccessRules::new(1);
        let from = vec![Grant { peers: Peers::Any, ports: 7472..=7472 }];
        let class = access.add_class(Some(ClassRules { to: Vec::new(), from }));
        access.assign(VNI, gid(A), class);
        world.managers[at].connections.registry.places.set_access(access);
        let active = world.create(&client, cm_port_space::TCP, 1);
        world.resolve(&client, active, &format!("{A}:7471")).unwrap();
        world.connect(&client, active, b"hello").unwrap();
        let refused = world.expect(&client, Kind::Rejected);
        assert_eq!((refused.uid, refused.status), (1, 8), "as if nobody listened");
        world.expect_none(&server);
        assert_eq!(world.managers[at].forbidden(), 1);
        world.destroy(&client, active).unwrap();
        let allowed = world.create(&client, cm_port_space::TCP, 2);
        world.resolve(&client, allowed, &format!("{A}:7472")).unwrap();
        let talk = |world: &World| {
            let may_talk = |manager: &ConnectionManager| {
                let routes = manager.connections.registry.places.routes();
                routes.current().may_talk(VNI, gid(A), gid(B))
            };
            world.managers.iter().all(may_talk)
        };
        assert!(!talk(&world));
        world.connect(&client, allowed, b"hello").unwrap();
        world.expect(&server, Kind::ConnectRequest);
        assert!(talk(&world), "packets go both ways while there is a connection");
        world.destroy(&client, allowed).unwrap();
        world.close(server);
        assert!(!talk(&world));
    }
}
