//! GHASH (NIST SP 800-38D, 6.4) with carry-less multiplication of 512 and 128 bits.
//!
//! The `ghash` crate multiplies block by block, which takes as long as all else that is done for a packet. Here some 128
//! blocks are multiplied by as many powers of the key and reduced once, and nothing is copied where the instructions read
//! parts of a vector. Where the processor has no such instructions the crate does it; a property holds all ways to the same
//! result.

use ghash::universal_hash::{KeyInit, UniversalHash};
use std::ops::Range;

/// A key for GHASH.
pub(super) enum Ghash {
    #[cfg(target_arch = "x86_64")]
    Wide(Box<x86::Powers>),
    #[cfg(target_arch = "x86_64")]
    Narrow(Box<x86::Powers>),
    Portable(ghash::GHash),
}

/// A message of at least [`STEP`] bytes, of which those in `blank`, among the first ones, count as zeros.
#[derive(Clone, Copy)]
pub(super) struct Message<'a> {
    steps: &'a [[u8; STEP]],
    odd: &'a [u8],
    /// A bit for each byte of the first step.
    blank: u64,
}

impl<'a> Message<'a> {
    /// None where `bytes` are too few. `blank` is a part of the first step.
    pub(super) fn new(bytes: &'a [u8], blank: Range<usize>) -> Option<Self> {
        let (steps, odd) = bytes.as_chunks();
        let blank = ((1 << blank.len()) - 1) << blank.start;
        (!steps.is_empty()).then_some(Self { steps, odd, blank })
    }

    /// Its bytes, and those of what is encrypted, in bits.
    fn lengths(self) -> [u64; 2] {
        [8 * (self.steps.len() * STEP + self.odd.len()) as u64, 0]
    }

    /// The first step, as it counts.
    fn head(self) -> [u8; STEP] {
        let mut head = self.steps[0];
        head.iter_mut().enumerate().filter(|(at, _)| self.blank >> at & 1 == 1).for_each(|(_, byte)| *byte = 0);
        head
    }

    /// The blocks after the last step: the odd bytes, padding and the lengths; and their number.
    fn tail(self) -> ([[u8; BLOCK]; MOST_TAIL], usize) {
        let (mut tail, last) = ([[0; BLOCK]; MOST_TAIL], self.odd.len().div_ceil(BLOCK));
        tail.as_flattened_mut()[..self.odd.len()].copy_from_slice(self.odd);
        tail[last].copy_from_slice(self.lengths().map(u64::to_be_bytes).as_flattened());
        (tail, last + 1)
    }
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

    /// The hash of a message, with its lengths behind it as GCM puts them there.
    pub(super) fn hash(&self, message: Message<'_>) -> [u8; BLOCK] {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Wide(powers) => powers.hash_wide(message),
            #[cfg(target_arch = "x86_64")]
            Self::Narrow(powers) => powers.hash_narrow(message),
            Self::Portable(ghash) => {
                let (mut ghash, (tail, count)) = (ghash.clone(), message.tail());
                ghash.update_padded(&message.head());
                ghash.update_padded(message.steps[1..].as_flattened());
                ghash.update_padded(tail[..count].as_flattened());
                ghash.finalize().into()
            }
        }
    }
}

/// Bytes of a block.
pub(super) const BLOCK: usize = 16;
/// Bytes that are taken at once.
pub(super) const STEP: usize = 64;
/// Blocks that may follow the last step: one for the lengths is among them.
const MOST_TAIL: usize = STEP / BLOCK + 1;

