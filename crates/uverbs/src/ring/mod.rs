//! Work and completion queues, seen from the device.
//!
//! Layout: `struct rxe_queue_buf` of `rdma_user_rxe.h`: element size, index mask, then producer and consumer index 128
//! bytes apart, then the elements. Indices lie in `0..=index_mask`; a ring of 2^n slots holds 2^n - 1 entries. The
//! device keeps its own copy of everything it decides by; the only value it believes is the other side's index, masked.

mod complete;
mod file;
mod recv;
mod send;

pub use complete::CompletionRing;
pub use file::{Charge, Extent, QueueFile};
pub use recv::RecvRing;
pub use send::{BadWqe, SendRing};

use crate::shared::SharedMemory;
use rdmesh_verbs::{Key, Sge, SgeList};
use rustix::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// A new ring, with the offset and length that the program maps.
pub struct NewRing<R> {
    /// The device's end.
    pub ring: R,
    /// Where the program maps it (`mminfo.offset`).
    pub offset: u64,
    /// Bytes to map (`mminfo.size`).
    pub len: u32,
    /// Entries that it holds.
    pub slots: u32,
}

const LOG2_ELEM_SIZE: usize = 0;
const INDEX_MASK: usize = 4;
const PRODUCER: usize = 128;
const CONSUMER: usize = 256;
const DATA: usize = 384;

/// Offsets in `struct rxe_dma_info`.
const DMA_LENGTH: usize = 0;
const DMA_NUM_SGE: usize = 12;
const DMA_DATA: usize = 24;
const SGE_LEN: usize = 16;

/// The queue buffer itself, for either end.
struct Queue {
    memory: SharedMemory,
    file: QueueFile,
    offset: u64,
    mask: u32,
    log2_elem_size: u32,
    is_cancelled: bool,
}

impl Queue {
    /// Makes a queue for at least `entries` entries of at least `elem_size` bytes.
    fn create(file: &QueueFile, entries: u32, elem_size: usize) -> io::Result<(Self, u32)> {
        let slots = entries.checked_add(1).and_then(u32::checked_next_power_of_two).ok_or(io::Errno::INVAL)?.max(2);
        let elem_size = elem_size.next_power_of_two();
        let len = DATA + elem_size * slots as usize;
        let len32 = u32::try_from(len).map_err(|_| io::Errno::INVAL)?;
        let (memory, offset) = file.allocate(len)?;
        let file = file.clone();
        let log2_elem_size = elem_size.trailing_zeros();
        let queue = Self { memory, file, offset, mask: slots - 1, log2_elem_size, is_cancelled: false };
        queue.cell(LOG2_ELEM_SIZE).store(queue.log2_elem_size, Ordering::Relaxed);
        queue.cell(INDEX_MASK).store(queue.mask, Ordering::Relaxed);
        Ok((queue, len32))
    }

    /// Undoes the making of a queue that the program does not know yet: the next one takes its place.
    fn cancel(mut self) {
        self.cell(LOG2_ELEM_SIZE).store(0, Ordering::Relaxed);
        self.cell(INDEX_MASK).store(0, Ordering::Relaxed);
        self.is_cancelled = true;
    }

    /// Byte offset of slot `index`.
    fn slot(&self, index: u32) -> usize {
        DATA + (((index & self.mask) as usize) << self.log2_elem_size)
    }

    fn elem_size(&self) -> usize {
        1 << self.log2_elem_size
    }

    fn producer(&self) -> u32 {
        self.cell(PRODUCER).load(Ordering::Acquire) & self.mask
    }

    fn consumer(&self) -> u32 {
        self.cell(CONSUMER).load(Ordering::Acquire) & self.mask
    }

    fn publish_producer(&self, index: u32) {
        self.cell(PRODUCER).store(index, Ordering::Release);
    }

    fn publish_consumer(&self, index: u32) {
        self.cell(CONSUMER).store(index, Ordering::Release);
    }

    fn cell(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= self.memory.len() && offset.is_multiple_of(4));
        #[allow(unsafe_code)]
        // SAFETY: in bounds and aligned (asserted; the base is page-aligned), alive as long as `self`, and an atomic.
        unsafe {
            &*self.memory.as_ptr().add(offset).cast::<AtomicU32>()
        }
    }

    /// Copies `words` out of the memory at `offset`. The other side may write meanwhile; each word is read once.
    fn load(&self, offset: usize, words: &mut [u64]) {
        assert!(offset + words.len() * 8 <= self.memory.len() && offset.is_multiple_of(8));
        for (i, word) in words.iter_mut().enumerate() {
            #[allow(unsafe_code)]
            // SAFETY: in bounds and aligned (asserted); volatile, because the memory is shared with another process.
            unsafe {
                *word = self.memory.as_ptr().add(offset).cast::<u64>().add(i).read_volatile();
            }
        }
    }

    /// Copies `words` to the memory at `offset`.
    fn store(&self, offset: usize, words: &[u64]) {
        assert!(offset + words.len() * 8 <= self.memory.len() && offset.is_multiple_of(8));
        for (i, word) in words.iter().enumerate() {
            #[allow(unsafe_code)]
            // SAFETY: in bounds and aligned (asserted); volatile, because the memory is shared with another process.
            unsafe {
                self.memory.as_ptr().add(offset).cast::<u64>().add(i).write_volatile(*word);
            }
        }
    }

    /// Copies `num_sge` scatter/gather elements into `list`; none where that many do not fit the slot.
    fn load_sges(&self, offset: usize, end: usize, num_sge: u32, list: &mut SgeList) -> Option<()> {
        let count = num_sge as usize;
        if count > rdmesh_verbs::MAX_SGE || offset + count * SGE_LEN > end {
            return None;
        }
        for i in 0..count {
            let mut words = [0; 2];
            self.load(offset + i * SGE_LEN, &mut words);
            list.push(Sge { addr: words[0], length: low(words[1]), lkey: Key(high(words[1])) });
        }
        Some(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.is_cancelled {
            self.file.cancel(self.offset, self.memory.len());
        } else {
            self.file.release(self.offset, self.memory.len());
        }
    }
}

/// The first 32-bit field of a word (little-endian hosts, as rxe's shared queues are native).
fn low(word: u64) -> u32 {
    let bytes = word.to_ne_bytes();
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The second 32-bit field of a word.
fn high(word: u64) -> u32 {
    let bytes = word.to_ne_bytes();
    u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// A word from two 32-bit fields.
fn pair(first: u32, second: u32) -> u64 {
    let (a, b) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
}

#[cfg(test)]
mod tests;
