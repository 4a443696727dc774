//! Selective acknowledgements between routers: which packets have arrived behind a gap (after RFC 2018 and MRC's SACK).
//!
//! RoCEv2 has no word for them, so they have an opcode of the manufacturer's range (IBA 9.2.1, 110xxxxx), and are sent only to a
//! peer that declares in its requests that it takes them. The packet's PSN is the next that the responder executes. Behind the
//! base header come
//!
//! ```text
//! 4 bytes      duplicates: packets that had arrived before, modulo 2^32
//! 4 bytes      repeats: packets that arrived and were marked as sent again, modulo 2^32
//! 8 bytes × n  bitmap, n ≤ 16: bit i of word w, from the least significant, is PSN + 64 w + i
//! ```

use super::Malformed;
use super::bytes::Reader;

/// Contents of a selective acknowledgement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SelectiveAck {
    /// Packets of requests that had arrived before, since the connection began.
    pub duplicates: u32,
    /// Packets that were marked as sent again, since the connection began.
    pub repeats: u32,
    words: [u64; WORDS],
    used: usize,
}

impl SelectiveAck {
    /// Nothing has arrived behind a gap.
    pub fn new(duplicates: u32, repeats: u32) -> Self {
        Self { duplicates, repeats, words: [0; WORDS], used: 0 }
    }

    /// Marks the packet `ahead` PSNs behind the one that is next, which is 0 itself, and before [`SEQUENCE_WINDOW`]. Others are
    /// ignored.
    pub fn mark(&mut self, ahead: u32) {
        if ahead < SEQUENCE_WINDOW {
            let at = ahead as usize;
            self.words[at / 64] |= 1 << (at % 64);
            self.used = self.used.max(at / 64 + 1);
        }
    }

    /// How far behind the next packet those are that have arrived, in order.
    pub fn marked(&self) -> impl Iterator<Item = u32> {
        self.words[..self.used].iter().zip(0u32..).flat_map(|(word, w)| {
            let mut left = *word;
            core::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.checked_sub(1)?;
                Some(w * 64 + bit)
            })
        })
    }

    /// Bytes that it takes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        HEADER + 8 * self.used
    }

    /// Writes [`SelectiveAck::len`] bytes.
    pub fn encode(&self, out: &mut [u8]) {
        let (counts, words) = out.split_at_mut(HEADER);
        counts[..4].copy_from_slice(&self.duplicates.to_be_bytes());
        counts[4..].copy_from_slice(&self.repeats.to_be_bytes());
        for (bytes, word) in words.chunks_exact_mut(8).zip(self.words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
    }

    /// Reads one from all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let mut ack = Self::new(reader.u32()?, reader.u32()?);
        let count = (bytes.len() - HEADER) / 8;
        if count > WORDS || bytes.len() != HEADER + 8 * count {
            return Err(Malformed::Length);
        }
        for word in &mut ack.words[..count] {
            *word = reader.u64()?;
        }
        ack.used = count;
        Ok(ack)
    }
}

/// Packets from the oldest that is not acknowledged to the newest that may be sent: as many as one selective acknowledgement
/// describes.
pub const SEQUENCE_WINDOW: u32 = 1024;
const HEADER: usize = 8;
const WORDS: usize = SEQUENCE_WINDOW as usize / 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn what_is_marked_is_read(duplicates: u32, repeats: u32, marks in prop::collection::btree_set(0..1100_u32, 0..60)) {
            let mut ack = SelectiveAck::new(duplicates, repeats);
            marks.iter().for_each(|mark| ack.mark(*mark));
            let mut bytes = vec![0; ack.len()];
            ack.encode(&mut bytes);
            let read = SelectiveAck::decode(&bytes).expect("it was encoded");
            let expected: BTreeSet<u32> = marks.into_iter().filter(|mark| *mark < SEQUENCE_WINDOW).collect();
            prop_assert_eq!((read.duplicates, read.repeats), (duplicates, repeats));
            prop_assert!(read.marked().eq(expected), "{read:?}");
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            match SelectiveAck::decode(&bytes) {
                Ok(ack) => {
                    prop_assert_eq!(ack.len(), bytes.len());
                    prop_assert!(ack.marked().all(|mark| mark < SEQUENCE_WINDOW));
                }
                Err(error) => prop_assert!(bytes.len() % 8 != 0 || !(HEADER..=HEADER + 8 * WORDS).contains(&bytes.len()), "{error}"),
            }
        }
    }
}
