//! Tests of identifiers, addresses, ports and channels.

use super::*;

fn storage(address: &str) -> [u8; 128] {
    let mut bytes = [0; 128];
    crate::cm::address::encode(address.parse().unwrap(), &mut bytes);
    bytes
}

#[test]
fn addresses_are_the_endpoints_own() {
    let mut world = World::one_host();
    let channel = world.open(0);
    for (address, result) in [
        ("10.7.0.3:1", Err(Errno::ADDRNOTAVAIL)),
        ("192.0.2.1:1", Err(Errno::ADDRNOTAVAIL)),
        ("[fe80::1]:1", Err(Errno::INVAL)),
        ("[fe80::1%3]:1", Ok(())),
        ("[fd00::2]:1", Ok(())),
        ("10.7.0.2:1", Ok(())),
        ("10.7.0.2:2", Ok(())),
    ] {
        let id = world.create(&channel, cm_port_space::TCP, 1);
        assert_eq!(world.bind(&channel, id, address), result, "{address}");
        let again = world.bind(&channel, id, "10.7.0.2:0");
        assert_eq!(again.is_err(), result.is_ok(), "{address} twice");
    }
}

#[test]
fn a_port_in_use_is_refused_until_it_is_given_back() {
    let mut world = World::one_host();
    let (channel, other) = (world.open(0), world.open(1));
    let id = world.create(&channel, cm_port_space::TCP, 1);
    world.bind(&channel, id, "0.0.0.0:7471").unwrap();
    let second = world.create(&channel, cm_port_space::TCP, 1);
    assert_eq!(world.bind(&channel, second, "10.7.0.2:7471"), Err(Errno::ADDRNOTAVAIL));
    // Ports are an endpoint's own.
    let elsewhere = world.create(&other, cm_port_space::TCP, 1);
    world.bind(&other, elsewhere, "0.0.0.0:7471").unwrap();
    world.destroy(&channel, id).unwrap();
    world.bind(&channel, second, "10.7.0.2:7471").unwrap();
    let third = world.create(&channel, cm_port_space::TCP, 1);
    assert_eq!(world.bind(&channel, third, "10.7.0.2:7471"), Err(Errno::ADDRINUSE));
}

#[test]
fn options_change_what_ports_allow() {
    let mut world = World::one_host();
    let channel = world.open(0);
    let set = |world: &mut World, id, optname, value: &[u8]| {
        let option = SetOption { id, optname, level: cm_option::LEVEL_ID, optlen: value.len() as u32, optval: 0 };
        world.write(&channel, cm_command::SET_OPTION, &[option.as_bytes(), value].concat()).map(drop)
    };
    let one = 1i32.to_ne_bytes();
    let ids: Vec<u32> = (0..4).map(|_| world.create(&channel, cm_port_space::TCP, 1)).collect();
    set(&mut world, ids[0], cm_option::ID_REUSEADDR, &one).unwrap();
    set(&mut world, ids[1], cm_option::ID_REUSEADDR, &one).unwrap();
    world.bind(&channel, ids[0], "0.0.0.0:5").unwrap();
    world.bind(&channel, ids[1], "0.0.0.0:5").unwrap();
    assert_eq!(world.listen(&channel, ids[0], 1), Err(Errno::ADDRNOTAVAIL));
    world.destroy(&channel, ids[1]).unwrap();
    world.listen(&channel, ids[0], 1).unwrap();
    set(&mut world, ids[2], cm_option::ID_AFONLY, &one).unwrap();
    world.bind(&channel, ids[2], "[::]:5").unwrap();
    assert_eq!(set(&mut world, ids[0], cm_option::ID_AFONLY, &one), Err(Errno::INVAL));
    set(&mut world, ids[3], cm_option::ID_TOS, &[4]).unwrap();
    set(&mut world, ids[3], cm_option::ID_ACK_TIMEOUT, &[14]).unwrap();
    assert_eq!(set(&mut world, ids[3], cm_option::ID_ACK_TIMEOUT, &[14, 0]), Err(Errno::INVAL));
    assert_eq!(set(&mut world, ids[3], 9, &one), Err(Errno::NOSYS));
    let datagrams = world.create(&channel, cm_port_space::UDP, 1);
    assert_eq!(set(&mut world, datagrams, cm_option::ID_ACK_TIMEOUT, &[14]), Err(Errno::INVAL));
}

