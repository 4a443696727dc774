//! Transport headers of a packet: base transport header and extension headers (IBA 9.2 to 9.6, annexes A17 and A19).

use super::bytes::{Reader, u24};
use super::opcode::{self, Kind, Tail};
use super::{Aeth, Malformed, Reth};
use rdmesh_verbs::{Key, Psn, Qkey, Qpn};

/// Transport headers of a packet. Reserved bits are not kept: they are sent as zero and ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The transport service, from the opcode.
    pub service: Service,
    /// The operation: the rest of the opcode, and the extension headers.
    pub op: Op,
    /// The receiver is to raise a solicited event.
    pub solicited: bool,
    /// The migration state. Some NICs set it, some do not; receivers ignore it.
    pub mig: bool,
    /// The partition.
    pub pkey: u16,
    /// Congestion met on the way here (forward).
    pub fecn: bool,
    /// Congestion met on the way there (backward).
    pub becn: bool,
    /// The destination queue pair.
    pub dest: Qpn,
    /// The responder is to acknowledge.
    pub ack_request: bool,
    /// The sender takes selective acknowledgements, and sends them. Only between rdmesh routers, with a reserved bit that others ignore.
    pub takes_selective: bool,
    /// It was sent before, or answers what was. Likewise.
    pub is_repeated: bool,
    /// In a request: selective acknowledgements are to carry [`super::Telemetry`]. In a selective acknowledgement: it does. Likewise.
    pub has_telemetry: bool,
    /// The packet's number.
    pub psn: Psn,
}

/// The default partition (IBA 10.9.1.2), with full membership.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// Offset of four bytes, the last three of which are the destination queue pair.
pub const DEST_WORD: usize = 4;

/// A transport service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification (IBA annex A17.9).
    Cnp,
}

/// The part of its message that a packet carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// All of it.
    Only,
}

