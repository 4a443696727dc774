use super::{DMA_DATA, DMA_NUM_SGE, NewRing, Queue, QueueFile, SGE_LEN, high};
use crate::ring::BadWqe;
use rdmesh_verbs::RecvWr;
use rustix::io;

/// A receive queue: elements are `struct rxe_recv_wqe`.
pub struct RecvRing {
    pub(super) queue: Queue,
    taken: u32,
}

impl RecvRing {
    /// Makes a ring for at least `max_wr` requests of `max_sge` elements.
    pub fn create(file: &QueueFile, max_wr: u32, max_sge: u32) -> io::Result<NewRing<Self>> {
        let elem_size = WQE_LEN + max_sge as usize * SGE_LEN;
        let (queue, len) = Queue::create(file, max_wr, elem_size)?;
        let (offset, slots) = (queue.offset, queue.mask);
        Ok(NewRing { ring: Self { queue, taken: 0 }, offset, len, slots })
    }

    /// Copies the oldest request into `wr` and hands its slot back.
    pub fn take(&mut self, wr: &mut RecvWr) -> Option<Result<(), BadWqe>> {
        if self.queue.producer() == self.taken {
            return None;
        }
        let slot = self.queue.slot(self.taken);
        let read = self.read(slot, wr);
        self.taken = (self.taken + 1) & self.queue.mask;
        self.queue.publish_consumer(self.taken);
        Some(read)
    }

    /// Requests posted and not taken.
    pub fn len(&self) -> u32 {
        self.queue.producer().wrapping_sub(self.taken) & self.queue.mask
    }

    /// Whether nothing is posted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets every request.
    pub fn clear(&mut self) {
        self.taken = self.queue.producer();
        self.queue.publish_consumer(self.taken);
    }

    /// Copies the posted requests into `to`, raw, as far as they fit its slots; false where there are too many.
    pub fn move_into(&mut self, to: &mut Self) -> bool {
        if self.len() > to.queue.mask {
            return false;
        }
        let mut words = vec![0; self.queue.elem_size().min(to.queue.elem_size()) / 8];
        let (mut from, end) = (self.taken, self.queue.producer());
        let mut index = to.taken;
        while from != end {
            self.queue.load(self.queue.slot(from), &mut words);
            to.queue.store(to.queue.slot(index), &words);
            from = (from + 1) & self.queue.mask;
            index = (index + 1) & to.queue.mask;
        }
        to.queue.publish_producer(index);
        self.taken = end;
        true
    }

    fn read(&self, slot: usize, wr: &mut RecvWr) -> Result<(), BadWqe> {
        wr.sges.clear();
        let mut head = [0; 1];
        self.queue.load(slot, &mut head);
        let wr_id = head[0];
        wr.wr_id = wr_id;
        let mut dma = [0; 1];
        self.queue.load(slot + RECV_DMA + DMA_NUM_SGE - 4, &mut dma);
        let end = slot + self.queue.elem_size();
        let num_sge = high(dma[0]);
        self.queue.load_sges(slot + RECV_DMA + DMA_DATA, end, num_sge, &mut wr.sges).ok_or(BadWqe { wr_id })
    }
}

const RECV_DMA: usize = 16;
const WQE_LEN: usize = RECV_DMA + DMA_DATA;