#[test]
fn queries_say_what_was_found() {
    let mut world = World::one_host();
    let (server, client) = (world.open(0), world.open(1));
    world.listener(&server, cm_port_space::TCP, "10.7.0.2:7471");
    let (passive, active) = world.connected(&server, &client, 7471);
    let ask = |id, option| Query { id, option, ..Default::default() };
    let route: QueryRouteResponse = world.ask(&client, cm_command::QUERY_ROUTE, &ask(active, 0)).unwrap();
    assert_eq!((route.num_paths, route.port_num, route.node_guid), (1, 1, u64::from_ne_bytes([2; 8])));
    assert_eq!((route.dst_addr, route.ib_route[0].dgid), (ip("10.7.0.2:7471"), gid(A).0));
    let there: QueryAddrResponse = world.ask(&client, cm_command::QUERY, &ask(active, cm_query::ADDR)).unwrap();
    let here: QueryAddrResponse = world.ask(&server, cm_command::QUERY, &ask(passive, cm_query::ADDR)).unwrap();
    assert_eq!((there.src_addr, there.dst_addr), (here.dst_addr, here.src_addr));
    assert_eq!((there.src_size, there.dst_addr), (16, storage("10.7.0.2:7471")));
    let gids: QueryAddrResponse = world.ask(&client, cm_command::QUERY, &ask(active, cm_query::GID)).unwrap();
    assert_eq!((&gids.src_addr[8..24], &gids.dst_addr[8..24]), (&gid(B).0[..], &gid(A).0[..]));
    let path = world.write(&client, cm_command::QUERY, ask(active, cm_query::PATH).as_bytes()).unwrap();
    assert_eq!((path[0], path.len(), &path[16 + 8..16 + 24]), (1, 80, &gid(A).0[..]));
    assert_eq!(world.write(&client, cm_command::QUERY, ask(active, 9).as_bytes()), Err(Errno::NOSYS));
}

/// `ucma_resolve_ib_service` and `ucma_query_ib_service` of the kernel, on a port without a subnet manager.
#[test]
fn services_are_not_looked_for_on_ethernet() {
    let mut world = World::one_host();
    let channel = world.open(0);
    let id = world.create(&channel, cm_port_space::TCP, 1);
    let resolve = |id| ResolveIbService { id, service_id: 5, flags: 1, ..Default::default() };
    let command = cm_command::RESOLVE_IB_SERVICE;
    assert_eq!(world.tell(&channel, command, &resolve(77)), Err(Errno::NOENT));
    assert_eq!(world.tell(&channel, command, &resolve(id)), Err(Errno::INVAL), "without a device");
    world.bind(&channel, id, "10.7.0.2:7471").unwrap();
    assert_eq!(world.tell(&channel, command, &resolve(id)), Err(Errno::OPNOTSUPP));
    assert_eq!(world.write(&channel, command, &[0; 87]), Err(Errno::INVAL), "too short");
    let query = Query { id, option: cm_query::IB_SERVICE, ..Default::default() };
    assert_eq!(world.tell(&channel, cm_command::QUERY, &query), Err(Errno::NODATA));
    world.listen(&channel, id, 1).unwrap();
    assert_eq!(world.tell(&channel, command, &resolve(id)), Err(Errno::INVAL), "when it is no longer bound only");
}

