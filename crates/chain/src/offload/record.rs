//! Records: a key and its value as the chain sends them, so that the client can tell what they are.
//!
//! ```text
//! 0 version 4, length of the key 4, length of the value 4, zero 4    16 checksum 8    24 key, value
//! ```

/// Content of a reply, with the value as a copy or where the reply lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer<V = Vec<u8>> {
    /// The value, and the version of its record.
    Value {
        /// Grows with each record of the table.
        version: u32,
        /// The value.
        value: V,
    },
    /// The key is not there.
    Miss,
    /// A sound record of another key: one with the same fingerprint, or one that took the place of the key's meanwhile. The key
    /// was absent at some time since the request.
    OtherKey,
    /// The record changed while it was sent: ask again.
    Torn,
    /// The reply to a request that was answered already.
    Stale,
}

impl Answer<&[u8]> {
    /// The same with a copy of the value.
    pub(super) fn into_owned(self) -> Answer {
        match self {
            Self::Value { version, value } => Answer::Value { version, value: value.to_vec() },
            Self::Miss => Answer::Miss,
            Self::OtherKey => Answer::OtherKey,
            Self::Torn => Answer::Torn,
            Self::Stale => Answer::Stale,
        }
    }
}

/// Bytes before the key.
pub(super) const HEAD: usize = 24;

/// The bytes of a record.
pub(super) fn encode(version: u32, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = version.to_le_bytes().to_vec();
    bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 12]);
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    let sum = checksum(&bytes).to_le_bytes();
    bytes[16..HEAD].copy_from_slice(&sum);
    bytes
}

/// Judges the bytes of a reply to a request for a key.
pub(super) fn judge<'a>(key: &[u8], bytes: &'a [u8]) -> Answer<&'a [u8]> {
    if bytes.is_empty() {
        return Answer::Miss;
    }
    let number = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    let (version, key_length, length) = (number(0), number(4) as usize, number(8) as usize);
    let is_whole = bytes.len() >= HEAD && (bytes.len() - HEAD).checked_sub(key_length) == Some(length);
    if !is_whole || bytes[16..HEAD] != checksum(bytes).to_le_bytes() {
        return Answer::Torn;
    }
    let (found, value) = bytes[HEAD..].split_at(key_length);
    if found == key { Answer::Value { version, value } } else { Answer::OtherKey }
}

/// A checksum of a record without the checksum's own bytes. The sums of words do not wait for each other, and whole blocks are
/// taken without a branch: else the client took longer to check a reply of 64 KB than the network to bring it.
fn checksum(bytes: &[u8]) -> u64 {
    let mut sums: [u64; LANES] = core::array::from_fn(|lane| mix(lane as u64 + 1));
    for part in [&bytes[..16], &bytes[HEAD..]] {
        let (blocks, rest) = part.as_chunks::<{ LANES * WORD }>();
        blocks.iter().for_each(|block| add(&mut sums, block));
        let mut last = [0; LANES * WORD];
        last[..rest.len()].copy_from_slice(rest);
        add(&mut sums, &last);
    }
    sums.into_iter().fold(bytes.len() as u64, |all, sum| mix(all ^ sum))
}

/// Adds a block to the sums, one word to each.
fn add(sums: &mut [u64; LANES], block: &[u8; LANES * WORD]) {
    let (words, _) = block.as_chunks::<WORD>();
    for (sum, word) in sums.iter_mut().zip(words) {
        *sum = (*sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// A hash of a key.
pub(super) fn hash(key: &[u8], seed: u64) -> u64 {
    key.iter().fold(mix(seed ^ key.len() as u64), |hash, byte| mix(hash ^ u64::from(*byte)))
}

const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ (word >> 31)).wrapping_add(0x9e37_79b9_7f4a_7c15)
}

/// 56 bits that stand for a key, never zero.
pub fn fingerprint(key: &[u8]) -> u64 {
    (hash(key, 1) >> 8).max(1)
}

/// Sums of a checksum: as many as a processor multiplies while it waits for one product.
const LANES: usize = 8;
const WORD: usize = 8;
