//! Tests of NETLINK_RDMA requests.

use crate::client::Client;
use crate::world::World;
use rdmesh_uverbs::abi::netlink::{NetlinkHeader, netlink_flag, nldev, nldev_attr as attr, nldev_type};
use rdmesh_uverbs::session::{NetlinkAnswer, NetlinkQuery, RequestKind};
use rustix::io::Errno;
use std::collections::BTreeSet;
use zerocopy::{FromBytes, IntoBytes};

const LIST: u16 = netlink_flag::REQUEST | netlink_flag::DUMP;
const DEVICE: (u16, u32) = (attr::DEV_INDEX, 0);
const PORT: (u16, u32) = (attr::PORT_INDEX, 1);

fn ask(
    client: &mut Client,
    from: u64,
    command: u16,
    flags: u16,
    attributes: &[(u16, u32)],
) -> Result<(NetlinkAnswer, Vec<u8>), Errno> {
    let len = (16 + 8 * attributes.len()) as u32;
    let mut body = NetlinkQuery { from, port_id: 99, reserved: 0 }.as_bytes().to_vec();
    body.extend(NetlinkHeader { len, kind: nldev_type(command), flags, seq: 7, port_id: 0 }.as_bytes());
    for (kind, value) in attributes {
        body.extend([8u16.to_ne_bytes(), kind.to_ne_bytes()].concat());
        body.extend(value.to_ne_bytes());
    }
    let answer = client.call(RequestKind::Netlink, &body, &[], None)?.response;
    let (head, message) = NetlinkAnswer::read_from_prefix(&answer).unwrap();
    Ok((head, message.to_vec()))
}

/// The attributes in `bytes`: kind and value.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    while bytes.len() >= 4 {
        let len = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        all.push((u16::from_ne_bytes([bytes[2], bytes[3]]), &bytes[4..len]));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

fn number_in(bytes: &[u8], kind: u16) -> Option<u32> {
    let found = attributes(bytes).into_iter().find(|(found, _)| *found == kind)?;
    Some(u32::from_ne_bytes(found.1.try_into().unwrap()))
}

/// All objects of a list, part by part; each with its attributes.
fn list(client: &mut Client, command: u16) -> Vec<Vec<u8>> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let (answer, message) = ask(client, from, command, LIST, &[DEVICE]).unwrap();
        assert_eq!((answer.status, answer.is_list), (0, 1));
        assert!(message.len() < 4096, "programs have room for a page");
        if !message.is_empty() {
            let header = NetlinkHeader::read_from_prefix(&message).unwrap().0;
            assert_eq!((header.len as usize, header.seq, header.port_id), (message.len(), 7, 99));
            let (_, entries) = *attributes(&message[16..]).last().unwrap();
            all.extend(attributes(entries).into_iter().map(|(_, entry)| entry.to_vec()));
        }
        if answer.next == NetlinkAnswer::END {
            return all;
        }
        assert!(answer.next > from);
        from = answer.next;
    }
}

#[test]
fn an_endpoint_sees_its_own_objects_and_no_others() {
    let world = World::new(2);
    let (own, other) = (world.endpoint(1), world.endpoint(2));
    let mut programs = [Client::device(&own), Client::device(&own), Client::device(&other)];
    let mut made = [BTreeSet::new(), BTreeSet::new()];
    for (at, program) in programs.iter_mut().enumerate() {
        let (pd, (cq, _ring)) = (program.alloc_pd(), program.create_cq(16));
        for _ in 0..100 {
            made[at / 2].insert(program.create_qp(pd, cq, 2).1);
        }
    }
    for (path, made, contexts) in [(&own, &made[0], 2), (&other, &made[1], 1)] {
        let mut tool = Client::connect(path);
        let qps = list(&mut tool, nldev::RES_QP_GET);
        let numbers: BTreeSet<u32> = qps.iter().map(|qp| number_in(qp, attr::RES_LQPN).unwrap()).collect();
        assert_eq!((&numbers, qps.len()), (made, made.len()));
        assert!(qps.iter().all(|qp| number_in(qp, attr::RES_PID) == Some(std::process::id())));
        for (command, count) in [
            (nldev::RES_PD_GET, contexts),
            (nldev::RES_CQ_GET, contexts),
            (nldev::RES_CTX_GET, contexts),
            (nldev::RES_MR_GET, 0),
            (nldev::RES_SRQ_GET, 0),
            (nldev::RES_CM_ID_GET, 0),
        ] {
            assert_eq!(list(&mut tool, command).len(), count, "{command}");
        }
        let qpn = *made.first().unwrap();
        let (_, found) = ask(&mut tool, 0, nldev::RES_QP_GET, 1, &[DEVICE, PORT, (attr::RES_LQPN, qpn)]).unwrap();
        assert_eq!(number_in(&found[16..], attr::RES_LQPN), Some(qpn));
    }
    let foreign = *made[1].first().unwrap();
    let mut tool = Client::connect(&own);
    let found = ask(&mut tool, 0, nldev::RES_QP_GET, 1, &[DEVICE, PORT, (attr::RES_LQPN, foreign)]);
    assert_eq!(found.err(), Some(Errno::NOENT));
}

