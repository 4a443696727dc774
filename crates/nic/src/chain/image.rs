//! Sealed images: what was proved of a queue's slots, and which bytes may differ from it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use rdmesh_verbs::chain::ChainOp;

/// The slots of a queue as they were verified. Of each slot only the holes are taken from the ring, and its operation must be
/// one of those that were proved, whoever writes to the ring.
pub struct Image {
    stride: usize,
    words: Box<[u64]>,
    /// Bits that may differ, word by word.
    holes: Box<[u64]>,
    /// Operations that a slot may have, as a set of their codes.
    allowed: Box<[u64]>,
}

impl Image {
    /// An image of slots of `stride` bytes, none of which may change; none where that is not whole words and slots.
    pub fn new(stride: usize, bytes: &[u8]) -> Option<Self> {
        if stride == 0 || !stride.is_multiple_of(WORD) || !bytes.len().is_multiple_of(stride) {
            return None;
        }
        let (words, _) = bytes.as_chunks::<WORD>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let slots = bytes.len() / stride;
        let holes = core::iter::repeat_n(0, words.len()).collect();
        // A slot may be what it is.
        let allowed = core::iter::repeat_n(u64::MAX, slots).collect();
        Some(Self { stride, words: words.into(), holes, allowed })
    }

    /// The bytes `at..at + len` of a slot may differ. False where the slot has no such bytes.
    pub fn open(&mut self, slot: usize, at: usize, len: usize) -> bool {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.stride) && slot < self.slots();
        if fits {
            for byte in at..at + len {
                let mut mask = self.holes[slot * self.stride / WORD + byte / WORD].to_ne_bytes();
                mask[byte % WORD] = 0xff;
                self.holes[slot * self.stride / WORD + byte / WORD] = u64::from_ne_bytes(mask);
            }
        }
        fits
    }

    /// A slot has one of these operations, always. False where there is no such slot.
    pub fn allow(&mut self, slot: usize, ops: &[ChainOp]) -> bool {
        let set = ops.iter().fold(0, |set, op| set | 1 << op.code());
        self.allowed.get_mut(slot).map(|allowed| *allowed = set).is_some()
    }

    /// Slots.
    pub(super) fn slots(&self) -> usize {
        self.allowed.len()
    }

    /// Bytes of a slot.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Puts the image's bytes in the place of those of `words`, a copy of the beginning of a slot, but for the holes.
    pub(super) fn merge(&self, slot: usize, words: &mut [u64]) {
        let first = slot * self.stride / WORD;
        let proved = self.words[first..].iter().zip(&self.holes[first..]);
        for (word, (image, hole)) in words.iter_mut().zip(proved) {
            *word = image & !hole | *word & hole;
        }
    }

    /// Whether a slot may have this operation.
    pub(super) fn allows(&self, slot: usize, op: ChainOp) -> bool {
        self.allowed.get(slot).is_some_and(|allowed| allowed >> op.code() & 1 != 0)
    }
}

const WORD: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_holes_are_taken_from_the_ring() {
        let bytes: Vec<u8> = (0..32).collect();
        let mut image = Image::new(16, &bytes).unwrap();
        assert!(image.open(1, 7, 2));
        let mut copy = [u64::MAX; 2];
        image.merge(1, &mut copy);
        let seen: Vec<u8> = copy.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let expected: Vec<u8> = (16..32).map(|n| if matches!(n, 23 | 24) { 0xff } else { n }).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let mut image = Image::new(16, &[0; 32]).unwrap();
        assert!(!image.open(1, 15, 2) && !image.open(2, 0, 1) && !image.open(0, usize::MAX, 2));
        assert!(!image.allow(2, &[]));
        assert!(Image::new(12, &[0; 12]).is_none() && Image::new(16, &[0; 24]).is_none());
        assert!(Image::new(0, &[]).is_none());
    }

    #[test]
    fn an_operation_must_be_one_of_the_allowed() {
        let mut image = Image::new(16, &[0; 32]).unwrap();
        assert!(image.allows(0, ChainOp::Send));
        assert!(image.allow(0, &[ChainOp::Nop, ChainOp::WriteImm]));
        assert!(image.allows(0, ChainOp::Nop) && image.allows(0, ChainOp::WriteImm));
        assert!(!image.allows(0, ChainOp::Send) && image.allows(1, ChainOp::Send));
    }
}
