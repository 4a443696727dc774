//! Sealed images: what was proved of a queue's slots, and which bytes may differ from it.

use alloc::vec::Vec;
use rdmesh_verbs::chain::ChainOp;

/// The slots of a queue as they were verified. Of each slot only the holes are taken from the ring, and its operation must be
/// one of those that were proved, whoever writes to the ring.
///
/// It is made slot by slot, so that a large one can arrive in parts, none of which takes long.
pub struct Image {
    stride: usize,
    words: Vec<u64>,
    /// Bits that may differ, word by word.
    holes: Vec<u64>,
    /// Operations that a slot may have, as a set of their codes.
    allowed: Vec<u64>,
}

impl Image {
    /// An image without slots yet, with room for some of `stride` bytes; none where that is not whole words.
    pub fn new(stride: usize, slots: usize) -> Option<Self> {
        if stride == 0 || !stride.is_multiple_of(WORD) {
            return None;
        }
        let words = (stride / WORD).checked_mul(slots)?;
        let (room, allowed) = (Vec::with_capacity(words), Vec::with_capacity(slots));
        Some(Self { stride, words: room, holes: Vec::with_capacity(words), allowed })
    }

    /// Adds a slot: its bytes, a bit of `holes` for each byte that may differ, and the operations that it may have, as a set of
    /// their codes, or all bits for any. False where one of these is not that of a slot.
    pub fn push(&mut self, bytes: &[u8], holes: &[u8], allowed: u64) -> bool {
        let is_known = allowed == ANY || allowed & !KNOWN == 0;
        if bytes.len() != self.stride || holes.len() * WORD != self.stride || !is_known {
            return false;
        }
        let (words, _) = bytes.as_chunks::<WORD>();
        self.words.extend(words.iter().map(|word| u64::from_ne_bytes(*word)));
        self.holes.extend(holes.iter().map(|bits| MASKS[usize::from(*bits)]));
        self.allowed.push(allowed);
        true
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.allowed.len()
    }

    /// Bytes that an image of so many slots takes.
    pub fn bytes_of(stride: usize, slots: usize) -> usize {
        slots * (2 * stride + size_of::<u64>())
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

/// The codes of all operations, as a set.
const KNOWN: u64 = {
    let (mut set, mut n) = (0, 0);
    while n < ChainOp::ALL.len() {
        set |= 1 << ChainOp::ALL[n].code();
        n += 1;
    }
    set
};

/// The bits of a word whose bytes are named by eight bits, the first byte in memory by the lowest.
const MASKS: [u64; 256] = {
    let mut masks = [0; 256];
    let mut bits = 0;
    while bits < masks.len() {
        let (mut bytes, mut at) = ([0; WORD], 0);
        while at < WORD {
            bytes[at] = if bits >> at & 1 != 0 { 0xff } else { 0 };
            at += 1;
        }
        masks[bits] = u64::from_ne_bytes(bytes);
        bits += 1;
    }
    masks
};

const WORD: usize = 8;
const ANY: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ops: &[ChainOp]) -> u64 {
        ops.iter().fold(0, |set, op| set | 1 << op.code())
    }

    #[test]
    fn only_holes_are_taken_from_the_ring() {
        let bytes: Vec<u8> = (0..32).collect();
        let mut image = Image::new(16, 2).unwrap();
        assert!(image.push(&bytes[..16], &[0, 0], ANY));
        // Bytes 7 and 8 of the second slot.
        assert!(image.push(&bytes[16..], &[0x80, 0x01], ANY));
        let mut copy = [u64::MAX; 2];
        image.merge(1, &mut copy);
        let seen: Vec<u8> = copy.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let expected: Vec<u8> = (16..32).map(|n| if matches!(n, 23 | 24) { 0xff } else { n }).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_is_no_slot_is_refused() {
        let mut image = Image::new(16, 1).unwrap();
        assert!(!image.push(&[0; 15], &[0; 2], ANY) && !image.push(&[0; 16], &[0; 3], ANY));
        assert!(!image.push(&[0; 16], &[0; 2], 1 << 40) && image.slots() == 0);
        assert!(Image::new(12, 1).is_none() && Image::new(0, 1).is_none() && Image::new(16, usize::MAX).is_none());
    }

    #[test]
    fn an_operation_must_be_one_of_the_allowed() {
        let mut image = Image::new(16, 2).unwrap();
        assert!(image.push(&[0; 16], &[0; 2], set(&[ChainOp::Nop, ChainOp::WriteImm])));
        assert!(image.push(&[0; 16], &[0; 2], ANY));
        assert!(image.allows(0, ChainOp::Nop) && image.allows(0, ChainOp::WriteImm));
        assert!(!image.allows(0, ChainOp::Send) && image.allows(1, ChainOp::Send) && !image.allows(2, ChainOp::Send));
    }
}
