//! Work requests of chains as bytes of a send queue's element.

use super::{ChainFlags, ChainOp, Control};
use crate::{Key, MAX_SGE, Sge, SgeList};

/// Offsets of the fields of a send queue's element (`rxe_send_wqe`) and of a receive queue's (`rxe_recv_wqe`) begin.
pub mod offset {
    /// The program's identifier.
    pub const WR_ID: usize = 0;
    /// The control word: operand and operation.
    pub const CONTROL: usize = 8;
    /// The operation's byte in the control word.
    pub const OPERATION: usize = 15;
    /// `send_flags`.
    pub const FLAGS: usize = 16;
    /// Immediate data; the mode of ENABLE.
    pub const IMM: usize = 20;
    /// `wr.rdma.remote_addr` and `wr.atomic.remote_addr`.
    pub const REMOTE_ADDR: usize = 24;
    /// `wr.rdma.rkey`.
    pub const RKEY: usize = 32;
    /// `wr.atomic.compare_add`.
    pub const COMPARE: usize = 32;
    /// `wr.atomic.swap`.
    pub const SWAP: usize = 40;
    /// `wr.atomic.rkey`.
    pub const ATOMIC_RKEY: usize = 48;
    /// Mask of the comparison, and boundaries of a masked ADD.
    pub const COMPARE_MASK: usize = 56;
    /// Mask of the swap.
    pub const SWAP_MASK: usize = 64;
    /// Sixteen bytes that a wide COMPARE_SWAP compares with; its masks and swap follow. The kernel's ABI has the operands of
    /// datagrams here.
    pub const WIDE_COMPARE: usize = 72;
    /// Swap value of a wide COMPARE_SWAP.
    pub const WIDE_SWAP: usize = 88;
    /// Mask of a wide comparison.
    pub const WIDE_COMPARE_MASK: usize = 104;
    /// Mask of a wide swap.
    pub const WIDE_SWAP_MASK: usize = 120;
    /// `dma.length`: bytes of inline data.
    pub const LENGTH: usize = 184;
    /// `dma.num_sge`.
    pub const NUM_SGE: usize = 196;
    /// The first scatter/gather element, or inline data.
    pub const SGES: usize = 208;
    /// Bytes of a scatter/gather element: address, length, key.
    pub const SGE_LEN: usize = 16;
    /// The length in a scatter/gather element.
    pub const SGE_LENGTH: usize = 8;
    /// The key in a scatter/gather element.
    pub const SGE_KEY: usize = 12;
    /// `dma.num_sge` of a receive queue's element.
    pub const RECV_NUM_SGE: usize = 28;
    /// The first scatter element of a receive queue's element.
    pub const RECV_SGES: usize = 40;
    /// Offset of a queue's elements in its memory (`rxe_queue_buf`).
    pub const QUEUE_DATA: usize = 384;
}

/// The operands of operations on remote memory; each operation uses some of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Args {
    /// Address at the responder.
    pub remote_addr: u64,
    /// Key at the responder.
    pub rkey: u32,
    /// Comparison value of a COMPARE_SWAP; addend or operand of the other atomics.
    pub compare_add: u64,
    /// Swap value of a COMPARE_SWAP.
    pub swap: u64,
    /// Bits that a masked COMPARE_SWAP compares; bits that carries of a masked ADD do not leave.
    pub compare_mask: u64,
    /// Bits that a masked COMPARE_SWAP stores.
    pub swap_mask: u64,
}

/// Operands of a COMPARE_SWAP of sixteen bytes: numbers of which the first byte in memory is the lowest. On bytes 0–15 of a slot
/// it tests up to 120 bits with an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wide {
    /// Comparison value.
    pub compare: u128,
    /// Swap value.
    pub swap: u128,
    /// Bits that are compared.
    pub compare_mask: u128,
    /// Bits that are stored.
    pub swap_mask: u128,
}

