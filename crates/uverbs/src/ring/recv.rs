//! Receive ring: receive requests of a queue pair or shared receive queue.

use super::{BadWqe, Extent, NewRing, Queue, QueueFile, RingSlots, SGE_LEN, WORD};
use crate::abi::RxeRecvWqe;
use rdmesh_verbs::RecvWr;
use rustix::io;

/// A receive queue: elements are [`RxeRecvWqe`]s.
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

    /// Its extent in the queue memory, as the program maps it.
    pub fn extent(&self) -> Extent {
        self.queue.extent()
    }

    /// The elements, as memory.
    pub fn slots(&self) -> RingSlots {
        self.queue.slots()
    }

    /// Copies the oldest request into `wr` and hands its slot back.
    pub fn take(&mut self, wr: &mut RecvWr) -> Option<Result<(), BadWqe>> {
        if self.queue.producer() == self.taken {
            return None;
        }
        let slot = self.queue.slot(self.taken);
        // The whole element is copied, so its slot can be posted to again while the message still arrives.
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
        let mut words = vec![0; self.queue.elem_size().min(to.queue.elem_size()) / WORD];
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
        let RxeRecvWqe { wr_id, dma, .. } = self.queue.read(slot);
        wr.wr_id = wr_id;
        wr.sges.clear();
        let end = slot + self.queue.elem_size();
        self.queue.load_sges(slot + WQE_LEN, end, dma.num_sge, &mut wr.sges).ok_or(BadWqe { wr_id })
    }
}

const WQE_LEN: usize = size_of::<RxeRecvWqe>();
