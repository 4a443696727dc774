//! Send ring: work requests, parsed from the provider's elements.

use super::{Extent, NewRing, Queue, QueueFile, RingSlots, SGE_LEN};
use crate::abi::{
    RxeAtomicArgs, RxeDmaInfo, RxeFlushArgs, RxeMwArgs, RxeRdmaArgs, RxeSendWqe, RxeSendWr, RxeSge, RxeUdArgs,
    wr_opcode as opcode,
};
use crate::shared::SharedMemory;
use rdmesh_verbs::chain::{ChainOp, Ordering};
use rdmesh_verbs::{Access, Key, Precedence, Qkey, QpType, Qpn, SendFlags, SendOp, SendWr};
use rustix::io;
use std::mem::offset_of;

/// An invalid element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadWqe {
    /// Its identifier.
    pub wr_id: u64,
}

/// A send queue: elements are [`RxeSendWqe`]s.
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

    /// Its extent in the queue memory, as the program maps it.
    pub fn extent(&self) -> Extent {
        self.queue.extent()
    }

    /// The elements, as memory.
    pub fn slots(&self) -> RingSlots {
        self.queue.slots()
    }

    /// Whether there is a request to fetch.
    pub fn is_ready(&self) -> bool {
        self.queue.producer() != self.fetched
    }

    /// Ordering properties of the next request, as they are now: whether earlier ones come first.
    pub fn precedence(&self) -> Precedence {
        let RxeSendWr { opcode, send_flags, .. } =
            self.queue.read(self.queue.slot(self.fetched) + offset_of!(RxeSendWqe, wr));
        Precedence {
            is_local: matches!(opcode, opcode::LOCAL_INV | opcode::BIND_MW | ENABLE | RECV_ENABLE),
            is_read_or_atomic: matches!(
                opcode,
                opcode::RDMA_READ
                    | opcode::ATOMIC_CMP_AND_SWP
                    | opcode::ATOMIC_FETCH_AND_ADD
                    | opcode::ATOMIC_WRITE
                    | opcode::FLUSH
            ),
            is_fenced: SendFlags::from_bits_truncate(send_flags).contains(SendFlags::FENCE),
        }
    }

    /// Copies the next request into `wr`. Its slot stays taken until it is released.
    pub fn fetch(&mut self, qp_type: QpType, wr: &mut SendWr) -> Option<Result<(), BadWqe>> {
        if !self.is_ready() {
            return None;
        }
        // The slot stays the router's until the request is done: inline data is read from it, again after a loss.
        self.last_slot = self.queue.slot(self.fetched);
        self.fetched = (self.fetched + 1) & self.queue.mask;
        Some(self.read(self.last_slot, qp_type, wr))
    }

    /// Memory and offset of the inline data of the request fetched last.
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
        // The program may rewrite the slot at any moment: each field is read once, and only the copy is checked and used.
        let request: RxeSendWr = self.queue.read(slot + offset_of!(RxeSendWqe, wr));
        let RxeDmaInfo { length, num_sge, .. } = self.queue.read(slot + offset_of!(RxeSendWqe, dma));
        let bad = BadWqe { wr_id: request.wr_id };
        wr.wr_id = request.wr_id;
        wr.flags = SendFlags::from_bits_truncate(request.send_flags);
        wr.op = self.operation(&request, slot, length, qp_type).ok_or(bad)?;
        wr.sges.clear();
        wr.inline_len = 0;
        if !has_data(request.opcode) {
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

    fn operation(&self, wr: &RxeSendWr, slot: usize, length: u32, qp_type: QpType) -> Option<SendOp> {
        let args = slot + offset_of!(RxeSendWqe, args);
        Some(match wr.opcode {
            opcode::SEND => self.send(args, None, qp_type),
            opcode::SEND_WITH_IMM => self.send(args, Some(wr.ex), qp_type),
            _ if qp_type == QpType::Ud => return None,
            opcode::SEND_WITH_INV => SendOp::SendInvalidate { rkey: Key(wr.ex) },
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => {
                let RxeRdmaArgs { remote_addr, rkey, .. } = self.queue.read(args);
                let imm = (wr.opcode == opcode::RDMA_WRITE_WITH_IMM).then_some(wr.ex);
                SendOp::Write { remote_addr, rkey: Key(rkey), imm }
            }
            opcode::RDMA_READ => {
                let RxeRdmaArgs { remote_addr, rkey, .. } = self.queue.read(args);
                SendOp::Read { remote_addr, rkey: Key(rkey) }
            }
            opcode::ATOMIC_CMP_AND_SWP => {
                let RxeAtomicArgs { remote_addr, compare_add, swap, rkey, .. } = self.queue.read(args);
                SendOp::CompareSwap { remote_addr, rkey: Key(rkey), compare: compare_add, swap }
            }
            opcode::ATOMIC_FETCH_AND_ADD => {
                let RxeAtomicArgs { remote_addr, compare_add, rkey, .. } = self.queue.read(args);
                SendOp::FetchAdd { remote_addr, rkey: Key(rkey), add: compare_add }
            }
            opcode::LOCAL_INV => SendOp::LocalInvalidate { key: Key(wr.ex) },
            opcode::BIND_MW => bind_mw(&self.queue.read(args)),
            ENABLE | RECV_ENABLE => {
                let RxeSge { addr, length, lkey } = self.queue.read(slot + WQE_LEN);
                let order = Ordering { object: lkey, count: addr, step: length, relative: wr.ex == 1 };
                SendOp::Enable { order, is_receive: wr.opcode == RECV_ENABLE }
            }
            opcode::FLUSH => {
                let RxeFlushArgs { remote_addr, rkey, kind, level, .. } = self.queue.read(args);
                SendOp::Flush { remote_addr, rkey: Key(rkey), length, kind, range: level == 0 }
            }
            opcode::ATOMIC_WRITE => {
                let RxeRdmaArgs { remote_addr, rkey, .. } = self.queue.read(args);
                SendOp::AtomicWrite { remote_addr, rkey: Key(rkey), value: self.queue.read(slot + WQE_LEN) }
            }
            _ => return None,
        })
    }

    fn send(&self, args: usize, imm: Option<u32>, qp_type: QpType) -> SendOp {
        if qp_type != QpType::Ud {
            return SendOp::Send { imm };
        }
        let RxeUdArgs { remote_qpn, remote_qkey, ah_num, .. } = self.queue.read(args);
        SendOp::Datagram { ah: ah_num, qpn: Qpn::new(remote_qpn), qkey: Qkey(remote_qkey), imm }
    }
}

/// Whether the elements of a request are data.
fn has_data(op: u32) -> bool {
    use opcode::{ATOMIC_WRITE, BIND_MW, FLUSH, LOCAL_INV};
    !matches!(op, FLUSH | ATOMIC_WRITE | LOCAL_INV | BIND_MW | ENABLE | RECV_ENABLE)
}

fn bind_mw(args: &RxeMwArgs) -> SendOp {
    SendOp::BindMw {
        addr: args.addr,
        length: args.length,
        mr: Key(args.mr_lkey),
        mw: Key(args.mw_rkey),
        new_key: Key(args.rkey),
        access: Access::from_bits_truncate(args.access),
    }
}

/// Operations that the kernel leaves to drivers.
const ENABLE: u32 = ChainOp::Enable.opcode();
const RECV_ENABLE: u32 = ChainOp::RecvEnable.opcode();
const WQE_LEN: usize = size_of::<RxeSendWqe>();
