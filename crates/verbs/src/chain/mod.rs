//! Encodings of chains: queues whose work requests modify later work requests.
//!
//! Pure numbers and layouts, which the NIC and the tools that write chains share. A send queue's element (`rxe_send_wqe`) has
//! a *control word* at bytes 8–15, which a COMPARE_SWAP can test and replace at once:
//!
//! | byte 15, bit 7 | the word |
//! |---|---|
//! | 0 | as the kernel's ABI has it: bytes 12–15 are the opcode, bytes 8–11 are not used |
//! | 1 | chain encoding: byte 15 has the operation (bits 0–5) and QUIET (bit 6), bytes 8–14 an operand of 56 bits |

mod counts;
mod request;

pub use counts::{Counts, steps};
pub use request::{Args, BadRequest, Ordering, Request, Wide, offset};

use crate::WcOpcode;

/// An operation of a managed queue's work request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum ChainOp {
    Write,
    WriteImm,
    Send,
    SendImm,
    Read,
    CompareSwap,
    FetchAdd,
    /// COMPARE_SWAP of the bits of two masks.
    MaskedCompareSwap,
    /// FETCH_ADD without carries out of the bits of a boundary mask.
    MaskedFetchAdd,
    /// Checks and moves nothing, and completes.
    Nop,
    /// The queue stands still until a completion queue has had so many completions.
    Wait,
    /// Lets a send queue execute up to an index.
    Enable,
    /// Lets a receive queue take messages up to an index.
    RecvEnable,
    /// Unsigned 64-bit minimum; the result is the old value.
    Min,
    /// Unsigned 64-bit maximum; the result is the old value.
    Max,
    /// COMPARE_SWAP of the bits of two masks in sixteen bytes; see [`Wide`].
    WideCompareSwap,
}

/// Class of an operation, for the cost of chains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Moves data. A NOP stands for an operation that moves data.
    Copy,
    /// Changes a word and returns the old one.
    Atomic,
    /// Orders other requests.
    Order,
}

impl ChainOp {
    /// All operations.
    pub const ALL: [Self; 16] = [
        Self::Write,
        Self::WriteImm,
        Self::Send,
        Self::SendImm,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::MaskedCompareSwap,
        Self::MaskedFetchAdd,
        Self::Nop,
        Self::Wait,
        Self::Enable,
        Self::RecvEnable,
        Self::Min,
        Self::Max,
        Self::WideCompareSwap,
    ];

    /// The opcode in the kernel's ABI. NOP and its successors are of the range that `enum ib_wr_opcode` leaves to drivers
    /// (`IB_WR_RESERVED1` is 0xf0); the masked atomics are `IB_WR_MASKED_ATOMIC_*`.
    pub const fn opcode(self) -> u32 {
        match self {
            Self::Write => 0,
            Self::WriteImm => 1,
            Self::Send => 2,
            Self::SendImm => 3,
            Self::Read => 4,
            Self::CompareSwap => 5,
            Self::FetchAdd => 6,
            Self::MaskedCompareSwap => 12,
            Self::MaskedFetchAdd => 13,
            Self::Nop => 0xf0,
            Self::Wait => 0xf1,
            Self::Enable => 0xf2,
            Self::RecvEnable => 0xf3,
            Self::Min => 0xf4,
            Self::Max => 0xf5,
            Self::WideCompareSwap => 0xf6,
        }
    }

