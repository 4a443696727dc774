//! The header and the fields of management datagrams (IBA 13.4.3, 16.7.1).

use super::types::MAD_LEN;
use arrayvec::ArrayVec;

/// The messages of the connection manager (IBA 16.7.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u16)]
#[allow(missing_docs)]
pub enum Kind {
    Req = 0x10,
    Mra = 0x11,
    Rej = 0x12,
    Rep = 0x13,
    Rtu = 0x14,
    Dreq = 0x15,
    Drep = 0x16,
    SidrReq = 0x17,
    SidrRep = 0x18,
    Lap = 0x19,
    Apr = 0x1a,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = Self::ALL.len();
    /// All of them, in the order of the counters.
    pub const ALL: [Self; 11] = [
        Self::Req,
        Self::Mra,
        Self::Rej,
        Self::Rep,
        Self::Rtu,
        Self::Dreq,
        Self::Drep,
        Self::SidrReq,
        Self::SidrRep,
        Self::Lap,
        Self::Apr,
    ];

    /// Its place in the arrays of [`CmCounters`](super::CmCounters).
    pub const fn index(self) -> usize {
        self as usize - Self::Req as usize
    }

    fn from_attribute(attribute: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == attribute)
    }
}

/// A datagram's bytes.
pub(super) type Bytes = [u8; MAD_LEN];

/// An empty message.
pub(super) fn new(kind: Kind, tid: u64) -> Bytes {
    let mut bytes = [0; MAD_LEN];
    bytes[..4].copy_from_slice(&HEADER);
    bytes[TID..TID + 8].copy_from_slice(&tid.to_be_bytes());
    bytes[ATTRIBUTE..ATTRIBUTE + 2].copy_from_slice(&(kind as u16).to_be_bytes());
    bytes
}

/// The kind of a message; none if it is not one of the connection manager or not of its version.
pub(super) fn kind(bytes: &Bytes) -> Option<Kind> {
    (bytes[..4] == HEADER).then(|| Kind::from_attribute(u16::from_be_bytes(array(bytes, ATTRIBUTE)))).flatten()
}

/// The transaction ID, which an answer repeats.
pub(super) fn tid(bytes: &Bytes) -> u64 {
    u64::from_be_bytes(array(bytes, TID))
}

/// A field of at most 64 bits. Its place is counted from the end of the header, bits from the most significant one.
#[derive(Clone, Copy)]
pub(super) struct Field {
    byte: usize,
    bit: u32,
    width: u32,
}

/// Whole bytes.
pub(super) const fn field(byte: usize, width: u32) -> Field {
    bits(byte, 0, width)
}

/// Bits within a byte and those after it.
pub(super) const fn bits(byte: usize, bit: u32, width: u32) -> Field {
    assert!(bit < 8 && bit + width <= 64);
    Field { byte: HEADER_LEN + byte, bit, width }
}

impl Field {
    pub(super) fn read(self, bytes: &Bytes) -> u64 {
        let whole = bytes[self.byte..self.end()].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        whole >> self.shift() & self.mask()
    }

    pub(super) fn write(self, bytes: &mut Bytes, value: u64) {
        let range = self.byte..self.end();
        let old = bytes[range.clone()].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let mask = self.mask() << self.shift();
        let new = old & !mask | value << self.shift() & mask;
        let len = range.len();
        bytes[range].copy_from_slice(&new.to_be_bytes()[8 - len..]);
    }

    pub(super) fn u8(self, bytes: &Bytes) -> u8 {
        debug_assert!(self.width <= 8);
        self.read(bytes) as u8
    }

    pub(super) fn u16(self, bytes: &Bytes) -> u16 {
        debug_assert!(self.width <= 16);
        self.read(bytes) as u16
    }

    pub(super) fn u32(self, bytes: &Bytes) -> u32 {
        debug_assert!(self.width <= 32);
        self.read(bytes) as u32
    }

    pub(super) fn flag(self, bytes: &Bytes) -> bool {
        self.read(bytes) != 0
    }

    fn end(self) -> usize {
        self.byte + (self.bit + self.width).div_ceil(8) as usize
    }

    fn shift(self) -> u32 {
        (self.end() - self.byte) as u32 * 8 - self.bit - self.width
    }

    fn mask(self) -> u64 {
        u64::MAX >> (64 - self.width)
    }
}

/// `N` bytes from `at` on, counted from the end of the header.
pub(super) fn bytes_at<const N: usize>(bytes: &Bytes, at: usize) -> [u8; N] {
    array(bytes, HEADER_LEN + at)
}

/// The same as a vector.
pub(super) fn vec_at<const N: usize>(bytes: &Bytes, at: usize) -> ArrayVec<u8, N> {
    ArrayVec::from(bytes_at::<N>(bytes, at))
}

/// Writes `value` from `at` on, counted from the end of the header.
pub(super) fn put(bytes: &mut Bytes, at: usize, value: &[u8]) {
    bytes[HEADER_LEN + at..][..value.len()].copy_from_slice(value);
}

fn array<const N: usize>(bytes: &Bytes, at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Base version 1, class communication management, class version 2, method Send.
const HEADER: [u8; 4] = [1, 7, 2, 3];
const HEADER_LEN: usize = 24;
const TID: usize = 8;
const ATTRIBUTE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_field_holds_what_was_written_and_touches_nothing_else(
            byte in 0..220usize, bit in 0..8u32, width in 1..=56u32, value: u64, noise: [u8; 32],
        ) {
            let mut before = [0; MAD_LEN];
            before.iter_mut().zip(noise.iter().cycle()).for_each(|(to, from)| *to = *from);
            let field = bits(byte, bit, width);
            let mut after = before;
            field.write(&mut after, value);
            prop_assert_eq!(field.read(&after), value & (u64::MAX >> (64 - width)));
            field.write(&mut after, field.read(&before));
            prop_assert_eq!(after, before);
        }
    }

    #[test]
    fn other_classes_versions_and_methods_are_no_messages() {
        let message = new(Kind::Req, 1);
        assert_eq!((kind(&message), tid(&message)), (Some(Kind::Req), 1));
        for at in [0, 1, 2, 3, 16, 17] {
            let mut other = message;
            other[at] ^= 0x80;
            assert_eq!(kind(&other), None);
        }
    }
}
