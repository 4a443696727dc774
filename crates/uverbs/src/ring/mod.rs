//! Work and completion queues, seen from the device.
//!
//! Layout: [`RxeQueueBuf`], then the elements. Indices lie in `0..=index_mask`; a ring of 2^n slots holds 2^n - 1 entries. The
//! device keeps its own copy of everything it decides by; the only value it believes is the other side's index, masked. An
//! index beyond the ring, which no honest program writes, is counted ([`QueueFile::take_bad_indices`]).

mod complete;
mod file;
mod recv;
mod send;

pub use complete::CompletionRing;
pub use file::{Charge, Extent, QueueFile};
pub use recv::RecvRing;
pub use send::{BadWqe, SendRing};

use crate::abi::{RxeQueueBuf, RxeSge};
use crate::shared::SharedMemory;
use rdmesh_verbs::{Key, Sge, SgeList};
use rustix::io;
use std::cell::Cell;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// A new ring, with the offset and length that the program maps.
pub struct NewRing<R> {
    /// The device's end.
    pub ring: R,
    /// Offset by which the program maps it (`mminfo.offset`).
    pub offset: u64,
    /// Bytes to map (`mminfo.size`).
    pub len: u32,
    /// Entries that it holds.
    pub slots: u32,
}

/// The elements of a ring, as memory.
pub struct RingSlots {
    /// The elements, without the indices before them.
    pub memory: SharedMemory,
    /// Bytes of an element.
    pub stride: u32,
    /// Number of elements: one more than the entries that the ring holds.
    pub slots: u32,
    /// Offset of the first element in the queue memory.
    pub offset: u64,
}

const LOG2_ELEM_SIZE: usize = offset_of!(RxeQueueBuf, log2_elem_size);
const INDEX_MASK: usize = offset_of!(RxeQueueBuf, index_mask);
const PRODUCER: usize = offset_of!(RxeQueueBuf, producer_index);
const CONSUMER: usize = offset_of!(RxeQueueBuf, consumer_index);
/// Offset of the first element.
const DATA: usize = size_of::<RxeQueueBuf>();
const SGE_LEN: usize = size_of::<RxeSge>();

/// The queue buffer itself, for either end.
struct Queue {
    memory: SharedMemory,
    file: QueueFile,
    offset: u64,
    mask: u32,
    log2_elem_size: u32,
    is_cancelled: bool,
    /// The index beyond the ring that was counted last; 0 for none.
    bad_index: Cell<u32>,
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
        let queue = Self {
            memory,
            file,
            offset,
            mask: slots - 1,
            log2_elem_size,
            is_cancelled: false,
            bad_index: Cell::new(0),
        };
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

    /// Its extent in the queue memory, as the program maps it.
    fn extent(&self) -> Extent {
        Extent { offset: self.offset, len: self.memory.len() as u64 }
    }

    /// The elements, as memory.
    fn slots(&self) -> RingSlots {
        let memory = self.memory.part(DATA, self.memory.len() - DATA);
        let offset = self.offset + DATA as u64;
        RingSlots { memory, stride: self.elem_size() as u32, slots: self.mask + 1, offset }
    }

    fn producer(&self) -> u32 {
        self.index(PRODUCER)
    }

    fn consumer(&self) -> u32 {
        self.index(CONSUMER)
    }

    /// The other side's index at `offset`, masked.
    fn index(&self, offset: usize) -> u32 {
        let index = self.cell(offset).load(Ordering::Acquire);
        if index > self.mask {
            self.count_bad(index);
        }
        index & self.mask
    }

    /// Counts an index beyond the ring. One that stays is read again and again, and counted once.
    #[cold]
    fn count_bad(&self, index: u32) {
        if self.bad_index.replace(index) != index {
            self.file.count_bad_index();
        }
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

    /// Copies `words` out of the memory at `offset`.
    fn load(&self, offset: usize, words: &mut [u64]) {
        let count = words.len();
        words.iter_mut().zip(self.words(offset, count)).for_each(|(word, read)| *word = read);
    }

    /// Copies a struct of whole words out of the memory at `offset`. Inlined, because a request took 2 ns more otherwise.
    #[inline(always)]
    fn read<T: FromBytes + IntoBytes>(&self, offset: usize) -> T {
        const { assert!(size_of::<T>().is_multiple_of(WORD)) };
        let words = self.words(offset, size_of::<T>() / WORD);
        let mut value = T::new_zeroed();
        let (places, _) = value.as_mut_bytes().as_chunks_mut::<WORD>();
        for (place, word) in places.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }
        value
    }

    /// Copies `words` to the memory at `offset`.
    #[allow(unsafe_code)]
    fn store(&self, offset: usize, words: &[u64]) {
        let first = self.place(offset, words.len());
        for (i, word) in words.iter().enumerate() {
            // SAFETY: in bounds and aligned; volatile, because the memory is shared with another process.
            unsafe { first.add(i).write_volatile(*word) };
        }
    }

    /// The `count` words at `offset`. The other side may write meanwhile: each is read once.
    #[inline(always)]
    #[allow(unsafe_code)]
    fn words(&self, offset: usize, count: usize) -> impl Iterator<Item = u64> {
        let first = self.place(offset, count);
        // SAFETY: in bounds and aligned; volatile, because the memory is shared with another process.
        (0..count).map(move |i| unsafe { first.add(i).read_volatile() })
    }

    /// The address of `count` words at `offset`, which are in bounds and aligned.
    fn place(&self, offset: usize, count: usize) -> *mut u64 {
        assert!(offset + count * WORD <= self.memory.len() && offset.is_multiple_of(WORD));
        self.memory.as_ptr().wrapping_add(offset).cast()
    }

    /// Copies `num_sge` scatter/gather elements into `list`; none where that many do not fit the slot.
    fn load_sges(&self, offset: usize, end: usize, num_sge: u32, list: &mut SgeList) -> Option<()> {
        let count = num_sge as usize;
        if count > rdmesh_verbs::MAX_SGE || offset + count * SGE_LEN > end {
            return None;
        }
        for i in 0..count {
            let RxeSge { addr, length, lkey } = self.read(offset + i * SGE_LEN);
            list.push(Sge { addr, length, lkey: Key(lkey) });
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

/// Bytes that are copied at once.
const WORD: usize = size_of::<u64>();

#[cfg(test)]
mod tests;