    /// The operation of an opcode of the kernel's ABI.
    pub fn from_opcode(opcode: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.opcode() == opcode)
    }

    /// Bits 0–5 of byte 15 in the chain encoding: the opcode, where 0xf0 and above begin at 0x30.
    pub const fn code(self) -> u8 {
        match self.opcode() {
            opcode @ 0xf0.. => (opcode - 0xf0 + 0x30) as u8,
            opcode => opcode as u8,
        }
    }

    /// The operation of bits 0–5 of byte 15.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.code() == code)
    }

    /// The name in listings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE_IMM",
            Self::Send => "SEND",
            Self::SendImm => "SEND_IMM",
            Self::Read => "READ",
            Self::CompareSwap => "CAS",
            Self::FetchAdd => "ADD",
            Self::MaskedCompareSwap => "MASKED_CAS",
            Self::MaskedFetchAdd => "MASKED_ADD",
            Self::Nop => "NOP",
            Self::Wait => "WAIT",
            Self::Enable => "ENABLE",
            Self::RecvEnable => "RECV_ENABLE",
            Self::Min => "MIN",
            Self::Max => "MAX",
            Self::WideCompareSwap => "WIDE_CAS",
        }
    }

    /// The operation of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }

    /// The opcode of its completion: the verbs know none for an operation that moves nothing, nor for the other atomics.
    pub const fn wc_opcode(self) -> WcOpcode {
        match self {
            Self::Write | Self::WriteImm => WcOpcode::RdmaWrite,
            Self::Read => WcOpcode::RdmaRead,
            Self::CompareSwap | Self::MaskedCompareSwap => WcOpcode::CompareSwap,
            Self::FetchAdd | Self::MaskedFetchAdd | Self::Min | Self::Max => WcOpcode::FetchAdd,
            _ => WcOpcode::Send,
        }
    }

    /// Class of the operation.
    pub const fn class(self) -> Class {
        match self {
            Self::Write | Self::WriteImm | Self::Send | Self::SendImm | Self::Read | Self::Nop => Class::Copy,
            Self::Wait | Self::Enable | Self::RecvEnable => Class::Order,
            _ => Class::Atomic,
        }
    }

    /// Bytes that an atomic operation changes, and whose old content it returns.
    pub const fn width(self) -> usize {
        if matches!(self, Self::WideCompareSwap) { 16 } else { 8 }
    }

    /// Whether the operation changes a word of [`Self::width`] bytes and returns the old one.
    pub fn is_atomic(self) -> bool {
        self.class() == Class::Atomic
    }

    /// Whether the operation sends the data of its gather list.
    pub const fn sends_data(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm | Self::Send | Self::SendImm)
    }

    /// Whether the result is written through the scatter list.
    pub fn returns_data(self) -> bool {
        self == Self::Read || self.is_atomic()
    }

    /// Whether the peer finds immediate data.
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::WriteImm | Self::SendImm)
    }

    /// The word after an atomic operation on eight bytes.
    pub fn apply(self, old: u64, args: &Args) -> u64 {
        let Args { compare_add: arg, swap, compare_mask, swap_mask, .. } = *args;
        match self {
            Self::CompareSwap if old == arg => swap,
            Self::MaskedCompareSwap if (old ^ arg) & compare_mask == 0 => (old & !swap_mask) | (swap & swap_mask),
            Self::FetchAdd => old.wrapping_add(arg),
            Self::MaskedFetchAdd => masked_add(old, arg, compare_mask),
            Self::Min => old.min(arg),
            Self::Max => old.max(arg),
            _ => old,
        }
    }
}

/// The sum, where no carry leaves a bit of the boundary mask.
pub fn masked_add(a: u64, b: u64, boundary: u64) -> u64 {
    let (a_low, b_low) = (a & !boundary, b & !boundary);
    // The bits of the boundary are added without their carry; no carry of lower bits can pass them.
    a_low.wrapping_add(b_low) ^ (a & boundary) ^ (b & boundary)
}

bitflags::bitflags! {
    /// Flags of a work request in a chain: `enum ibv_send_flags`, and two of the bits that it leaves to drivers (26–31).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ChainFlags: u32 {
        /// Wait for earlier READs and atomics.
        const FENCE = 1;
        /// Complete with an entry in the CQ.
        const SIGNALED = 1 << 1;
        /// Ask the receiver to raise a solicited event.
        const SOLICITED = 1 << 2;
        /// The data is in the work request.
        const INLINE = 1 << 3;
        /// Acts on the poster's own memory at once; the next work request is fetched when this one has ended.
        const LOCAL = 1 << 26;
        /// A READ whose key or range is wrong delivers zeros, and counts a fault.
        const SOFT = 1 << 27;
    }
}

/// A control word: the operation of a work request, and what else a COMPARE_SWAP can test with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Control {
    /// The operation.
    pub op: ChainOp,
    /// Success makes no completion, whatever the flags say.
    pub quiet: bool,
    /// 56 bits that the operation does not use.
    pub operand: u64,
}

impl Control {
    /// Largest operand.
    pub const MAX_OPERAND: u64 = (1 << 56) - 1;
    const CHAIN: u64 = 1 << 63;
    const QUIET: u64 = 1 << 62;

    /// The operation alone.
    pub const fn new(op: ChainOp) -> Self {
        Self { op, quiet: false, operand: 0 }
    }

    /// The operation with an operand, of which 56 bits are kept.
    pub const fn with(op: ChainOp, operand: u64) -> Self {
        Self { op, quiet: false, operand: operand & Self::MAX_OPERAND }
    }

    /// The same without a completion.
    #[must_use]
    pub const fn quiet(self) -> Self {
        Self { quiet: true, ..self }
    }

    /// The word in the chain encoding.
    pub const fn encode(self) -> u64 {
        let quiet = if self.quiet { Self::QUIET } else { 0 };
        Self::CHAIN | quiet | (self.op.code() as u64) << 56 | (self.operand & Self::MAX_OPERAND)
    }

    /// The word's meaning, in either encoding; of the kernel's encoding, the operand is what it does not use.
    pub fn decode(word: u64) -> Option<Self> {
        if word & Self::CHAIN == 0 {
            let op = ChainOp::from_opcode((word >> 32) as u32)?;
            return Some(Self { op, quiet: false, operand: word & 0xffff_ffff });
        }
        let op = ChainOp::from_code((word >> 56) as u8 & 0x3f)?;
        Some(Self { op, quiet: word & Self::QUIET != 0, operand: word & Self::MAX_OPERAND })
    }

    /// Byte 15 of the chain encoding.
    pub const fn byte(self) -> u8 {
        (self.encode() >> 56) as u8
    }
}

#[cfg(test)]
mod tests;