impl Wide {
    /// The sixteen bytes after the operation.
    pub const fn apply(&self, old: u128) -> u128 {
        if (old ^ self.compare) & self.compare_mask == 0 {
            (old & !self.swap_mask) | (self.swap & self.swap_mask)
        } else {
            old
        }
    }

    fn read(slot: &[u8]) -> Self {
        let at = |at: usize| u128::from(long(slot, at)) | u128::from(long(slot, at + 8)) << 64;
        Self {
            compare: at(offset::WIDE_COMPARE),
            swap: at(offset::WIDE_SWAP),
            compare_mask: at(offset::WIDE_COMPARE_MASK),
            swap_mask: at(offset::WIDE_SWAP_MASK),
        }
    }
}

/// The operands of WAIT, ENABLE and RECV_ENABLE, which any verbs program can post in SGE 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ordering {
    /// The handle of the completion queue or queue pair (`lkey`).
    pub object: u32,
    /// Completions to wait for, or work requests to enable (`addr`).
    pub count: u64,
    /// Growth of `count` with each lap of the queue that executes it (`length`).
    pub step: u32,
    /// `count` is added to the present limit (immediate data 1).
    pub relative: bool,
}

impl Ordering {
    /// The count in a lap of the queue.
    pub const fn at(&self, lap: u64) -> u64 {
        self.count.saturating_add(lap.saturating_mul(self.step as u64))
    }
}

/// A work request of a chain, decoded from a copy of its slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The program's identifier.
    pub wr_id: u64,
    /// Operation and operand.
    pub control: Control,
    /// Flags.
    pub flags: ChainFlags,
    /// Immediate data.
    pub imm: u32,
    /// Operands.
    pub args: Args,
    /// Operands of a wide COMPARE_SWAP.
    pub wide: Wide,
    /// Scatter/gather list; empty where the data is inline.
    pub sges: SgeList,
    /// Bytes of inline data, from [`offset::SGES`] on.
    pub inline_len: u32,
}

/// A slot that is no work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum BadRequest {
    /// The slot is shorter than its fields.
    Short,
    Operation(u8),
    /// More scatter/gather elements, or more inline data, than the slot has room for.
    Length(u32),
    /// Unknown flags.
    Flags(u32),
}

impl Request {
    /// A request without operands.
    pub fn new(control: Control) -> Self {
        let (args, wide, sges) = (Args::default(), Wide::default(), SgeList::new());
        Self { wr_id: 0, control, flags: ChainFlags::empty(), imm: 0, args, wide, sges, inline_len: 0 }
    }

    /// The operands of an ordering request.
    pub fn ordering(&self) -> Option<Ordering> {
        let sge = self.sges.first()?;
        Some(Ordering { object: sge.lkey.0, count: sge.addr, step: sge.length, relative: self.imm == 1 })
    }

    /// Whether success makes a completion.
    pub fn is_signaled(&self) -> bool {
        self.flags.contains(ChainFlags::SIGNALED) && !self.control.quiet
    }

    /// Whether the request ends before the next slot of its queue is fetched.
    pub fn is_local(&self) -> bool {
        self.flags.contains(ChainFlags::LOCAL)
    }

    /// Bytes of its scatter/gather list, or of its inline data.
    pub fn length(&self) -> u64 {
        u64::from(self.inline_len) + self.sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>()
    }

