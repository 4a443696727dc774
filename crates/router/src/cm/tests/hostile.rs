//! Tests with hostile programs and peers.

use super::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_command_breaks_the_manager(
        commands in prop::collection::vec((0u32..25, 0u32..6, any::<u16>(), prop::collection::vec(any::<u8>(), 0..320)), 1..40)
    ) {
        let mut world = World::one_host();
        let channels = [world.open(0), world.open(1), world.open(0)];
        let listener = world.listener(&channels[0], cm_port_space::TCP, "0.0.0.0:1");
        let mut known = vec![listener, channels[0].number, channels[1].number, channels[2].number];
        for (number, id, out_len, mut body) in commands {
            let name = known[id as usize * 7 % known.len()];
            // Most commands that name an identifier would otherwise end at it.
            for at in [0, 8, 16] {
                if let Some(bytes) = body.get_mut(at..at + 4) {
                    bytes.copy_from_slice(&name.to_ne_bytes());
                }
            }
            let header = CmHeader { cmd: number, in_len: body.len() as u16, out_len };
            let channel = &channels[id as usize % channels.len()];
            let bytes = [header.as_bytes(), &body].concat();
            world.managers[0].needs_external_path(channel.number, &bytes);
            let response = world.managers[0].command(world.now, channel.number, &bytes);
            prop_assert!(response.as_ref().is_ok_and(|r| r.len() <= usize::from(out_len)) || response.is_err());
            let named_at = if number == cm_command::GET_EVENT { 8 } else { 0 };
            let named = response.ok().and_then(|r| r.get(named_at..)?.first_chunk().copied());
            known.extend(named.map(u32::from_ne_bytes));
            world.pass(10_000_000);
        }
        for channel in channels {
            world.close(channel);
        }
        world.expect_nothing_left();
    }

    #[test]
    fn no_message_breaks_the_manager(
        messages in prop::collection::vec((any::<bool>(), prop::collection::vec((0usize..256, any::<u8>()), 0..8)), 1..40)
    ) {
        let mut world = World::two_hosts();
        let (server, client) = (world.open(0), world.open(1));
        world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
        let active = world.create(&client, cm_port_space::TCP, 1);
        world.resolve(&client, active, "10.7.0.2:1").unwrap();
        let command = Connect { id: active, conn_param: param(1, &[]), ..Default::default() };
        let header = CmHeader { cmd: cm_command::CONNECT, in_len: size_of::<Connect>() as u16, out_len: 0 };
        let bytes = [header.as_bytes(), command.as_bytes()].concat();
        world.managers[1].command(world.now, client.number, &bytes).unwrap();
        let request = world.managers[1].poll_mad().expect("a request");
        for (is_repeated, changes) in messages {
            let mut bytes = request.bytes;
            for (at, value) in changes {
                bytes[at] = value;
            }
            for _ in 0..1 + usize::from(is_repeated) {
                let (source, dest) = (request.path.local, request.path.remote);
                world.managers[0].receive(world.now, &ReceivedMad { external_origin: None, vni: Some(VNI), source, dest, bytes });
            }
        }
        prop_assert!(world.census().ids <= 1 + 40);
        world.close(client);
        world.close(server);
        world.expect_nothing_left();
    }
}

#[test]
fn an_endpoint_has_so_many_identifiers_and_no_more() {
    let mut world = World::one_host();
    let (channel, other) = (world.open(0), world.open(1));
    for _ in 0..2000 {
        world.create(&channel, cm_port_space::TCP, 1);
    }
    let command = CreateId { ps: cm_port_space::TCP, ..Default::default() };
    assert_eq!(world.tell(&channel, cm_command::CREATE_ID, &command), Err(Errno::NOMEM));
    world.create(&other, cm_port_space::TCP, 1);
    world.close(channel);
    world.close(other);
    world.expect_nothing_left();
}