#[test]
fn a_program_reads_the_events_that_it_writes() {
    let mut world = World::one_host();
    let (channel, stranger) = (world.open(0), world.open(1));
    let id = world.create(&channel, cm_port_space::TCP, 55);
    let mut write = WriteCmEvent { id, event: Kind::User as u32, status: -5i32 as u32, ..Default::default() };
    write.param[..8].copy_from_slice(b"whatever");
    world.tell(&channel, cm_command::WRITE_CM_EVENT, &write).unwrap();
    let got = world.expect(&channel, Kind::User);
    assert_eq!((got.id, got.uid, got.status, &got.response.param[..8]), (id, 55, -5, &b"whatever"[..]));
    write.event = Kind::Internal as u32;
    world.tell(&channel, cm_command::WRITE_CM_EVENT, &write).unwrap();
    world.expect(&channel, Kind::Internal);
    for event in (0..18).chain([20, u32::MAX]) {
        let forged = WriteCmEvent { event, ..write };
        assert_eq!(world.tell(&channel, cm_command::WRITE_CM_EVENT, &forged), Err(Errno::INVAL), "{event}");
    }
    assert_eq!(world.tell(&stranger, cm_command::WRITE_CM_EVENT, &write), Err(Errno::NOENT));
    assert_eq!(world.destroy(&channel, id), Ok(2), "both were read");
}

#[test]
fn events_that_a_program_writes_and_never_reads_have_an_end() {
    let mut world = World::one_host();
    let channel = world.open(0);
    let id = world.create(&channel, cm_port_space::TCP, 1);
    let write = WriteCmEvent { id, event: Kind::User as u32, ..Default::default() };
    let refused = (0..1_000_000).find_map(|_| world.tell(&channel, cm_command::WRITE_CM_EVENT, &write).err());
    assert_eq!(refused, Some(Errno::NOMEM));
    world.destroy(&channel, id).unwrap();
    world.close(channel);
    world.expect_nothing_left();
}

#[test]
fn identifiers_belong_to_their_channel_and_endpoint() {
    let mut world = World::one_host();
    let (channel, sibling, stranger) = (world.open(0), world.open(0), world.open(1));
    let id = world.create(&channel, cm_port_space::TCP, 1);
    assert_eq!(world.listen(&sibling, id, 1), Err(Errno::INVAL));
    assert_eq!(world.listen(&stranger, id, 1), Err(Errno::NOENT));
    assert_eq!(world.destroy(&channel, 77), Err(Errno::NOENT));
    let migrate = |fd| MigrateId { id, fd, ..Default::default() };
    assert_eq!(world.tell(&stranger, cm_command::MIGRATE_ID, &migrate(channel.number)), Err(Errno::INVAL));
    assert_eq!(world.tell(&sibling, cm_command::MIGRATE_ID, &migrate(stranger.number)), Err(Errno::INVAL));
}

#[test]
fn numbers_and_refusals_tell_nothing_of_other_endpoints() {
    let mut world = World::one_host();
    let (channel, stranger) = (world.open(0), world.open(1));
    let mine = world.create(&channel, cm_port_space::TCP, 1);
    let theirs = world.create(&stranger, cm_port_space::TCP, 1);
    let next = world.create(&channel, cm_port_space::TCP, 1);
    assert!(next.abs_diff(mine) > 2 && channel.number.abs_diff(stranger.number) > 1);
    // The answer is the same with and without an identifier of the other endpoint.
    for fd in [stranger.number, 77] {
        for id in [mine, theirs, 77] {
            let command = MigrateId { id, fd, ..Default::default() };
            assert_eq!(world.tell(&channel, cm_command::MIGRATE_ID, &command), Err(Errno::INVAL));
        }
    }
    // An identifier of theirs with an external peer causes no path lookup.
    world.managers[0].set_external_path(stranger.number, Some(external()));
    let command = ResolveIp { id: theirs, dst_addr: ip("192.0.2.9:1"), ..Default::default() };
    world.tell(&stranger, cm_command::RESOLVE_IP, &command).unwrap();
    let header = CmHeader { cmd: cm_command::CONNECT, in_len: size_of::<Connect>() as u16, out_len: 0 };
    let connect = Connect { id: theirs, ..Default::default() };
    assert!(!world.managers[0].needs_external_path(channel.number, &[header.as_bytes(), connect.as_bytes()].concat()));
}

