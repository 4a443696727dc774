//! Rings of managed queues, as memory that the program shares with the NIC.
#![allow(unsafe_code)]

use super::border::{Failure, Result};
use super::calls::Device;
use rdmesh_uverbs::shared::SharedMemory;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The slots of a lap of a ring.
pub(super) struct Ring {
    memory: SharedMemory,
    /// Offset of the first slot in it.
    first: usize,
    stride: usize,
    cycle: usize,
}

impl Ring {
    /// Maps the ring whose first slot lies at an offset of the queue memory.
    pub(super) fn map(device: &Device, offset: u64, stride: u32, cycle: u32) -> Result<Self> {
        let (first, stride, cycle) = ((offset % PAGE) as usize, stride as usize, cycle as usize);
        let is_sound = stride >= WORD && stride.is_multiple_of(WORD) && first.is_multiple_of(WORD);
        let len = stride.checked_mul(cycle).and_then(|len| len.checked_add(first)).filter(|len| is_sound && *len > 0);
        let len = len.ok_or_else(|| Failure::invalid("the router says an impossible ring"))?;
        Ok(Self { memory: device.map(offset - first as u64, len)?, first, stride, cycle })
    }

    /// Bytes of a slot.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Slots of a lap.
    pub(super) fn cycle(&self) -> usize {
        self.cycle
    }

    /// Puts bytes into slots from `slot` on, word by word, the control word of each slot last: it says what the others are.
    pub(super) fn write(&self, slot: usize, bytes: &[u8]) -> Result<()> {
        let fits = slot <= self.cycle && bytes.len().div_ceil(self.stride) <= self.cycle - slot;
        if !fits {
            let cycle = self.cycle;
            return Err(Failure::invalid(format_args!(
                "slot {slot} is none of the {cycle} of a lap; ask for more work requests"
            )));
        }
        for (number, bytes) in (slot..).zip(bytes.chunks(self.stride)) {
            let word = |at: usize| {
                let mut word = [0; WORD];
                let rest = bytes.get(at..).unwrap_or_default();
                word[..rest.len().min(WORD)].copy_from_slice(&rest[..rest.len().min(WORD)]);
                u64::from_ne_bytes(word)
            };
            let words = || (0..bytes.len()).step_by(WORD);
            words().filter(|at| *at != CONTROL).for_each(|at| self.word(number, at).store(word(at), Ordering::Relaxed));
            fence(Ordering::Release);
            words().filter(|at| *at == CONTROL).for_each(|at| self.word(number, at).store(word(at), Ordering::Release));
        }
        Ok(())
    }

    /// The bytes of a slot.
    pub(super) fn read(&self, slot: usize) -> Vec<u8> {
        let words = (0..self.stride).step_by(WORD).map(|at| self.word(slot, at).load(Ordering::Relaxed));
        words.flat_map(u64::to_ne_bytes).collect()
    }

    fn word(&self, slot: usize, at: usize) -> &AtomicU64 {
        let offset = self.first + slot * self.stride + at;
        assert!(slot < self.cycle && offset + WORD <= self.memory.len() && offset.is_multiple_of(WORD));
        // SAFETY: in bounds and aligned (asserted; the base is page-aligned), alive as long as `self`, and an atomic.
        unsafe { &*self.memory.as_ptr().add(offset).cast::<AtomicU64>() }
    }
}

const WORD: usize = 8;
const PAGE: u64 = 4096;
/// Byte of a slot at which its control word lies.
const CONTROL: usize = rdmesh_verbs::chain::offset::CONTROL;
