//! GHASH (NIST SP 800-38D, 6.4) with carry-less multiplication of 512 and 128 bits.
//!
//! The `ghash` crate multiplies block by block, which takes as long as all else that is done for a packet. Here up to 128
//! blocks are multiplied by as many powers of the key and reduced once. Where the processor has no such instructions the
//! crate does it; a property holds all ways to the same result.

use ghash::universal_hash::{KeyInit, UniversalHash};

/// A key for GHASH.
pub(super) enum Ghash {
    #[cfg(target_arch = "x86_64")]
    Wide(Box<x86::Powers>),
    #[cfg(target_arch = "x86_64")]
    Narrow(Box<x86::Powers>),
    Portable(ghash::GHash),
}

/// A message: whole blocks of 16 bytes, in three parts.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) head: &'a [u8; STEP],
    /// A multiple of [`STEP`] bytes.
    pub(super) middle: &'a [[u8; STEP]],
    /// At most `STEP` bytes and a block more.
    pub(super) tail: &'a [[u8; BLOCK]],
}

impl Ghash {
    /// The fastest way of this processor.
    pub(super) fn new(key: [u8; BLOCK]) -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if x86::has_wide() {
                return Self::Wide(x86::Powers::new(key));
            }
            if x86::has_narrow() {
                return Self::Narrow(x86::Powers::new(key));
            }
        }
        Self::portable(key)
    }

    fn portable(key: [u8; BLOCK]) -> Self {
        Self::Portable(ghash::GHash::new(&key.into()))
    }

    /// The hash of a message.
    pub(super) fn hash(&self, parts: Parts<'_>) -> [u8; BLOCK] {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Wide(powers) => powers.hash_wide(parts),
            #[cfg(target_arch = "x86_64")]
            Self::Narrow(powers) => powers.hash_narrow(parts),
            Self::Portable(ghash) => {
                let mut ghash = ghash.clone();
                ghash.update_padded(parts.head);
                ghash.update_padded(parts.middle.as_flattened());
                ghash.update_padded(parts.tail.as_flattened());
                ghash.finalize().into()
            }
        }
    }
}

/// Bytes of a block.
pub(super) const BLOCK: usize = 16;
/// Bytes that are taken at once.
pub(super) const STEP: usize = 64;