#[test]
fn events_move_with_their_identifier() {
    let mut world = World::one_host();
    let (channel, other) = (world.open(1), world.open(1));
    let id = world.create(&channel, cm_port_space::TCP, 1);
    let stays = world.create(&channel, cm_port_space::TCP, 2);
    for id in [id, stays] {
        let command = ResolveIp { id, dst_addr: ip("10.7.0.2:1"), ..Default::default() };
        world.tell(&channel, cm_command::RESOLVE_IP, &command).unwrap();
    }
    let migrate = MigrateId { id, fd: channel.number, ..Default::default() };
    let moved: MigrateResponse = world.ask(&other, cm_command::MIGRATE_ID, &migrate).unwrap();
    assert_eq!(moved.events_reported, 0);
    assert_eq!(world.expect(&other, Kind::AddressResolved).id, id);
    assert_eq!(world.expect(&channel, Kind::AddressResolved).id, stays);
    world.expect_none(&channel);
    assert_eq!(world.destroy(&other, id), Ok(1));
}

#[test]
fn events_of_a_group_go_when_it_is_left() {
    let mut world = World::one_host();
    let (channel, other) = (world.open(0), world.open(0));
    let id = world.create(&channel, cm_port_space::UDP, 1);
    world.bind(&channel, id, "10.7.0.2:0").unwrap();
    let groups: Vec<u32> = (1..=4)
        .map(|last| {
            let command = JoinIpMcast { id, addr: ip(&format!("239.1.1.{last}:0")), ..Default::default() };
            world.ask::<CreateIdResponse>(&channel, cm_command::JOIN_IP_MCAST, &command).unwrap().id
        })
        .collect();
    world.tell(&channel, cm_command::LEAVE_MCAST, &DestroyId { id: groups[1], ..Default::default() }).unwrap();
    let migrate = MigrateId { id, fd: channel.number, ..Default::default() };
    world.tell(&other, cm_command::MIGRATE_ID, &migrate).unwrap();
    world.expect_none(&channel);
    // In the order in which they came.
    assert_eq!(world.expect(&other, Kind::MulticastJoin).id, groups[0]);
    assert_eq!(world.expect(&other, Kind::MulticastJoin).id, groups[2]);
    assert_eq!(world.waiting_events(), 1);
    world.destroy(&other, id).unwrap();
    world.expect_none(&other);
    assert_eq!(world.waiting_events(), 0);
}

#[test]
fn commands_that_take_unread_events_away_are_known() {
    let mut world = World::one_host();
    let (channel, other, stranger) = (world.open(0), world.open(0), world.open(1));
    let id = world.create(&channel, cm_port_space::UDP, 1);
    let quiet = world.create(&channel, cm_port_space::UDP, 2);
    world.bind(&channel, id, "10.7.0.2:0").unwrap();
    let join = JoinIpMcast { id, addr: ip("239.1.1.1:0"), ..Default::default() };
    let group = world.ask::<CreateIdResponse>(&channel, cm_command::JOIN_IP_MCAST, &join).unwrap().id;
    let destroy = |id| (cm_command::DESTROY_ID, DestroyId { id, ..Default::default() }.as_bytes().to_vec());
    let leave = (cm_command::LEAVE_MCAST, DestroyId { id: group, ..Default::default() }.as_bytes().to_vec());
    let migrate = MigrateId { id, fd: channel.number, ..Default::default() };
    let migrate = (cm_command::MIGRATE_ID, migrate.as_bytes().to_vec());
    let takes = |world: &World, to: &Channel, (cmd, body): &(u32, Vec<u8>)| {
        let header = CmHeader { cmd: *cmd, in_len: body.len() as u16, out_len: 4 };
        world.managers[0].takes_events(to.number, &[header.as_bytes(), body].concat())
    };
    let asked = |world: &World| {
        let (mine, to_other) = ([destroy(id), leave.clone()], takes(world, &other, &migrate));
        (mine.map(|command| takes(world, &channel, &command)), to_other)
    };
    assert_eq!(asked(&world), ([true; 2], true));
    // What is not the program's to do, or has nothing to do with an identifier with events.
    assert!(!takes(&world, &channel, &destroy(quiet)));
    assert!(!takes(&world, &channel, &migrate), "where it is already");
    assert!(!takes(&world, &channel, &(cm_command::GET_EVENT, vec![0; 8])));
    for command in [destroy(id), leave.clone(), migrate.clone()] {
        assert!(!takes(&world, &stranger, &command));
    }
    assert!(!takes(&world, &other, &destroy(id)));
    world.expect(&channel, Kind::MulticastJoin);
    assert_eq!(asked(&world), ([false; 2], false));
}