    /// The request in a copy of a slot.
    pub fn decode(slot: &[u8]) -> Result<Self, BadRequest> {
        let capacity = slot.len().checked_sub(offset::SGES).ok_or(BadRequest::Short)?;
        let control = Control::decode(long(slot, offset::CONTROL));
        let control = control.ok_or(BadRequest::Operation(slot[offset::OPERATION]))?;
        let bits = word(slot, offset::FLAGS);
        let flags = ChainFlags::from_bits(bits).ok_or(BadRequest::Flags(bits))?;
        let mut request = Self { wr_id: long(slot, offset::WR_ID), flags, ..Self::new(control) };
        request.imm = word(slot, offset::IMM);
        request.args = args(slot, control.op);
        if control.op == ChainOp::WideCompareSwap {
            request.wide = Wide::read(slot);
        }
        if flags.contains(ChainFlags::INLINE) && control.op.sends_data() {
            request.inline_len = word(slot, offset::LENGTH);
            let fits = request.inline_len as usize <= capacity;
            return if fits { Ok(request) } else { Err(BadRequest::Length(request.inline_len)) };
        }
        let count = word(slot, offset::NUM_SGE);
        if count as usize > (capacity / offset::SGE_LEN).min(MAX_SGE) {
            return Err(BadRequest::Length(count));
        }
        request.sges = sges(&slot[offset::SGES..], count as usize);
        Ok(request)
    }

    /// Writes the request into a slot in the chain encoding. Inline data is the caller's to write.
    ///
    /// # Panics
    ///
    /// If the slot has no room for the scatter/gather list.
    pub fn encode(&self, slot: &mut [u8]) {
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset::WR_ID, &self.wr_id.to_le_bytes());
        put(offset::CONTROL, &self.control.encode().to_le_bytes());
        put(offset::FLAGS, &self.flags.bits().to_le_bytes());
        put(offset::IMM, &self.imm.to_le_bytes());
        put(offset::REMOTE_ADDR, &self.args.remote_addr.to_le_bytes());
        if self.control.op == ChainOp::WideCompareSwap {
            let Wide { compare, swap, compare_mask, swap_mask } = self.wide;
            put(offset::WIDE_COMPARE, &compare.to_le_bytes());
            put(offset::WIDE_SWAP, &swap.to_le_bytes());
            put(offset::WIDE_COMPARE_MASK, &compare_mask.to_le_bytes());
            put(offset::WIDE_SWAP_MASK, &swap_mask.to_le_bytes());
        }
        if self.control.op.is_atomic() {
            put(offset::COMPARE, &self.args.compare_add.to_le_bytes());
            put(offset::SWAP, &self.args.swap.to_le_bytes());
            put(offset::ATOMIC_RKEY, &self.args.rkey.to_le_bytes());
            put(offset::COMPARE_MASK, &self.args.compare_mask.to_le_bytes());
            put(offset::SWAP_MASK, &self.args.swap_mask.to_le_bytes());
        } else {
            put(offset::RKEY, &self.args.rkey.to_le_bytes());
        }
        put(offset::LENGTH, &(self.length() as u32).to_le_bytes());
        put(offset::NUM_SGE, &(self.sges.len() as u32).to_le_bytes());
        for (i, sge) in self.sges.iter().enumerate() {
            let at = offset::SGES + i * offset::SGE_LEN;
            put(at, &sge.addr.to_le_bytes());
            put(at + offset::SGE_LENGTH, &sge.length.to_le_bytes());
            put(at + offset::SGE_KEY, &sge.lkey.0.to_le_bytes());
        }
    }
}

fn args(slot: &[u8], op: ChainOp) -> Args {
    let remote_addr = long(slot, offset::REMOTE_ADDR);
    if !op.is_atomic() {
        return Args { remote_addr, rkey: word(slot, offset::RKEY), ..Args::default() };
    }
    Args {
        remote_addr,
        rkey: word(slot, offset::ATOMIC_RKEY),
        compare_add: long(slot, offset::COMPARE),
        swap: long(slot, offset::SWAP),
        compare_mask: long(slot, offset::COMPARE_MASK),
        swap_mask: long(slot, offset::SWAP_MASK),
    }
}

fn sges(list: &[u8], count: usize) -> SgeList {
    let element = |sge: &[u8]| Sge {
        addr: long(sge, 0),
        length: word(sge, offset::SGE_LENGTH),
        lkey: Key(word(sge, offset::SGE_KEY)),
    };
    list.chunks_exact(offset::SGE_LEN).take(count).map(element).collect()
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}
