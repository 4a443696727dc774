//! Programs and peers that mean harm.

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
        world.listener(&channels[0], cm_port_space::TCP, "0.0.0.0:1");
        for (number, id, out_len, mut body) in commands {
            // Most commands that name an identifier would otherwise end at it.
            for at in [0, 8, 16] {
                if let Some(bytes) = body.get_mut(at..at + 4) {
                    bytes.copy_from_slice(&id.to_ne_bytes());
                }
            }
            let header = CmHeader { cmd: number, in_len: body.len() as u16, out_len };
            let channel = &channels[id as usize % channels.len()];
            let bytes = [header.as_bytes(), &body].concat();
            world.managers[0].needs_way(channel.number, &bytes);
            let response = world.managers[0].command(world.now, channel.number, &bytes);
            prop_assert!(response.is_err() || response.is_ok_and(|r| r.len() <= usize::from(out_len)));
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
                world.managers[0].receive(world.now, &ReceivedMad { origin_plain: None, vni: Some(VNI), source, dest, bytes });
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
fn a_stranger_outside_does_not_speak_for_those_inside() {
    let mut world = World::one_host();
    let (server, client) = (world.open(0), world.open(1));
    world.listener(&server, cm_port_space::TCP, "0.0.0.0:1");
    world.managers[0].set_way(server.number, Some(plain()));
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
    let mut received =
        ReceivedMad { origin_plain: Some(plain().id), vni: None, source: gid(B), dest: gid(A), bytes: request.bytes };
    world.managers[0].receive(world.now, &received);
    world.expect_none(&server);
    // One who is outside may.
    received.source = gid("192.0.2.9");
    received.bytes[24 + 56..24 + 72].copy_from_slice(&gid("192.0.2.9").0);
    world.managers[0].receive(world.now, &received);
    assert_eq!(world.expect(&server, Kind::ConnectRequest).connection().qp_num, 1);
}