impl Part {
    /// The part that begins and ends its message, or not.
    pub const fn of(is_first: bool, is_last: bool) -> Self {
        match (is_first, is_last) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    /// Whether a message begins.
    pub const fn is_first(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends.
    pub const fn is_last(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// The operation of a packet, with its extension headers.
///
/// Immediate data is opaque: the value whose bytes in memory are the bytes of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// SEND.
    Send {
        /// The part of the message.
        part: Part,
        /// Immediate data; only where the message ends.
        imm: Option<u32>,
        /// The receiver's key to invalidate; only where the message ends, and not with immediate data.
        invalidate: Option<Key>,
    },
    /// RDMA WRITE.
    Write {
        /// The part of the message.
        part: Part,
        /// The destination; only in the packet where the message begins.
        reth: Option<Reth>,
        /// Immediate data; only where the message ends.
        imm: Option<u32>,
    },
    /// RDMA READ request.
    ReadRequest(Reth),
    /// Atomic compare and swap.
    CompareSwap {
        /// The address.
        addr: u64,
        /// The key to it.
        rkey: Key,
        /// The value to compare with.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Atomic fetch and add.
    FetchAdd {
        /// The address.
        addr: u64,
        /// The key to it.
        rkey: Key,
        /// The addend.
        add: u64,
    },
    /// Eight bytes, the payload, written at once (IBA annex A19).
    AtomicWrite {
        /// Virtual address of the destination.
        reth: Reth,
    },
    /// Earlier WRITEs are made visible (IBA annex A19).
    Flush {
        /// Placement type, 4 bits: 1 global visibility, 2 persistence.
        kind: u8,
        /// Selectivity level, 2 bits: 0 the range, 1 the whole region.
        selectivity: u8,
        /// The range to flush.
        reth: Reth,
    },
    /// Response to a READ.
    ReadResponse {
        /// The part of the message.
        part: Part,
        /// The acknowledgement in it: in all but middle parts.
        aeth: Option<Aeth>,
    },
    /// An acknowledgement.
    Acknowledge(Aeth),
    /// Selective acknowledgement, with its contents in the payload ([`super::SelectiveAck`]). Only between rdmesh routers.
    SelectiveAcknowledge,
    /// Response to an atomic operation.
    AtomicAcknowledge {
        /// The acknowledgement in it.
        aeth: Aeth,
        /// The original value.
        original: u64,
    },
    /// A message of the datagram service.
    Datagram {
        /// The key to the receiver's queue pair.
        qkey: Qkey,
        /// The sender's queue pair.
        source: Qpn,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// A congestion notification, with its reserved bytes.
    Notification,
}

impl Header {
    /// A header in the default partition.
    pub const fn new(service: Service, op: Op, dest: Qpn, psn: Psn) -> Self {
        Self {
            service,
            op,
            solicited: false,
            mig: false,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest,
            ack_request: false,
            takes_selective: false,
            is_repeated: false,
            has_telemetry: false,
            psn,
        }
    }

    /// Bytes of the base transport header and the extension headers.
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        let mut len = BTH;
        self.op.extensions(|bytes| len += bytes.len());
        len
    }

    /// Writes [`Header::len`] bytes to `out`, which must have room for them, to precede a payload of `payload_len` bytes.
    ///
    /// The operation must be one that the service has.
    pub fn encode(&self, payload_len: usize, out: &mut [u8]) {
        let pad = (padded(payload_len) - payload_len) as u8;
        let flags = flag(self.solicited, SOLICITED) | flag(self.mig, MIG) | pad << PAD_SHIFT;
        let [pkey_high, pkey_low] = self.pkey.to_be_bytes();
        let congestion = flag(self.fecn, FECN) | flag(self.becn, BECN);
        let [dest_a, dest_b, dest_c] = u24(self.dest.value());
        let [psn_a, psn_b, psn_c] = u24(self.psn.value());
        let bth = [
            opcode::encode(self.service, &self.op),
            flags,
            pkey_high,
            pkey_low,
            congestion,
            dest_a,
            dest_b,
            dest_c,
            flag(self.ack_request, ACK_REQUEST)
                | flag(self.takes_selective, TAKES_SELECTIVE)
                | flag(self.is_repeated, REPEATED)
                | flag(self.has_telemetry, TELEMETRY),
            psn_a,
            psn_b,
            psn_c,
        ];
        out[..BTH].copy_from_slice(&bth);
        let mut at = BTH;
        self.op.extensions(|bytes| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        });
    }

    /// Reads a packet, from its base transport header to its invariant CRC, which [`super::icrc`] checks. Returns the
    /// payload too, without padding. The payload's length is not checked: the opcode alone does not determine it.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut reader = Reader::new(bytes);
        let [code, flags, pkey @ ..] = reader.take::<4>()?;
        let [congestion, dest @ ..] = reader.take::<4>()?;
        let [ack, psn @ ..] = reader.take::<4>()?;
        if flags & VERSION_MASK != 0 {
            return Err(Malformed::Version);
        }
        let (service, kind) = opcode::decode(code).ok_or(Malformed::Opcode)?;
        let header = Self {
            service,
            op: Op::read(kind, &mut reader)?,
            solicited: flags & SOLICITED != 0,
            mig: flags & MIG != 0,
            pkey: u16::from_be_bytes(pkey),
            fecn: congestion & FECN != 0,
            becn: congestion & BECN != 0,
            dest: Qpn::new(from_u24(dest)),
            ack_request: ack & ACK_REQUEST != 0,
            takes_selective: ack & TAKES_SELECTIVE != 0,
            is_repeated: ack & REPEATED != 0,
            has_telemetry: ack & TELEMETRY != 0,
            psn: Psn::new(from_u24(psn)),
        };
        let rest = reader.rest();
        let pad = usize::from(flags >> PAD_SHIFT & PAD_MASK);
        let len = rest.len().checked_sub(ICRC_LEN + pad).ok_or(Malformed::TooShort)?;
        // IBA 9.2.4: payload and padding are a multiple of four bytes, so the padding has one possible length.
        if padded(len) != len + pad { Err(Malformed::Length) } else { Ok((header, &rest[..len])) }
    }
}

/// `len` bytes with the padding that follows them.
pub const fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

impl Op {
    /// Whether a responder sends it.
    pub const fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Acknowledge(_)
                | Self::SelectiveAcknowledge
                | Self::AtomicAcknowledge { .. }
                | Self::ReadResponse { .. }
        )
    }

