//! Completion ring: written by the router, read by the program.

use super::{Extent, NewRing, Queue, QueueFile, WORD};
use crate::abi::WorkCompletion;
use rdmesh_verbs::Completion;
use rustix::io;

/// A completion queue: elements are [`WorkCompletion`]s.
pub struct CompletionRing {
    pub(super) queue: Queue,
    produced: u32,
}

impl CompletionRing {
    /// Makes a ring for at least `cqe` entries.
    pub fn create(file: &QueueFile, cqe: u32) -> io::Result<NewRing<Self>> {
        let (queue, len) = Queue::create(file, cqe, WC_LEN)?;
        let (offset, slots) = (queue.offset, queue.mask);
        Ok(NewRing { ring: Self { queue, produced: 0 }, offset, len, slots })
    }

    /// Its extent in the queue memory, as the program maps it.
    pub fn extent(&self) -> Extent {
        self.queue.extent()
    }

    /// Adds an entry; false where the ring is full.
    pub fn push(&mut self, completion: &Completion) -> bool {
        let next = (self.produced + 1) & self.queue.mask;
        // One slot stays empty: with equal indices a full ring could not be told from an empty one.
        if next == self.queue.consumer() {
            return false;
        }
        let words: [u64; WC_LEN / WORD] = zerocopy::transmute!(encode(completion));
        self.queue.store(self.queue.slot(self.produced), &words);
        self.produced = next;
        self.queue.publish_producer(next);
        true
    }

    /// Entries not yet polled.
    pub fn len(&self) -> u32 {
        self.produced.wrapping_sub(self.queue.consumer()) & self.queue.mask
    }

    /// Whether everything was polled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves the entries not yet polled into `to`; false, and nothing moved, where they do not fit.
    pub fn move_into(&mut self, to: &mut Self) -> bool {
        if self.len() > to.queue.mask {
            return false;
        }
        let mut index = self.queue.consumer();
        while index != self.produced {
            let mut words = [0; WC_LEN / WORD];
            self.queue.load(self.queue.slot(index), &mut words);
            to.queue.store(to.queue.slot(to.produced), &words);
            to.produced = (to.produced + 1) & to.queue.mask;
            index = (index + 1) & self.queue.mask;
        }
        to.queue.publish_producer(to.produced);
        true
    }
}

fn encode(wc: &Completion) -> WorkCompletion {
    const PORT: u8 = 1;
    WorkCompletion {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: wc.opcode as u32,
        byte_len: wc.byte_len,
        ex: wc.imm,
        qp_num: wc.qpn.value(),
        src_qp: wc.src_qp.value(),
        wc_flags: wc.flags.bits(),
        sl: wc.sl,
        port_num: PORT,
        ..Default::default()
    }
}

const WC_LEN: usize = size_of::<WorkCompletion>();