#[test]
fn objects_have_numbers_that_find_them() {
    let world = World::new(1);
    let path = world.endpoint(1);
    let mut programs = [Client::device(&path), Client::device(&path)];
    for program in &mut programs {
        let (pd, (cq, _ring)) = (program.alloc_pd(), program.create_cq(16));
        program.create_qp(pd, cq, 2);
    }
    let mut tool = Client::connect(&path);
    let pds: Vec<u32> =
        list(&mut tool, nldev::RES_PD_GET).iter().map(|pd| number_in(pd, attr::RES_PDN).unwrap()).collect();
    for (command, kind) in
        [(nldev::RES_PD_GET, attr::RES_PDN), (nldev::RES_CQ_GET, attr::RES_CQN), (nldev::RES_CTX_GET, attr::RES_CTXN)]
    {
        let numbers: BTreeSet<u32> =
            list(&mut tool, command).iter().map(|object| number_in(object, kind).unwrap()).collect();
        assert_eq!(numbers.len(), 2, "{command}");
        for number in numbers {
            let (_, found) = ask(&mut tool, 0, command, 1, &[DEVICE, (kind, number)]).unwrap();
            assert_eq!(number_in(&found[16..], kind), Some(number));
        }
        let nothing = ask(&mut tool, 0, command, 1, &[DEVICE, (kind, 77 << 20 | 5)]);
        assert_eq!(nothing.err(), Some(Errno::NOENT), "{command}");
    }
    for qp in list(&mut tool, nldev::RES_QP_GET) {
        assert!(pds.contains(&number_in(&qp, attr::RES_PDN).unwrap()), "a queue pair names its protection domain");
    }
}

#[test]
fn a_list_that_makes_no_sense_ends_with_the_reason() {
    let world = World::new(1);
    let mut tool = Client::connect(&world.endpoint(1));
    let (answer, message) = ask(&mut tool, 0, nldev::RES_QP_GET, LIST, &[(attr::DEV_INDEX, 3)]).unwrap();
    assert_eq!((answer.next, answer.status, answer.is_list), (NetlinkAnswer::END, -libc::EINVAL, 1));
    assert!(message.is_empty());
    assert_eq!(ask(&mut tool, 0, nldev::SET, 1, &[DEVICE]).err(), Some(Errno::PERM));
    assert_eq!(ask(&mut tool, 0, nldev::GET, 1, &[]).err(), Some(Errno::INVAL));
}

#[test]
fn wherever_a_list_is_told_to_go_on_it_ends() {
    let world = World::new(1);
    let path = world.endpoint(1);
    let mut program = Client::device(&path);
    let (pd, (cq, _ring)) = (program.alloc_pd(), program.create_cq(16));
    program.create_qp(pd, cq, 2);
    let mut random = 1u64;
    for round in 0..2000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let from = if round % 3 == 0 { random } else { random >> (random % 64) };
        let command = (random >> 40) as u16 % 32;
        if let Ok((answer, _)) = ask(&mut program, from, command, LIST, &[DEVICE]) {
            assert_eq!(answer.next, NetlinkAnswer::END, "{command} from {from}");
        }
        // Bytes that are no message at all.
        let body = random.to_ne_bytes().repeat(round as usize % 9);
        assert!(program.call(RequestKind::Netlink, &body, &[], None).is_err());
    }
    assert_eq!(list(&mut program, nldev::RES_QP_GET).len(), 1, "the connection and its context are as they were");
}
