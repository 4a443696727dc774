use super::{DMA_DATA, DMA_LENGTH, DMA_NUM_SGE, NewRing, Queue, QueueFile, SGE_LEN, high, low};
use crate::shared::SharedMemory;
use rdmesh_verbs::{Access, Key, Qkey, QpType, Qpn, SendFlags, SendOp, SendWr};
use rustix::io;

/// An invalid element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadWqe {
    /// Its identifier.
    pub wr_id: u64,
}

/// A send queue: elements are `struct rxe_send_wqe`.
pub struct SendRing {
    pub(super) queue: Queue,
    fetched: u32,
    released: u32,
    last_slot: usize,
}

impl SendRing {
    /// Makes a ring for at least `max_wr` requests of `max_sge` elements or `max_inline` bytes.
    pub fn create(file: &QueueFile, max_wr: u32, max_sge: u32, max_inline: u32) -> io::Result<NewRing<Self>> {
        let elem_size = WQE_LEN + Self::max_inline(max_sge, max_inline) as usize;
        let (queue, len) = Queue::create(file, max_wr, elem_size)?;
        let (offset, slots) = (queue.offset, queue.mask);
        Ok(NewRing { ring: Self { queue, fetched: 0, released: 0, last_slot: super::DATA }, offset, len, slots })
    }

    /// Undoes the making of the last ring, which the program does not know yet.
    pub fn cancel(self) {
        self.queue.cancel();
    }

    /// Inline bytes that fit beside `max_sge` elements: the two share the space.
    pub fn max_inline(max_sge: u32, asked: u32) -> u32 {
        asked.max(max_sge * SGE_LEN as u32)
    }

    /// Whether there is a request to fetch.
    pub fn is_ready(&self) -> bool {
        self.queue.producer() != self.fetched
    }

    /// Copies the next request into `wr`. Its slot stays taken until it is released.
    pub fn fetch(&mut self, qp_type: QpType, wr: &mut SendWr) -> Option<Result<(), BadWqe>> {
        if !self.is_ready() {
            return None;
        }
        self.last_slot = self.queue.slot(self.fetched);
        self.fetched = (self.fetched + 1) & self.queue.mask;
        Some(self.read(self.last_slot, qp_type, wr))
    }

    /// Where the inline data of the request fetched last lies.
    pub fn inline_data(&self) -> (&SharedMemory, u64) {
        (&self.queue.memory, (self.last_slot + WQE_LEN) as u64)
    }

    /// Hands the `n` oldest fetched slots back.
    pub fn release(&mut self, n: u32) {
        debug_assert!(n <= self.fetched.wrapping_sub(self.released) & self.queue.mask);
        self.released = (self.released + n) & self.queue.mask;
        self.queue.publish_consumer(self.released);
    }

    /// Forgets every request.
    pub fn clear(&mut self) {
        self.fetched = self.queue.producer();
        self.released = self.fetched;
        self.queue.publish_consumer(self.released);
    }

    fn read(&self, slot: usize, qp_type: QpType, wr: &mut SendWr) -> Result<(), BadWqe> {
        let mut head = [0; HEAD_WORDS];
        self.queue.load(slot, &mut head);
        let bad = BadWqe { wr_id: head[0] };
        let mut dma = [0; 3];
        self.queue.load(slot + SEND_DMA, &mut dma);
        let length = low(dma[DMA_LENGTH / 8]);
        let num_sge = high(dma[DMA_NUM_SGE / 8]);
        let opcode = high(head[1]);
        wr.wr_id = head[0];
        wr.flags = SendFlags::from_bits_truncate(low(head[2]));
        wr.op = self.operation(opcode, &head, slot, length, qp_type).ok_or(bad)?;
        wr.sges.clear();
        wr.inline_len = 0;
        if matches!(opcode, WR_FLUSH | WR_ATOMIC_WRITE | WR_LOCAL_INV | WR_BIND_MW) {
            wr.flags.remove(SendFlags::INLINE);
            return Ok(());
        }
        let end = slot + self.queue.elem_size();
        // The extended API's wr_set_inline_data leaves the flag to the program; the length without elements tells.
        if wr.flags.contains(SendFlags::INLINE) || (num_sge == 0 && length != 0) {
            wr.flags.insert(SendFlags::INLINE);
            wr.inline_len = length;
            return if slot + WQE_LEN + length as usize <= end { Ok(()) } else { Err(bad) };
        }
        self.queue.load_sges(slot + WQE_LEN, end, num_sge, &mut wr.sges).ok_or(bad)
    }

