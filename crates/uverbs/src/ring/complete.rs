use super::{NewRing, Queue, QueueFile, pair};
use rdmesh_verbs::Completion;
use rustix::io;

/// A completion queue: elements are `struct ib_uverbs_wc`.
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

    /// Adds an entry; false where the ring is full.
    pub fn push(&mut self, completion: &Completion) -> bool {
        let next = (self.produced + 1) & self.queue.mask;
        if next == self.queue.consumer() {
            return false;
        }
        self.queue.store(self.queue.slot(self.produced), &encode(completion));
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
            let mut words = [0; WC_LEN / 8];
            self.queue.load(self.queue.slot(index), &mut words);
            to.queue.store(to.queue.slot(to.produced), &words);
            to.produced = (to.produced + 1) & to.queue.mask;
            index = (index + 1) & self.queue.mask;
        }
        to.queue.publish_producer(to.produced);
        true
    }
}

/// `struct ib_uverbs_wc`.
fn encode(wc: &Completion) -> [u64; WC_LEN / 8] {
    const PORT: u8 = 1;
    [
        wc.wr_id,
        pair(wc.status as u32, wc.opcode as u32),
        pair(0, wc.byte_len),
        pair(wc.imm, wc.qpn.value()),
        pair(wc.src_qp.value(), wc.flags.bits()),
        pair(0, u32::from_ne_bytes([wc.sl, 0, PORT, 0])),
    ]
}

const WC_LEN: usize = 48;