#[test]
fn a_full_backlog_lets_wait() {
    let mut world = World::one_host();
    let (server, client) = (world.open(0), world.open(1));
    let listener = world.create(&server, cm_port_space::TCP, 1);
    world.bind(&server, listener, "0.0.0.0:1").unwrap();
    world.listen(&server, listener, 2).unwrap();
    for _ in 0..3 {
        let id = world.create(&client, cm_port_space::TCP, 1);
        world.resolve(&client, id, "10.7.0.2:1").unwrap();
        world.connect(&client, id, &[]).unwrap();
    }
    world.pass(5_000_000_000);
    world.expect_none(&client);
    assert_eq!(world.census().waiting_events, 2);
    // The third one asks again, and again.
    world.expect(&server, Kind::ConnectRequest);
    world.pass(5_000_000_000);
    assert_eq!(world.census().waiting_events, 2);
    // Requests that were not read go with the listener.
    world.destroy(&server, listener).unwrap();
    for _ in 0..2 {
        assert_eq!(world.expect(&client, Kind::Rejected).status, 28);
    }
    world.expect_none(&client);
}

#[test]
fn groups_are_joined_and_left() {
    let mut world = World::one_host();
    let channel = world.open(0);
    let id = world.create(&channel, cm_port_space::UDP, 1);
    let join = |address| JoinIpMcast { id, uid: 9, addr: ip(address), ..Default::default() };
    assert_eq!(world.tell(&channel, cm_command::JOIN_IP_MCAST, &join("239.1.1.1:0")), Err(Errno::INVAL), "unbound");
    world.bind(&channel, id, "10.7.0.2:0").unwrap();
    assert_eq!(world.tell(&channel, cm_command::JOIN_IP_MCAST, &join("10.7.0.3:0")), Err(Errno::INVAL), "unicast");
    let group: CreateIdResponse = world.ask(&channel, cm_command::JOIN_IP_MCAST, &join("239.1.1.1:0")).unwrap();
    let joined = world.expect(&channel, Kind::MulticastJoin);
    assert_eq!((joined.uid, joined.id), (9, group.id));
    let path = joined.datagram();
    assert_eq!((path.qp_num, path.qkey, path.ah_attr.grh.dgid), (0xff_ffff, 0x0123_4567, gid("239.1.1.1").0));
    let leave = DestroyId { id: group.id, ..Default::default() };
    let left: DestroyIdResponse = world.ask(&channel, cm_command::LEAVE_MCAST, &leave).unwrap();
    assert_eq!(left.events_reported, 1);
    assert_eq!(world.tell(&channel, cm_command::LEAVE_MCAST, &leave), Err(Errno::NOENT));
    world.tell(&channel, cm_command::JOIN_IP_MCAST, &join("239.1.1.2:0")).unwrap();
    world.destroy(&channel, id).unwrap();
    world.close(channel);
    world.expect_nothing_left();
}

