//! Opcode table: the headers of each opcode (IBA 9.2.1, table 38; annexes A17.9 and A19).

use super::{Op, Part, Service};

/// The headers that an opcode requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Send(Part, Tail),
    /// With immediate data or without; RETH where the message begins.
    Write(Part, bool),
    ReadRequest,
    ReadResponse(Part),
    Acknowledge,
    AtomicAcknowledge,
    SelectiveAcknowledge,
    CompareSwap,
    FetchAdd,
    Flush,
    AtomicWrite,
    /// With immediate data or without.
    Datagram(bool),
    Notification,
}

/// Extra header at the end of a SEND: immediate data or a key to invalidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tail {
    None,
    Imm,
    Invalidate,
}

/// The opcode of an operation that the service has.
pub(super) fn encode(service: Service, op: &Op) -> u8 {
    let code = match op {
        Op::SelectiveAcknowledge => SELECTIVE_ACKNOWLEDGE,
        _ => service_bits(service) | operation_bits(op),
    };
    debug_assert!(decode(code).is_some(), "{service:?} has no {op:?}");
    code
}

/// The service and headers of an opcode; none for an unknown one.
pub(super) fn decode(code: u8) -> Option<(Service, Kind)> {
    Some(match (code & 0xe0, code & 0x1f) {
        _ if code == SELECTIVE_ACKNOWLEDGE => (Service::Rc, Kind::SelectiveAcknowledge),
        (RC, low) => (Service::Rc, connected(low)?),
        (UC, low @ 0..=0xb) => (Service::Uc, connected(low)?),
        (UD, 0x04) => (Service::Ud, Kind::Datagram(false)),
        (UD, 0x05) => (Service::Ud, Kind::Datagram(true)),
        (CNP, 0x01) => (Service::Cnp, Kind::Notification),
        _ => return None,
    })
}

fn connected(low: u8) -> Option<Kind> {
    Some(match low {
        0x00 => Kind::Send(Part::First, Tail::None),
        0x01 => Kind::Send(Part::Middle, Tail::None),
        0x02 => Kind::Send(Part::Last, Tail::None),
        0x03 => Kind::Send(Part::Last, Tail::Imm),
        0x04 => Kind::Send(Part::Only, Tail::None),
        0x05 => Kind::Send(Part::Only, Tail::Imm),
        0x06 => Kind::Write(Part::First, false),
        0x07 => Kind::Write(Part::Middle, false),
        0x08 => Kind::Write(Part::Last, false),
        0x09 => Kind::Write(Part::Last, true),
        0x0a => Kind::Write(Part::Only, false),
        0x0b => Kind::Write(Part::Only, true),
        0x0c => Kind::ReadRequest,
        0x0d => Kind::ReadResponse(Part::First),
        0x0e => Kind::ReadResponse(Part::Middle),
        0x0f => Kind::ReadResponse(Part::Last),
        0x10 => Kind::ReadResponse(Part::Only),
        0x11 => Kind::Acknowledge,
        0x12 => Kind::AtomicAcknowledge,
        0x13 => Kind::CompareSwap,
        0x14 => Kind::FetchAdd,
        0x16 => Kind::Send(Part::Last, Tail::Invalidate),
        0x17 => Kind::Send(Part::Only, Tail::Invalidate),
        0x1c => Kind::Flush,
        0x1d => Kind::AtomicWrite,
        _ => return None,
    })
}

fn operation_bits(op: &Op) -> u8 {
    match *op {
        Op::Send { part: Part::First, .. } => 0x00,
        Op::Send { part: Part::Middle, .. } => 0x01,
        Op::Send { part: Part::Last, imm: Some(_), .. } => 0x03,
        Op::Send { part: Part::Last, invalidate: Some(_), .. } => 0x16,
        Op::Send { part: Part::Last, .. } => 0x02,
        Op::Send { part: Part::Only, imm: Some(_), .. } => 0x05,
        Op::Send { part: Part::Only, invalidate: Some(_), .. } => 0x17,
        Op::Send { part: Part::Only, .. } => 0x04,
        Op::Write { part: Part::First, .. } => 0x06,
        Op::Write { part: Part::Middle, .. } => 0x07,
        Op::Write { part: Part::Last, imm, .. } => 0x08 | u8::from(imm.is_some()),
        Op::Write { part: Part::Only, imm, .. } => 0x0a | u8::from(imm.is_some()),
        Op::ReadRequest(_) => 0x0c,
        Op::ReadResponse { part: Part::First, .. } => 0x0d,
        Op::ReadResponse { part: Part::Middle, .. } => 0x0e,
        Op::ReadResponse { part: Part::Last, .. } => 0x0f,
        Op::ReadResponse { part: Part::Only, .. } => 0x10,
        Op::Acknowledge(_) | Op::SelectiveAcknowledge => 0x11,
        Op::AtomicAcknowledge { .. } => 0x12,
        Op::CompareSwap { .. } => 0x13,
        Op::FetchAdd { .. } => 0x14,
        Op::Flush { .. } => 0x1c,
        Op::AtomicWrite { .. } => 0x1d,
        Op::Datagram { imm, .. } => 0x04 | u8::from(imm.is_some()),
        Op::Notification => 0x01,
    }
}

const fn service_bits(service: Service) -> u8 {
    match service {
        Service::Rc => RC,
        Service::Uc => UC,
        Service::Ud => UD,
        Service::Cnp => CNP,
    }
}

/// Of the manufacturer's range, as MRC's.
const SELECTIVE_ACKNOWLEDGE: u8 = 0xdc;
const RC: u8 = 0x00;
const UC: u8 = 0x20;
const UD: u8 = 0x60;
const CNP: u8 = 0x80;
