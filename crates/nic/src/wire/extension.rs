//! Extension headers shared by several operations (IBA 9.3).

use super::Malformed;
use super::bytes::{Reader, u24};
use rdmesh_verbs::Key;

/// RDMA extended transport header: a range of the responder's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// Where it begins.
    pub addr: u64,
    /// The key to it.
    pub rkey: Key,
    /// Bytes of the whole message.
    pub len: u32,
}

/// ACK extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// The result.
    pub syndrome: Syndrome,
    /// Messages completed by the responder, 24 bits.
    pub msn: u32,
}

/// Result of a request, as the responder reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Success.
    Ack {
        /// Credit code, 5 bits; 31 where credits are not used.
        credits: u8,
    },
    /// No receive request was posted.
    Rnr {
        /// Timer code, 5 bits: how long to wait.
        timer: u8,
    },
    /// Failure.
    Nak(NakCode),
    /// The memory of the responder cannot be reached at present. Not of the specification, which has no word for it: only
    /// between routers of this kind, with the reserved bit.
    Slow {
        /// Timer code, 5 bits: how long to wait.
        timer: u8,
    },
}

impl Syndrome {
    /// Success without credits (IBA 9.7.7.2): rxe does not use them either.
    pub const ACK: Self = Self::Ack { credits: 31 };
}

/// Reason of a NAK (IBA 9.7.5.2.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing before this one.
    Sequence = 0,
    /// The request is not valid here.
    InvalidRequest = 1,
    /// The key does not allow it.
    RemoteAccess = 2,
    /// The responder failed.
    RemoteOperation = 3,
    /// The reliable datagram request is not valid.
    InvalidRd = 4,
}

impl Reth {
    pub(super) fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { addr: reader.u64()?, rkey: Key(reader.u32()?), len: reader.u32()? })
    }
}

impl Aeth {
    pub(super) fn bytes(self) -> [u8; 4] {
        let [a, b, c] = u24(self.msn);
        [self.syndrome.byte(), a, b, c]
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { syndrome: Syndrome::from_byte(reader.u8()?)?, msn: reader.u24()? })
    }
}

impl Syndrome {
    const fn byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::Rnr { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code as u8,
            Self::Slow { timer } => 0xa0 | timer & 0x1f,
        }
    }

    const fn from_byte(byte: u8) -> Result<Self, Malformed> {
        Ok(match (byte >> 5, byte & 0x1f) {
            (0, credits) => Self::Ack { credits },
            (1, timer) => Self::Rnr { timer },
            (3, 0) => Self::Nak(NakCode::Sequence),
            (3, 1) => Self::Nak(NakCode::InvalidRequest),
            (3, 2) => Self::Nak(NakCode::RemoteAccess),
            (3, 3) => Self::Nak(NakCode::RemoteOperation),
            (3, 4) => Self::Nak(NakCode::InvalidRd),
            (5, timer) => Self::Slow { timer },
            _ => return Err(Malformed::Syndrome),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_is_an_answer_or_refused() {
        for byte in 0..=u8::MAX {
            let expected = match byte {
                0x00..=0x1f => Ok(Syndrome::Ack { credits: byte }),
                0x20..=0x3f => Ok(Syndrome::Rnr { timer: byte - 0x20 }),
                0x60 => Ok(Syndrome::Nak(NakCode::Sequence)),
                0x61 => Ok(Syndrome::Nak(NakCode::InvalidRequest)),
                0x62 => Ok(Syndrome::Nak(NakCode::RemoteAccess)),
                0x63 => Ok(Syndrome::Nak(NakCode::RemoteOperation)),
                0x64 => Ok(Syndrome::Nak(NakCode::InvalidRd)),
                0xa0..=0xbf => Ok(Syndrome::Slow { timer: byte - 0xa0 }),
                _ => Err(Malformed::Syndrome),
            };
            assert_eq!(Syndrome::from_byte(byte), expected, "{byte:#x}");
            assert!(expected.is_err() || expected.map(Syndrome::byte) == Ok(byte));
        }
    }
}
