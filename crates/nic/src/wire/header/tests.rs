//! Tests of transport headers: every operation survives encoding and parsing.

use super::*;
use crate::wire::{NakCode, Syndrome};
use proptest::option;
use proptest::prelude::*;

/// Bytes of the headers after the BTH, by the low five bits of a connected opcode (IBA 9.2.1, table 38; annex A19).
const CONNECTED: [(u8, usize); 25] = [
    (0x00, 0),
    (0x01, 0),
    (0x02, 0),
    (0x03, IMM),
    (0x04, 0),
    (0x05, IMM),
    (0x06, RETH),
    (0x07, 0),
    (0x08, 0),
    (0x09, IMM),
    (0x0a, RETH),
    (0x0b, RETH + IMM),
    (0x0c, RETH),
    (0x0d, AETH),
    (0x0e, 0),
    (0x0f, AETH),
    (0x10, AETH),
    (0x11, AETH),
    (0x12, AETH + 8),
    (0x13, 28),
    (0x14, 28),
    (0x16, 4),
    (0x17, 4),
    (0x1c, 4 + RETH),
    (0x1d, RETH),
];
const IMM: usize = 4;
const RETH: usize = 16;
const AETH: usize = 4;

fn extension_len(code: u8) -> Option<usize> {
    let connected = |low: u8| CONNECTED.iter().find(|(code, _)| *code == low).map(|(_, len)| *len);
    match code {
        0x00..=0x1f => connected(code),
        0x20..=0x2b => connected(code - 0x20),
        0x64 => Some(8),
        0x65 => Some(8 + IMM),
        0x81 => Some(16),
        0xdc => Some(0),
        _ => None,
    }
}

#[test]
fn every_opcode_has_exactly_its_headers() {
    for code in 0..=u8::MAX {
        let mut packet = vec![0; BTH + 28 + ICRC_LEN];
        packet[0] = code;
        let Some(len) = extension_len(code) else {
            assert_eq!(Header::decode(&packet), Err(Malformed::Opcode), "{code:#x}");
            continue;
        };
        let (header, payload) = Header::decode(&packet).expect("an opcode");
        assert_eq!((header.len(), payload.len()), (BTH + len, 28 - len), "{code:#x}");
        assert_eq!(Header::decode(&packet[..BTH + len + ICRC_LEN - 1]), Err(Malformed::TooShort), "{code:#x}");
        let mut again = vec![0xff; header.len()];
        header.encode(payload.len(), &mut again);
        assert_eq!(again, packet[..header.len()], "{code:#x}");
    }
}

#[test]
fn every_field_lies_where_the_specification_says() {
    let header = Header {
        service: Service::Rc,
        op: Op::Write {
            part: Part::Only,
            reth: Some(Reth { addr: 0x0102_0304_0506_0708, rkey: Key(0x090a_0b0c), len: 0x0d0e_0f10 }),
            imm: Some(u32::from_ne_bytes([0x11, 0x12, 0x13, 0x14])),
        },
        solicited: true,
        mig: true,
        pkey: 0xffff,
        fecn: true,
        becn: true,
        dest: Qpn::new(0xa1_a2a3),
        ack_request: true,
        takes_selective: true,
        is_repeated: true,
        has_telemetry: true,
        psn: Psn::new(0xb1_b2b3),
    };
    let mut bytes = [0; 32];
    header.encode(5, &mut bytes);
    let expected = [0x0b, 0xf0, 0xff, 0xff, 0xc0, 0xa1, 0xa2, 0xa3, 0xf0, 0xb1, 0xb2, 0xb3];
    assert_eq!(bytes[..BTH], expected);
    assert_eq!(bytes[BTH..], std::array::from_fn::<u8, 20, _>(|at| at as u8 + 1));
    let plain = Header {
        solicited: false,
        mig: false,
        fecn: false,
        becn: false,
        ack_request: false,
        takes_selective: false,
        is_repeated: false,
        has_telemetry: false,
        ..header
    };
    plain.encode(8, &mut bytes);
    assert_eq!((bytes[1], bytes[4], bytes[8]), (0, 0, 0));
}

#[test]
fn atomics_have_their_operands_where_the_specification_says() {
    let (addr, rkey) = (1, Key(2));
    let swap = Op::CompareSwap { addr, rkey, compare: 3, swap: 4 };
    let add = Op::FetchAdd { addr, rkey, add: 4 };
    for (op, compare) in [(swap, 3), (add, 0)] {
        let mut bytes = Vec::new();
        op.extensions(|part| bytes.extend_from_slice(part));
        assert_eq!(bytes[12..], [0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, compare]);
    }
}

#[test]
fn a_packet_whose_padding_cannot_be_is_refused() {
    let mut packet = [0; BTH + 8 + ICRC_LEN];
    packet[0] = 0x04;
    for (pad, payload) in [(0, 8), (1, 7), (2, 6), (3, 5)] {
        packet[1] = pad << PAD_SHIFT;
        assert_eq!(Header::decode(&packet).map(|(_, bytes)| bytes.len()), Ok(payload));
        assert_eq!(Header::decode(&packet[..packet.len() - 1]), Err(Malformed::Length));
    }
    assert_eq!(Header::decode(&packet[..BTH + ICRC_LEN]), Err(Malformed::TooShort));
    packet[1] = 1;
    assert_eq!(Header::decode(&packet), Err(Malformed::Version));
}

#[test]
fn reserved_bits_are_ignored() {
    let mut packet = [0; BTH + 16 + ICRC_LEN];
    packet[0] = 0x81;
    let clean = Header::decode(&packet).map(|(header, _)| header);
    packet[4] |= 0x3f;
    packet[8] |= 0x0f;
    packet[BTH..].fill(0xff);
    assert_eq!(Header::decode(&packet).map(|(header, _)| header), clean);
}