/// The multiplication is POLYVAL's (RFC 8452, appendix A): GHASH is POLYVAL with the bytes of key, blocks and result reversed
/// and the key multiplied by x.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86 {
    use super::{BLOCK, Parts, STEP};
    use core::arch::x86_64::*;

    /// How many blocks are added up before they are reduced.
    const COUNT: usize = 128;

    /// Powers of a key, the highest first. Where they exist the processor has what [`has_narrow`] asks for.
    pub(in super::super) struct Powers([[u8; BLOCK]; COUNT]);

    pub(super) fn has_narrow() -> bool {
        is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("ssse3") && is_x86_feature_detected!("sse4.1")
    }

    pub(super) fn has_wide() -> bool {
        has_narrow()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("vpclmulqdq")
    }

    impl Powers {
        /// Only where [`has_narrow`].
        pub(super) fn new(key: [u8; BLOCK]) -> Box<Self> {
            assert!(has_narrow());
            // SAFETY: the processor has the features.
            unsafe { Self::of(key) }
        }

        /// Only where [`has_wide`].
        pub(super) fn hash_wide(&self, parts: Parts<'_>) -> [u8; BLOCK] {
            // SAFETY: the variant of the key that leads here is made only where the processor has the features.
            unsafe { self.wide(parts) }
        }

        pub(super) fn hash_narrow(&self, parts: Parts<'_>) -> [u8; BLOCK] {
            // SAFETY: powers exist only where the processor has the features.
            unsafe { self.narrow(parts) }
        }

        #[target_feature(enable = "pclmulqdq,ssse3,sse4.1")]
        fn of(key: [u8; BLOCK]) -> Box<Self> {
            let key = u128::from_be_bytes(key);
            // Times x, modulo x^128 + x^127 + x^126 + x^121 + 1.
            let first = load(&((key << 1) ^ ((key >> 127) * ((0xc2 << 120) | 1))).to_le_bytes());
            let (mut powers, mut power) = (Box::new(Self([[0; BLOCK]; COUNT])), first);
            for to in powers.0.iter_mut().rev() {
                store(power, to);
                power = multiply(power, first);
            }
            powers
        }

        #[target_feature(enable = "pclmulqdq,ssse3,sse4.1")]
        fn narrow(&self, parts: Parts<'_>) -> [u8; BLOCK] {
            let zero = _mm_setzero_si128();
            let mut left = blocks(&parts);
            let mut at = COUNT - left.min(COUNT);
            let (mut low, mut middle, mut high, mut carried) = (zero, zero, zero, zero);
            let (head, body) = (parts.head.as_chunks().0, parts.middle.as_flattened().as_chunks().0);
            for block in head.iter().chain(body).chain(parts.tail) {
                let (x, power) = (_mm_xor_si128(_mm_shuffle_epi8(load(block), reversal()), carried), load(&self.0[at]));
                carried = zero;
                low = _mm_xor_si128(low, _mm_clmulepi64_si128(x, power, 0x00));
                high = _mm_xor_si128(high, _mm_clmulepi64_si128(x, power, 0x11));
                let cross = _mm_xor_si128(_mm_clmulepi64_si128(x, power, 0x01), _mm_clmulepi64_si128(x, power, 0x10));
                middle = _mm_xor_si128(middle, cross);
                at += 1;
                if at == COUNT {
                    carried = reduce(low, middle, high);
                    (low, middle, high) = (zero, zero, zero);
                    left = left.saturating_sub(COUNT);
                    at = COUNT - left.clamp(1, COUNT);
                }
            }
            finish(carried)
        }

        #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,ssse3,sse4.1")]
        fn wide(&self, parts: Parts<'_>) -> [u8; BLOCK] {
            let zero = _mm512_setzero_si512();
            let reversal = _mm512_broadcast_i32x4(reversal());
            let mut left = blocks(&parts);
            let mut at = COUNT - left.min(COUNT);
            let (mut low, mut middle, mut high) = (zero, zero, zero);
            let mut carried = _mm_setzero_si128();
            let tail = parts.tail.as_flattened().chunks(STEP);
            let body = [&parts.head[..]].into_iter().chain(parts.middle.iter().map(|step| &step[..])).chain(tail);
            for step in body {
                let count = step.len() / BLOCK;
                let powers = &self.0.as_flattened()[at * BLOCK..][..step.len()];
                let (x, power) = (load_wide(step), load_wide(powers));
                let x = _mm512_xor_si512(_mm512_shuffle_epi8(x, reversal), _mm512_zextsi128_si512(carried));
                carried = _mm_setzero_si128();
                low = _mm512_xor_si512(low, _mm512_clmulepi64_epi128(x, power, 0x00));
                high = _mm512_xor_si512(high, _mm512_clmulepi64_epi128(x, power, 0x11));
                let cross = _mm512_clmulepi64_epi128(x, power, 0x01);
                let other = _mm512_clmulepi64_epi128(x, power, 0x10);
                middle = _mm512_xor_si512(middle, _mm512_xor_si512(cross, other));
                at += count;
                if at == COUNT {
                    carried = reduce(fold(low), fold(middle), fold(high));
                    (low, middle, high) = (zero, zero, zero);
                    left = left.saturating_sub(COUNT);
                    at = COUNT - left.clamp(1, COUNT);
                }
            }
            finish(carried)
        }
    }

    fn blocks(parts: &Parts<'_>) -> usize {
        (1 + parts.middle.len()) * (STEP / BLOCK) + parts.tail.len()
    }

    #[target_feature(enable = "pclmulqdq,ssse3,sse4.1")]
    fn multiply(a: __m128i, b: __m128i) -> __m128i {
        let cross = _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x01), _mm_clmulepi64_si128(a, b, 0x10));
        reduce(_mm_clmulepi64_si128(a, b, 0x00), cross, _mm_clmulepi64_si128(a, b, 0x11))
    }

    /// A product in three parts modulo the polynomial, divided by x^128 (Montgomery).
    #[target_feature(enable = "pclmulqdq,ssse3,sse4.1")]
    fn reduce(low: __m128i, middle: __m128i, high: __m128i) -> __m128i {
        let low = _mm_xor_si128(low, _mm_slli_si128(middle, 8));
        let high = _mm_xor_si128(high, _mm_srli_si128(middle, 8));
        let polynomial = _mm_set_epi64x(0, 0xc200_0000_0000_0000_u64.cast_signed());
        let half = |x| _mm_xor_si128(_mm_shuffle_epi32(x, 0x4e), _mm_clmulepi64_si128(x, polynomial, 0x00));
        _mm_xor_si128(half(half(low)), high)
    }

    #[target_feature(enable = "ssse3")]
    fn reversal() -> __m128i {
        _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    }

    #[target_feature(enable = "ssse3")]
    fn finish(hash: __m128i) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        store(_mm_shuffle_epi8(hash, reversal()), &mut bytes);
        bytes
    }

    #[target_feature(enable = "sse2")]
    fn load(from: &[u8; BLOCK]) -> __m128i {
        // SAFETY: an unaligned read of 16 bytes, which there are.
        unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
    }

    #[target_feature(enable = "sse2")]
    fn store(value: __m128i, to: &mut [u8; BLOCK]) {
        // SAFETY: an unaligned write of 16 bytes, for which there is room.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), value) }
    }

    /// At most [`STEP`] bytes, with zeros behind them.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn load_wide(from: &[u8]) -> __m512i {
        if from.len() >= STEP {
            // SAFETY: an unaligned read of 64 bytes, which there are.
            return unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
        }
        let mask = (1 << from.len()) - 1;
        // SAFETY: only the bytes whose bit in the mask is set are read, which are those of the slice.
        unsafe { _mm512_maskz_loadu_epi8(mask, from.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    fn fold(x: __m512i) -> __m128i {
        let half = _mm256_xor_si256(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
        _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_ways_lead_to_the_same_hash(
            key: [u8; BLOCK],
            head in prop::collection::vec(any::<u8>(), STEP),
            middle in prop::collection::vec(any::<[u8; BLOCK]>(), 0..140),
            tail in prop::collection::vec(any::<[u8; BLOCK]>(), 1..=5),
        ) {
            let middle = &middle.as_flattened().as_chunks().0;
            let parts = Parts { head: head[..].try_into().unwrap(), middle, tail: &tail };
            let expected = Ghash::portable(key).hash(parts);
            #[cfg(target_arch = "x86_64")]
            {
                if x86::has_narrow() {
                    prop_assert_eq!(Ghash::Narrow(x86::Powers::new(key)).hash(parts), expected);
                }
                if x86::has_wide() {
                    prop_assert_eq!(Ghash::Wide(x86::Powers::new(key)).hash(parts), expected);
                }
            }
            prop_assert_eq!(Ghash::new(key).hash(parts), expected);
        }
    }
}