#[test]
fn events_that_nobody_reads_are_bounded() {
    let mut world = World::one_host();
    let channel = world.open(0);
    world.managers[0].set_external_path(channel.number, Some(external()));
    let id = world.create(&channel, cm_port_space::TCP, 1);
    let datagrams = world.create(&channel, cm_port_space::UDP, 1);
    world.bind(&channel, datagrams, "10.7.0.2:0").unwrap();
    let resolve = ResolveIp { id, dst_addr: ip("192.0.2.9:1"), ..Default::default() };
    let join = JoinIpMcast { id: datagrams, addr: ip("239.1.1.1:0"), ..Default::default() };
    let mut refused = None;
    for _ in 0..100_000 {
        refused = world.tell(&channel, cm_command::RESOLVE_IP, &resolve).err();
        if refused.is_some() {
            break;
        }
        world.managers[0].answer_query(id, Err(Errno::ACCESS));
    }
    assert_eq!(refused, Some(Errno::NOMEM));
    assert_eq!(world.census().waiting_events, 4 * 2000 + 65_536);
    assert_eq!(world.tell(&channel, cm_command::JOIN_IP_MCAST, &join), Err(Errno::NOMEM));
    // Neither other programs nor programs that read are delayed.
    let stranger = world.open(1);
    let other = world.create(&stranger, cm_port_space::TCP, 1);
    world.resolve(&stranger, other, "10.7.0.2:1").unwrap();
    world.expect(&channel, Kind::AddressError);
    world.tell(&channel, cm_command::JOIN_IP_MCAST, &join).unwrap();
    assert_eq!(world.tell(&channel, cm_command::RESOLVE_IP, &resolve), Err(Errno::NOMEM));
    world.destroy(&channel, id).unwrap();
    assert_eq!(world.census().waiting_events, 1);
    world.close(channel);
    world.close(stranger);
    assert_eq!(world.waiting_events(), 0);
    world.expect_nothing_left();
}

#[test]
fn closing_takes_requests_and_events_along() {
    let mut world = World::one_host();
    let (server, client) = (world.open(0), world.open(1));
    world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
    for _ in 0..3 {
        let active = world.create(&client, cm_port_space::TCP, 1);
        world.resolve(&client, active, "10.7.0.2:1").unwrap();
        world.connect(&client, active, &[]).unwrap();
    }
    assert_eq!((world.census().ids, world.waiting_events()), (7, 3));
    world.close(server);
    assert_eq!((world.census().ids, world.waiting_events()), (3, 0));
    for _ in 0..3 {
        world.expect(&client, Kind::Rejected);
    }
    world.close(client);
    world.expect_nothing_left();
}

#[test]
fn a_stranger_outside_does_not_speak_for_those_inside() {
    let mut world = World::one_host();
    let (server, client) = (world.open(0), world.open(1));
    world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
    world.managers[0].set_external_path(server.number, Some(external()));
    let active = world.create(&client, cm_port_space::TCP, 1);
    world.resolve(&client, active, "10.7.0.2:1").unwrap();
    // A message as the client itself would send it, from the wire.
    let mut other = World::two_hosts();
    let twin = other.open(1);
    let id = other.create(&twin, cm_port_space::TCP, 1);
    other.resolve(&twin, id, "10.7.0.2:1").unwrap();
    let command = Connect { id, conn_param: param(1, &[]), ..Default::default() };
    let header = CmHeader { cmd: cm_command::CONNECT, in_len: size_of::<Connect>() as u16, out_len: 0 };
    other.managers[1].command(other.now, twin.number, &[header.as_bytes(), command.as_bytes()].concat()).unwrap();
    let request = other.managers[1].poll_mad().expect("a request");
    let mut received = ReceivedMad {
        external_origin: Some(external().id),
        vni: None,
        source: gid(B),
        dest: gid(A),
        bytes: request.bytes,
    };
    world.managers[0].receive(world.now, &received);
    world.expect_none(&server);
    // Nor does an external sender whose request names an endpoint's address.
    received.source = gid("192.0.2.9");
    received.bytes[24 + 56..24 + 72].copy_from_slice(&gid("192.0.2.9").0);
    world.managers[0].receive(world.now, &received);
    world.expect_none(&server);
    // In its own name it may.
    const IP_SOURCE: usize = 24 + 140 + 16;
    received.bytes[IP_SOURCE..IP_SOURCE + 4].copy_from_slice(&[192, 0, 2, 9]);
    world.managers[0].receive(world.now, &received);
    assert_eq!(world.expect(&server, Kind::ConnectRequest).connection().qp_num, 1);
}