/// The multiplication is POLYVAL's (RFC 8452, appendix A): GHASH is POLYVAL with the bytes of key, blocks and result reversed
/// and the key multiplied by x.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86 {
    use super::{BLOCK, MOST_TAIL, Message, STEP};
    use core::arch::x86_64::*;

    /// Number of steps that are added up before they are reduced.
    const GROUP: usize = 32;
    /// Blocks in the last group, at most.
    const COUNT: usize = GROUP * STEP / BLOCK + MOST_TAIL;

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
        pub(super) fn hash_wide(&self, message: Message<'_>) -> [u8; BLOCK] {
            // SAFETY: the variant of the key that leads here is made only where the processor has the features.
            unsafe { self.wide(message) }
        }

        pub(super) fn hash_narrow(&self, message: Message<'_>) -> [u8; BLOCK] {
            // SAFETY: powers exist only where the processor has the features.
            unsafe { self.narrow(message) }
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

        /// The powers for a last group of so many blocks, or one of [`GROUP`] steps.
        fn last(&self, blocks: usize) -> &[u8] {
            self.0[COUNT - blocks..].as_flattened()
        }

        #[target_feature(enable = "pclmulqdq,ssse3,sse4.1")]
        fn narrow(&self, message: Message<'_>) -> [u8; BLOCK] {
            let (head, (tail, count)) = (message.head(), message.tail());
            let mut blocks = message.steps.len() * (STEP / BLOCK) + count;
            let whole = head.as_chunks().0.iter().chain(message.steps[1..].as_flattened().as_chunks().0);
            let mut all = whole.chain(&tail[..count]);
            let mut carried = _mm_setzero_si128();
            while blocks > 0 {
                let now = if blocks > COUNT { GROUP * STEP / BLOCK } else { blocks };
                blocks -= now;
                let zero = _mm_setzero_si128();
                let (mut low, mut middle, mut high) = (zero, zero, zero);
                for (power, block) in self.last(now).as_chunks().0.iter().zip(&mut all) {
                    let x = _mm_xor_si128(_mm_shuffle_epi8(load(block), reversal()), carried);
                    let power = load(power);
                    carried = zero;
                    low = _mm_xor_si128(low, _mm_clmulepi64_si128(x, power, 0x00));
                    high = _mm_xor_si128(high, _mm_clmulepi64_si128(x, power, 0x11));
                    let cross =
                        _mm_xor_si128(_mm_clmulepi64_si128(x, power, 0x01), _mm_clmulepi64_si128(x, power, 0x10));
                    middle = _mm_xor_si128(middle, cross);
                }
                carried = reduce(low, middle, high);
            }
            finish(carried)
        }

        #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,ssse3,sse4.1")]
        fn wide(&self, message: Message<'_>) -> [u8; BLOCK] {
            let (mut steps, mut kept, mut carried) = (message.steps, !message.blank, _mm_setzero_si128());
            while steps.len() > GROUP {
                let (now, later) = steps.split_at(GROUP);
                carried = Sum::of(now, self.last(GROUP * STEP / BLOCK), kept, carried).reduced();
                (steps, kept) = (later, !0);
            }
            let odd = message.odd.len().div_ceil(BLOCK);
            let powers = self.last(steps.len() * (STEP / BLOCK) + odd + 1);
            let sum = Sum::of(steps, powers, kept, carried);
            let powers = &powers[steps.len() * STEP..];
            let sum = sum.plus(reversed(load_wide(message.odd)), load_wide(&powers[..odd * BLOCK]));
            // The first of the lengths is in the upper half, as the bytes of a block are reversed.
            let lengths = _mm_set_epi64x(message.lengths()[0].cast_signed(), 0);
            let sum = sum.plus(_mm512_zextsi128_si512(lengths), load_wide(&powers[odd * BLOCK..]));
            finish(sum.reduced())
        }
    }

    /// A sum of products in three parts, in four lanes.
    #[derive(Clone, Copy)]
    struct Sum {
        low: __m512i,
        middle: __m512i,
        high: __m512i,
    }

    impl Sum {
        /// Of the blocks of `steps`, of which there is one, and the powers: of the first step only the bytes that are `kept`,
        /// after `carried` was added to it.
        #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,ssse3,sse4.1")]
        fn of(steps: &[[u8; STEP]], powers: &[u8], kept: u64, carried: __m128i) -> Self {
            let zero = _mm512_setzero_si512();
            let first = reversed(_mm512_maskz_mov_epi8(kept, load_wide(&steps[0])));
            let first = _mm512_xor_si512(first, _mm512_zextsi128_si512(carried));
            let powers = powers.as_chunks::<STEP>().0;
            let sum = Self { low: zero, middle: zero, high: zero }.plus(first, load_wide(&powers[0]));
            let rest = steps[1..].iter().zip(&powers[1..]);
            rest.fold(sum, |sum, (step, power)| sum.plus(reversed(load_wide(step)), load_wide(power)))
        }

        #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,ssse3,sse4.1")]
        #[inline]
        fn plus(self, x: __m512i, power: __m512i) -> Self {
            let cross = _mm512_clmulepi64_epi128(x, power, 0x01);
            let other = _mm512_clmulepi64_epi128(x, power, 0x10);
            Self {
                low: _mm512_xor_si512(self.low, _mm512_clmulepi64_epi128(x, power, 0x00)),
                middle: _mm512_xor_si512(self.middle, _mm512_xor_si512(cross, other)),
                high: _mm512_xor_si512(self.high, _mm512_clmulepi64_epi128(x, power, 0x11)),
            }
        }

        #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,ssse3,sse4.1")]
        fn reduced(self) -> __m128i {
            reduce(fold(self.low), fold(self.middle), fold(self.high))
        }
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
    #[inline]
    fn load_wide(from: &[u8]) -> __m512i {
        if from.len() >= STEP {
            // SAFETY: an unaligned read of 64 bytes, which there are.
            return unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
        }
        let mask = (1 << from.len()) - 1;
        // SAFETY: only the bytes whose bit in the mask is set are read, which are those of the slice.
        unsafe { _mm512_maskz_loadu_epi8(mask, from.as_ptr().cast()) }
    }

    /// With the bytes of each block reversed.
    #[target_feature(enable = "avx512f,avx512bw,ssse3")]
    #[inline]
    fn reversed(x: __m512i) -> __m512i {
        _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(reversal()))
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
            // Some groups, their borders among them.
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), STEP..8 * STEP),
                prop::collection::vec(any::<u8>(), 31 * STEP..34 * STEP),
                prop::collection::vec(any::<u8>(), 63 * STEP..67 * STEP),
            ],
            start in 0..48_usize,
        ) {
            let message = Message::new(&bytes, start..start + BLOCK).unwrap();
            let mut counted = bytes.clone();
            counted[start..start + BLOCK].fill(0);
            let mut crate_s = ghash::GHash::new(&key.into());
            crate_s.update_padded(&counted);
            crate_s.update_padded([bytes.len() as u64 * 8, 0].map(u64::to_be_bytes).as_flattened());
            let expected: [u8; BLOCK] = crate_s.finalize().into();
            prop_assert_eq!(Ghash::portable(key).hash(message), expected);
            #[cfg(target_arch = "x86_64")]
            {
                if x86::has_narrow() {
                    prop_assert_eq!(Ghash::Narrow(x86::Powers::new(key)).hash(message), expected);
                }
                if x86::has_wide() {
                    prop_assert_eq!(Ghash::Wide(x86::Powers::new(key)).hash(message), expected);
                }
            }
            prop_assert_eq!(Ghash::new(key).hash(message), expected);
        }
    }
}