#[test]
fn only_ways_out_lead_out() {
    let mut world = World::one_host();
    let channel = world.open(0);
    let manager = &mut world.managers[0];
    let bytes = |command: u32, body: &[u8]| {
        let header = CmHeader { cmd: command, in_len: body.len() as u16, out_len: 0 };
        [header.as_bytes(), body].concat()
    };
    let resolve = |dest| ResolveIp { dst_addr: ip(dest), ..Default::default() };
    let outside = bytes(cm_command::RESOLVE_IP, resolve("192.0.2.9:1").as_bytes());
    let inside = bytes(cm_command::RESOLVE_IP, resolve("10.7.0.3:1").as_bytes());
    assert!(
        manager.needs_external_path(channel.number, &outside) && !manager.needs_external_path(channel.number, &inside)
    );
    manager.set_external_path(channel.number, None);
    assert!(!manager.needs_external_path(channel.number, &outside), "asked once");
    let id = world.create(&channel, cm_port_space::TCP, 1);
    let command = ResolveIp { id, ..resolve("192.0.2.9:1") };
    assert_eq!(world.tell(&channel, cm_command::RESOLVE_IP, &command), Err(Errno::NETUNREACH));
    let other = world.open(0);
    world.managers[0].set_external_path(other.number, Some(external()));
    let id = world.create(&other, cm_port_space::TCP, 1);
    let command = ResolveIp { id, timeout_ms: 2000, ..resolve("192.0.2.9:1") };
    for found in [Err(Errno::HOSTUNREACH), Ok(())] {
        world.tell(&other, cm_command::RESOLVE_IP, &command).unwrap();
        world.expect_none(&other);
        let [(number, query)] = world.managers[0].queries()[..] else { panic!("one query") };
        assert_eq!(
            (number, query.dest.to_string(), query.limit.0 - query.since.0),
            (id, "192.0.2.9".into(), 2_000_000_000)
        );
        world.managers[0].answer_query(number, found);
        match found {
            Ok(()) => drop(world.expect(&other, Kind::AddressResolved)),
            Err(errno) => assert_eq!(world.expect(&other, Kind::AddressError).status, -errno.raw_os_error()),
        }
    }
    world.tell(&other, cm_command::RESOLVE_ROUTE, &ResolveRoute { id, timeout_ms: 1 }).unwrap();
    world.expect(&other, Kind::RouteResolved);
    world.connect(&other, id, &[]).unwrap();
    let migrate = MigrateId { id, fd: other.number, ..Default::default() };
    let migrate = bytes(cm_command::MIGRATE_ID, migrate.as_bytes());
    let third = world.open(0);
    assert!(world.managers[0].needs_external_path(third.number, &migrate), "the other channel may close");
    world.close(third);
    let waits = world.create(&other, cm_port_space::TCP, 1);
    world.tell(&other, cm_command::RESOLVE_IP, &ResolveIp { id: waits, ..command }).unwrap();
    world.close(other);
    world.close(channel);
    world.expect_nothing_left();
}

#[test]
fn last_words_leave_by_the_way_there_was() {
    let mut world = World::one_host();
    let channel = world.open(0);
    world.managers[0].set_external_path(channel.number, Some(external()));
    let id = world.create(&channel, cm_port_space::TCP, 1);
    let command = ResolveIp { id, dst_addr: ip("192.0.2.9:1"), timeout_ms: 1, ..Default::default() };
    world.tell(&channel, cm_command::RESOLVE_IP, &command).unwrap();
    world.managers[0].answer_query(id, Ok(()));
    world.tell(&channel, cm_command::RESOLVE_ROUTE, &ResolveRoute { id, timeout_ms: 1 }).unwrap();
    world.connect(&channel, id, &[]).unwrap();
    let now = world.now;
    world.managers[0].close(now, channel.number);
    let last = world.managers[0].poll_mad().expect("a refusal");
    assert_eq!(last.path.external, Some(external()));
}
