//! Copies of slots of a managed queue's ring.

use super::{Image, RingInit};
use crate::platform::{Fault, Memory};
use alloc::boxed::Box;
use alloc::vec;
use rdmesh_verbs::chain::offset;
use rdmesh_verbs::{Access, Key, Sge, SgeList};
use zerocopy::IntoBytes;

/// A ring, and room for a copy of one slot.
pub(crate) struct Ring<M> {
    memory: M,
    slots: u32,
    cycle: u64,
    image: Option<Image>,
    copy: Box<[u64]>,
}

impl<M: Memory> Ring<M> {
    /// The ring, unless its sizes are impossible. A slot has at least `fields` bytes.
    pub(super) fn new(init: RingInit<M>, fields: usize) -> Option<Self> {
        let RingInit { memory, stride, slots, cycle } = init;
        let stride = stride as usize;
        let fits = stride.is_multiple_of(WORD) && (fields..=MOST_STRIDE).contains(&stride);
        if !fits || cycle == 0 || cycle > slots {
            return None;
        }
        Some(Self { memory, slots, cycle: u64::from(cycle), image: None, copy: vec![0; stride / WORD].into() })
    }

    /// From now on only the image's holes are taken from the memory. False where the image is one of other slots.
    pub(crate) fn seal(&mut self, image: Image) -> bool {
        let fits = image.stride() == self.copy.as_bytes().len() && image.slots() as u64 == self.cycle;
        if fits {
            self.image = Some(image);
        }
        fits
    }

    /// The memory of all slots, and its length.
    pub(crate) fn memory(&self) -> (&M, u64) {
        (&self.memory, self.copy.as_bytes().len() as u64 * u64::from(self.slots))
    }

    /// Bytes of a slot, and slots that there are.
    pub(crate) fn shape(&self) -> (u32, u32) {
        (self.copy.as_bytes().len() as u32, self.slots)
    }

    /// The lap of a request.
    pub(super) fn lap(&self, index: u64) -> u64 {
        if index < self.cycle { 0 } else { index / self.cycle }
    }

    /// The slot of a request.
    fn slot(&self, index: u64) -> usize {
        (if index < self.cycle { index } else { index % self.cycle }) as usize
    }

    /// Copies a request's slot: all that its element counts say is in use, each word once.
    pub(super) fn load(&mut self, index: u64, fields: usize, used: impl Fn(&[u8]) -> usize) -> Result<(), Fault> {
        let mut copy = core::mem::take(&mut self.copy);
        let loaded = self.read(self.slot(index), &mut copy, fields, used);
        self.copy = copy;
        loaded
    }

    /// Slot `slot` as it is now. What was copied for execution stays.
    pub(super) fn peek(&self, slot: usize, fields: usize, used: impl Fn(&[u8]) -> usize) -> Option<Box<[u64]>> {
        let mut copy = vec![0; self.copy.len()].into_boxed_slice();
        self.read(slot, &mut copy, fields, used).ok()?;
        Some(copy)
    }

    fn read(&self, slot: usize, copy: &mut [u64], fields: usize, used: impl Fn(&[u8]) -> usize) -> Result<(), Fault> {
        let stride = copy.as_bytes().len();
        let at = (slot * stride) as u64;
        let words = fields.div_ceil(WORD);
        self.memory.load(at, &mut copy[..words])?;
        self.merge(slot, &mut copy[..words]);
        let end = used(copy.as_bytes()).min(stride).div_ceil(WORD);
        if end > words {
            self.memory.load(at + (words * WORD) as u64, &mut copy[words..end])?;
            self.merge(slot, &mut copy[..end]);
        }
        Ok(())
    }

    fn merge(&self, slot: usize, words: &mut [u64]) {
        if let Some(image) = &self.image {
            image.merge(slot, words);
        }
    }

    /// Slots of a lap.
    pub(crate) fn cycle(&self) -> u64 {
        self.cycle
    }

    /// The copy that was made last.
    pub(super) fn copied(&self) -> &[u8] {
        self.copy.as_bytes()
    }

    /// Whether the slot of a request may have this operation.
    pub(super) fn allows(&self, index: u64, op: rdmesh_verbs::chain::ChainOp) -> bool {
        self.image.as_ref().is_none_or(|image| image.allows(self.slot(index), op))
    }
}

/// The elements at `at` in a copy of a slot, as far as there is room.
pub(super) fn read_sges(slot: &[u8], at: usize, count: usize, list: &mut SgeList) {
    list.clear();
    for element in slot[at..].chunks_exact(offset::SGE_LEN).take(count.min(list.capacity())) {
        let addr = u64::from_ne_bytes(element[..8].try_into().unwrap_or_default());
        let length = word(element, offset::SGE_LENGTH);
        list.push(Sge { addr, length, lkey: Key(word(element, offset::SGE_KEY)) });
    }
}

/// Four bytes of a slot.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

/// Eight bytes of a slot.
pub(super) fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

/// Rights that a ring may be registered with: chains change it, and only on demand from outside.
pub(crate) const RING_ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

const WORD: usize = 8;
/// More than the elements of one slot take.
const MOST_STRIDE: usize = 4096;