    /// Calls `put` with the bytes of each extension header, in order.
    #[inline(always)]
    fn extensions(&self, mut put: impl FnMut(&[u8])) {
        match *self {
            Self::Send { imm, invalidate, .. } => {
                if let Some(imm) = imm {
                    put(&imm.to_ne_bytes());
                } else if let Some(key) = invalidate {
                    put(&key.0.to_be_bytes());
                }
            }
            Self::Write { reth, imm, .. } => {
                if let Some(reth) = reth {
                    put(&reth.bytes());
                }
                if let Some(imm) = imm {
                    put(&imm.to_ne_bytes());
                }
            }
            Self::ReadRequest(reth) | Self::AtomicWrite { reth } => put(&reth.bytes()),
            Self::CompareSwap { addr, rkey, compare, swap } => put(&atomic_eth(addr, rkey, swap, compare)),
            Self::FetchAdd { addr, rkey, add } => put(&atomic_eth(addr, rkey, add, 0)),
            Self::Flush { kind, selectivity, reth } => {
                put(&[0, 0, 0, selectivity << 4 & 0x30 | kind & 0xf]);
                put(&reth.bytes());
            }
            Self::ReadResponse { aeth, .. } => {
                if let Some(aeth) = aeth {
                    put(&aeth.bytes());
                }
            }
            Self::SelectiveAcknowledge => {}
            Self::Acknowledge(aeth) => put(&aeth.bytes()),
            Self::AtomicAcknowledge { aeth, original } => {
                put(&aeth.bytes());
                put(&original.to_be_bytes());
            }
            Self::Datagram { qkey, source, imm } => {
                put(&qkey.0.to_be_bytes());
                put(&source.value().to_be_bytes());
                if let Some(imm) = imm {
                    put(&imm.to_ne_bytes());
                }
            }
            Self::Notification => put(&[0; NOTIFICATION]),
        }
    }

    fn read(kind: Kind, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match kind {
            Kind::Send(part, tail) => Self::Send {
                part,
                imm: if tail == Tail::Imm { Some(read_imm(reader)?) } else { None },
                invalidate: if tail == Tail::Invalidate { Some(Key(reader.u32()?)) } else { None },
            },
            Kind::Write(part, has_imm) => Self::Write {
                part,
                reth: part.is_first().then(|| Reth::read(reader)).transpose()?,
                imm: has_imm.then(|| read_imm(reader)).transpose()?,
            },
            Kind::ReadRequest => Self::ReadRequest(Reth::read(reader)?),
            Kind::AtomicWrite => Self::AtomicWrite { reth: Reth::read(reader)? },
            Kind::CompareSwap | Kind::FetchAdd => Self::read_atomic(kind, reader)?,
            Kind::Flush => {
                let bits = reader.u32()? as u8;
                Self::Flush { kind: bits & 0xf, selectivity: bits >> 4 & 3, reth: Reth::read(reader)? }
            }
            Kind::ReadResponse(part) => {
                let has_aeth = part != Part::Middle;
                Self::ReadResponse { part, aeth: has_aeth.then(|| Aeth::read(reader)).transpose()? }
            }
            Kind::SelectiveAcknowledge => Self::SelectiveAcknowledge,
            Kind::Acknowledge => Self::Acknowledge(Aeth::read(reader)?),
            Kind::AtomicAcknowledge => Self::AtomicAcknowledge { aeth: Aeth::read(reader)?, original: reader.u64()? },
            Kind::Datagram(has_imm) => Self::Datagram {
                qkey: Qkey(reader.u32()?),
                source: Qpn::new(reader.u32()?),
                imm: has_imm.then(|| read_imm(reader)).transpose()?,
            },
            Kind::Notification => {
                reader.take::<NOTIFICATION>()?;
                Self::Notification
            }
        })
    }

    fn read_atomic(kind: Kind, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (addr, rkey) = (reader.u64()?, Key(reader.u32()?));
        let (operand, compare) = (reader.u64()?, reader.u64()?);
        Ok(if kind == Kind::CompareSwap {
            Self::CompareSwap { addr, rkey, compare, swap: operand }
        } else {
            Self::FetchAdd { addr, rkey, add: operand }
        })
    }
}

fn atomic_eth(addr: u64, rkey: Key, operand: u64, compare: u64) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..8].copy_from_slice(&addr.to_be_bytes());
    bytes[8..12].copy_from_slice(&rkey.0.to_be_bytes());
    bytes[12..20].copy_from_slice(&operand.to_be_bytes());
    bytes[20..].copy_from_slice(&compare.to_be_bytes());
    bytes
}

fn read_imm(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    reader.take().map(u32::from_ne_bytes)
}

fn from_u24([a, b, c]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

const fn flag(is_set: bool, bit: u8) -> u8 {
    if is_set { bit } else { 0 }
}

/// Bytes of the base transport header.
pub(super) const BTH: usize = 12;
/// Bytes of the invariant CRC.
pub const ICRC_LEN: usize = 4;
/// Reserved bytes of a congestion notification (IBA annex A17.9.3).
const NOTIFICATION: usize = 16;
const SOLICITED: u8 = 0x80;
const MIG: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const PAD_MASK: u8 = 3;
const VERSION_MASK: u8 = 0xf;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;
const TAKES_SELECTIVE: u8 = 0x40;
const REPEATED: u8 = 0x20;
const TELEMETRY: u8 = 0x10;

#[cfg(test)]
mod tests;