    fn operation(
        &self,
        opcode: u32,
        head: &[u64; HEAD_WORDS],
        slot: usize,
        length: u32,
        qp_type: QpType,
    ) -> Option<SendOp> {
        let ex = high(head[2]);
        let args = &head[3..];
        let (remote_addr, rkey) = (args[0], Key(low(args[1])));
        let atomic_rkey = Key(low(args[3]));
        Some(match opcode {
            WR_SEND | WR_SEND_WITH_IMM => {
                let imm = (opcode == WR_SEND_WITH_IMM).then_some(ex);
                if qp_type != QpType::Ud {
                    return Some(SendOp::Send { imm });
                }
                let (qpn, qkey) = (Qpn::new(low(args[0])), Qkey(high(args[0])));
                SendOp::Datagram { ah: high(args[1]), qpn, qkey, imm }
            }
            _ if qp_type == QpType::Ud => return None,
            WR_SEND_WITH_INV => SendOp::SendInvalidate { rkey: Key(ex) },
            WR_WRITE => SendOp::Write { remote_addr, rkey, imm: None },
            WR_WRITE_WITH_IMM => SendOp::Write { remote_addr, rkey, imm: Some(ex) },
            WR_READ => SendOp::Read { remote_addr, rkey },
            WR_COMPARE_SWAP => SendOp::CompareSwap { remote_addr, rkey: atomic_rkey, compare: args[1], swap: args[2] },
            WR_FETCH_ADD => SendOp::FetchAdd { remote_addr, rkey: atomic_rkey, add: args[1] },
            WR_LOCAL_INV => SendOp::LocalInvalidate { key: Key(ex) },
            WR_BIND_MW => SendOp::BindMw {
                addr: args[0],
                length: args[1],
                mr: Key(low(args[2])),
                mw: Key(high(args[2])),
                new_key: Key(low(args[3])),
                access: Access::from_bits_truncate(high(args[3])),
            },
            WR_FLUSH => {
                // struct flush: remote_addr, length, rkey, type, level. The provider puts the length into dma.length.
                let kinds = low(args[2]).to_ne_bytes();
                let (rkey, level) = (Key(high(args[1])), kinds[1]);
                SendOp::Flush { remote_addr, rkey, length, kind: kinds[0], range: level == 0 }
            }
            WR_ATOMIC_WRITE => {
                let mut value = [0];
                self.queue.load(slot + WQE_LEN, &mut value);
                SendOp::AtomicWrite { remote_addr, rkey, value: value[0].to_ne_bytes() }
            }
            _ => return None,
        })
    }
}

/// Words of `struct rxe_send_wr` up to the end of its longest union member but the address vector.
const HEAD_WORDS: usize = 7;
/// Offset of `dma` in `struct rxe_send_wqe`.
const SEND_DMA: usize = 184;
/// Bytes of `struct rxe_send_wqe`.
const WQE_LEN: usize = SEND_DMA + DMA_DATA;

// `enum ib_uverbs_wr_opcode`, and the two that newer headers add.
const WR_WRITE: u32 = 0;
const WR_WRITE_WITH_IMM: u32 = 1;
const WR_SEND: u32 = 2;
const WR_SEND_WITH_IMM: u32 = 3;
const WR_READ: u32 = 4;
const WR_COMPARE_SWAP: u32 = 5;
const WR_FETCH_ADD: u32 = 6;
const WR_LOCAL_INV: u32 = 7;
const WR_BIND_MW: u32 = 8;
const WR_SEND_WITH_INV: u32 = 9;
const WR_FLUSH: u32 = 14;
const WR_ATOMIC_WRITE: u32 = 15;