prop_compose! {
    fn reth()(addr: u64, rkey: u32, len: u32) -> Reth {
        Reth { addr, rkey: Key(rkey), len }
    }
}

prop_compose! {
    fn aeth()(syndrome in syndrome(), msn in 0..1u32 << 24) -> Aeth {
        Aeth { syndrome, msn }
    }
}

fn syndrome() -> impl Strategy<Value = Syndrome> {
    let codes = vec![
        NakCode::Sequence,
        NakCode::InvalidRequest,
        NakCode::RemoteAccess,
        NakCode::RemoteOperation,
        NakCode::InvalidRd,
    ];
    prop_oneof![
        (0..32u8).prop_map(|credits| Syndrome::Ack { credits }),
        (0..32u8).prop_map(|timer| Syndrome::Rnr { timer }),
        (0..32u8).prop_map(|timer| Syndrome::Slow { timer }),
        prop::sample::select(codes).prop_map(Syndrome::Nak),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    prop::sample::select(vec![Part::First, Part::Middle, Part::Last, Part::Only])
}

fn message() -> impl Strategy<Value = Op> {
    let send = (part(), option::of(any::<u32>())).prop_map(|(part, imm)| Op::Send {
        part,
        imm: imm.filter(|_| part.is_last()),
        invalidate: None,
    });
    let write = (part(), reth(), option::of(any::<u32>())).prop_map(|(part, reth, imm)| Op::Write {
        part,
        reth: part.is_first().then_some(reth),
        imm: imm.filter(|_| part.is_last()),
    });
    prop_oneof![send, write]
}

fn reliable() -> impl Strategy<Value = Op> {
    let invalidate = (any::<bool>(), any::<u32>()).prop_map(|(only, key)| Op::Send {
        part: if only { Part::Only } else { Part::Last },
        imm: None,
        invalidate: Some(Key(key)),
    });
    let compare_swap = any::<(u64, u32, u64, u64)>().prop_map(|(addr, rkey, compare, swap)| Op::CompareSwap {
        addr,
        rkey: Key(rkey),
        compare,
        swap,
    });
    let fetch_add = any::<(u64, u32, u64)>().prop_map(|(addr, rkey, add)| Op::FetchAdd { addr, rkey: Key(rkey), add });
    let response = (part(), aeth())
        .prop_map(|(part, aeth)| Op::ReadResponse { part, aeth: (part != Part::Middle).then_some(aeth) });
    prop_oneof![
        2 => message(),
        1 => invalidate,
        1 => reth().prop_map(Op::ReadRequest),
        1 => compare_swap,
        1 => fetch_add,
        1 => reth().prop_map(|reth| Op::AtomicWrite { reth }),
        1 => (0..16u8, 0..4u8, reth())
            .prop_map(|(kind, selectivity, reth)| Op::Flush { kind, selectivity, reth }),
        1 => response,
        1 => aeth().prop_map(Op::Acknowledge),
        1 => Just(Op::SelectiveAcknowledge),
        1 => (aeth(), any::<u64>()).prop_map(|(aeth, original)| Op::AtomicAcknowledge { aeth, original }),
    ]
}

fn datagram() -> impl Strategy<Value = Op> {
    (any::<(u32, u32)>(), option::of(any::<u32>())).prop_map(|((qkey, source), imm)| Op::Datagram {
        qkey: Qkey(qkey),
        source: Qpn::new(source),
        imm,
    })
}

prop_compose! {
    fn header()(
        (service, op) in prop_oneof![
            12 => reliable().prop_map(|op| (Service::Rc, op)),
            3 => message().prop_map(|op| (Service::Uc, op)),
            2 => datagram().prop_map(|op| (Service::Ud, op)),
            1 => Just((Service::Cnp, Op::Notification)),
        ],
        (solicited, mig, fecn, becn) in any::<(bool, bool, bool, bool)>(),
        (ack_request, takes_selective, is_repeated, has_telemetry) in any::<(bool, bool, bool, bool)>(),
        pkey: u16,
        dest: u32,
        psn: u32,
    ) -> Header {
        let (dest, psn) = (Qpn::new(dest), Psn::new(psn));
        Header { service, op, solicited, mig, pkey, fecn, becn, dest, ack_request, takes_selective, is_repeated, has_telemetry, psn }
    }
}

fn packet(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0xee; header.len()];
    header.encode(payload.len(), &mut packet);
    packet.extend_from_slice(payload);
    packet.resize(header.len() + padded(payload.len()) + ICRC_LEN, 0);
    packet
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_encoded_is_decoded(header in header(), payload in prop::collection::vec(any::<u8>(), 0..=4096)) {
        let packet = packet(&header, &payload);
        prop_assert_eq!(Header::decode(&packet), Ok((header, &payload[..])));
    }

    #[test]
    fn a_truncated_or_altered_packet_is_decoded_without_panic(
        header in header(),
        len in 0..64usize,
        cut: prop::sample::Index,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut packet = packet(&header, &vec![0; len]);
        for (at, bits) in flips {
            let at = at.index(packet.len());
            packet[at] ^= bits;
        }
        let end = cut.index(packet.len() + 1);
        let _ = Header::decode(&packet[..end]);
    }

    #[test]
    fn whatever_is_decoded_is_encoded_again(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok((header, payload)) = Header::decode(&bytes) {
            let again = packet(&header, payload);
            prop_assert_eq!(Header::decode(&again), Ok((header, payload)));
        }
    }
}
