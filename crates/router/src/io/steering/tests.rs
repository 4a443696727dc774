//! Tests of the programs: on packets that `wire` builds, and in the kernel.

use super::*;
use rdmesh_nic::wire::{Header, ICRC_LEN, IpUdp, Op, Part, Service};
use rdmesh_verbs::{Gid, Psn, Vni};
use std::net::IpAddr;

/// A SEND through the tunnel, to queue pair `qpn`.
fn packet(is_v6: bool, is_sealed: bool, qpn: u32) -> Vec<u8> {
    let address =
        |n: u8| -> IpAddr { if is_v6 { [0xfd00, 0, 0, 0, 0, 0, 0, n.into()].into() } else { [10, 7, 0, n].into() } };
    let [source, dest] = [1, 2].map(|n| Gid::from_ip(address(n)));
    let ip = IpUdp { source, dest, traffic_class: 0xff, hop_limit: 64, flow_label: 0, id: 9, source_port: 0xffff };
    let op = Op::Send { part: Part::Only, imm: Some(u32::MAX), invalidate: None };
    // The bits around the number are not part of it.
    let header = Header { becn: true, ..Header::new(Service::Rc, op, Qpn::new(qpn), Psn::new(0xff_ffff)) };
    let around = if is_sealed { geneve::SEALED_LEN } else { geneve::LEN };
    let mut bytes = vec![0; around + ip.len() + header.len() + ICRC_LEN];
    let encode = if is_sealed { geneve::encode_sealed } else { geneve::encode };
    encode(Vni(0x12_3456), is_v6, &mut bytes[..around]);
    ip.encode(header.len() + ICRC_LEN, &mut bytes[around..]);
    header.encode(0, &mut bytes[around + ip.len()..]);
    bytes
}

/// The result of a classic program.
fn run_classic(program: &[Instruction], packet: &[u8]) -> u32 {
    let (mut at, mut number) = (0, 0);
    loop {
        let Instruction { code, jf, k, .. } = program[at];
        at += 1;
        match code {
            0x28 => number = u16::from_be_bytes(packet[k as usize..][..2].try_into().unwrap()).into(),
            0x20 => number = u32::from_be_bytes(packet[k as usize..][..4].try_into().unwrap()),
            0x15 => at += if number == k { 0 } else { jf.into() },
            0x05 => at += k as usize,
            0x54 => number &= k,
            0x94 => number %= k,
            0x16 => return number,
            _ => panic!("code {code:#x}"),
        }
    }
}

/// The key that a program looks up.
fn run_extended(program: &[Extended], packet: &[u8]) -> u32 {
    let (mut at, mut number) = (0, 0);
    loop {
        let Extended { code, offset, constant, .. } = program[at];
        at += 1;
        let from = constant.cast_unsigned() as usize;
        match code {
            LOAD_HALF_ABS => number = u16::from_be_bytes(packet[from..][..2].try_into().unwrap()).into(),
            LOAD_WORD_ABS => number = u32::from_be_bytes(packet[from..][..4].try_into().unwrap()),
            SKIP_UNLESS => at += if number == constant.cast_unsigned() { 0 } else { offset as usize },
            SKIP => at += offset as usize,
            AND => number &= constant.cast_unsigned(),
            STORE_WORD => return number,
            MOVE => {}
            _ => panic!("code {code:#x}"),
        }
    }
}

#[test]
fn both_programs_read_the_number_where_wire_writes_it() {
    for (is_v6, is_sealed) in [(false, false), (false, true), (true, false), (true, true)] {
        let around = if is_sealed { geneve::SEALED_LEN } else { geneve::LEN };
        for qpn in [0, 1, 17, 0x1234, 0xffff, 0x1_0000, 0x12_3456, 0xff_ffff] {
            let packet = packet(is_v6, is_sealed, qpn);
            let (_, inner) = geneve::decode(&packet).unwrap();
            let (_, udp) = IpUdp::decode(inner).unwrap();
            assert_eq!(Header::decode(udp).unwrap().0.dest, Qpn::new(qpn));
            assert_eq!(run_classic(&by_number(7, around), &packet), qpn % 7);
            assert_eq!(run_extended(&by_table(around as u32, 3), &packet), qpn % PLACES);
        }
    }
}
