//! Queues of a device as its program sees them: work requests are written, completions are read.
#![allow(unsafe_code)]

use rdmesh_uverbs::abi::{
    RxeDmaInfo, RxeQueueBuf, RxeRdmaArgs, RxeRecvWqe, RxeSendWqe, RxeSendWr, RxeSge, WorkCompletion, wr_opcode,
};
use rdmesh_uverbs::shared::SharedMemory;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A queue: a ring of elements between two indices, laid out as `rdma_user_rxe.h` says.
pub(super) struct Queue {
    memory: SharedMemory,
    /// This end's index: the producer's of work requests, the consumer's of completions.
    own: u32,
    mask: u32,
    log2_elem_size: u32,
}

/// A WRITE with immediate data, or a SEND, of `len` bytes at `from`, in the region `lkey`.
pub(crate) enum Request {
    /// They go to `to` at the peer, in the region `rkey`; the peer's completion has `imm`.
    Write { from: u64, lkey: u32, len: u32, to: u64, rkey: u32, imm: u32 },
    /// A message.
    Send { from: u64, lkey: u32, len: u32 },
}

impl Queue {
    /// A mapped queue, which the router has made.
    pub(super) fn new(memory: SharedMemory) -> Option<Self> {
        let word = |at| {
            // SAFETY: within the mapping, aligned; the router writes it before the program knows the queue.
            (at + 4 <= memory.len()).then(|| unsafe { memory.as_ptr().add(at).cast::<u32>().read_volatile() })
        };
        let log2_elem_size = word(offset_of!(RxeQueueBuf, log2_elem_size))?;
        let mask = word(offset_of!(RxeQueueBuf, index_mask))?;
        let is_whole = log2_elem_size < 16 && DATA + ((mask as usize + 1) << log2_elem_size) <= memory.len();
        is_whole.then_some(Self { memory, own: 0, mask, log2_elem_size })
    }

    /// Entries that it holds.
    pub(super) fn capacity(&self) -> u32 {
        self.mask
    }

    fn cell(&self, at: usize) -> &AtomicU32 {
        // SAFETY: an index of the header, which `new` has found to be within the mapping.
        unsafe { &*self.memory.as_ptr().add(at).cast::<AtomicU32>() }
    }

    pub(super) fn is_full(&self) -> bool {
        (self.own + 1) & self.mask == self.consumer()
    }

    /// Whether the device has done with all requests.
    pub(super) fn is_empty(&self) -> bool {
        self.own == self.consumer()
    }

    fn consumer(&self) -> u32 {
        self.cell(CONSUMER).load(Ordering::Acquire) & self.mask
    }

    /// Writes an element at the own index: `parts` at their offsets.
    fn write(&self, parts: &[(usize, &[u8])]) {
        let slot = DATA + ((self.own as usize) << self.log2_elem_size);
        for (at, bytes) in parts {
            assert!(at + bytes.len() <= 1 << self.log2_elem_size);
            // SAFETY: within the element, which is within the mapping; the device does not read it before the index moves.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.as_ptr().add(slot + at), bytes.len());
            }
        }
    }

    fn publish(&mut self) {
        self.own = (self.own + 1) & self.mask;
        self.cell(PRODUCER).store(self.own, Ordering::Release);
    }

    /// Posts a request; false where the queue is full. Every request gives a completion.
    pub(super) fn post_send(&mut self, wr_id: u64, request: &Request) -> bool {
        if self.is_full() {
            return false;
        }
        let (opcode, ex) = match request {
            Request::Write { imm, .. } => (wr_opcode::RDMA_WRITE_WITH_IMM, imm.to_be()),
            Request::Send { .. } => (wr_opcode::SEND, 0),
        };
        let wr = RxeSendWr { wr_id, reserved: 0, opcode, send_flags: SIGNALED, ex };
        let (Request::Write { from, lkey, len, .. } | Request::Send { from, lkey, len }) = *request;
        let dma = RxeDmaInfo { length: len, resid: len, num_sge: 1, ..Default::default() };
        let sge = RxeSge { addr: from, length: len, lkey };
        if let Request::Write { to, rkey, .. } = *request {
            let args = RxeRdmaArgs { remote_addr: to, rkey, reserved: 0 };
            self.write(&[(ARGS, args.as_bytes())]);
        }
        self.write(&[(0, wr.as_bytes()), (DMA, dma.as_bytes()), (WQE, sge.as_bytes())]);
        self.publish();
        true
    }

    /// Posts a receive request for `len` bytes at `addr` in the region `lkey`; false where the queue is full.
    pub(super) fn post_recv(&mut self, wr_id: u64, sge: &RxeSge) -> bool {
        if self.is_full() {
            return false;
        }
        let mut wqe = RxeRecvWqe { wr_id, ..Default::default() };
        (wqe.dma.length, wqe.dma.resid, wqe.dma.num_sge) = (sge.length, sge.length, 1);
        self.write(&[(0, wqe.as_bytes()), (size_of::<RxeRecvWqe>(), sge.as_bytes())]);
        self.publish();
        true
    }

    /// Whether there is a completion.
    pub(super) fn has_completion(&self) -> bool {
        self.cell(PRODUCER).load(Ordering::Acquire) & self.mask != self.own
    }

    /// Takes the oldest completion out.
    pub(super) fn poll(&mut self) -> Option<WorkCompletion> {
        if !self.has_completion() {
            return None;
        }
        let slot = DATA + ((self.own as usize) << self.log2_elem_size);
        let completion = self.read(slot);
        self.own = (self.own + 1) & self.mask;
        self.cell(CONSUMER).store(self.own, Ordering::Release);
        Some(completion)
    }

    fn read<T: FromBytes + IntoBytes + Immutable>(&self, at: usize) -> T {
        let mut value = T::new_zeroed();
        let bytes = value.as_mut_bytes();
        // SAFETY: an element within the mapping; the router has published it, and leaves it alone until the index has moved.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len()) };
        value
    }
}

const PRODUCER: usize = offset_of!(RxeQueueBuf, producer_index);
const CONSUMER: usize = offset_of!(RxeQueueBuf, consumer_index);
const DATA: usize = size_of::<RxeQueueBuf>();
const ARGS: usize = offset_of!(RxeSendWqe, args);
const DMA: usize = offset_of!(RxeSendWqe, dma);
const WQE: usize = size_of::<RxeSendWqe>();
/// `IB_SEND_SIGNALED` (ib_verbs.h).
const SIGNALED: u32 = 1 << 1;
