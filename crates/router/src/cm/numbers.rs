//! Numbers that a peer or another program cannot guess.

use aes::Aes256;
use aes::cipher::{BlockEncrypt, KeyInit};
use rdmesh_verbs::Psn;

/// A sequence of numbers that follows from a secret seed: AES in counter mode. Peers and programs see parts of them (PSNs,
/// identifiers), from which neither the seed nor other numbers can be told.
#[derive(Debug)]
pub(super) struct Numbers {
    cipher: Aes256,
    count: u64,
}

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_be_bytes());
        Self { cipher: Aes256::new(&key.into()), count: 0 }
    }

    /// An unused number, which does not reveal how many others there are. Like the kernel's it fits an `int`.
    pub(super) fn unused(&mut self, is_used: impl Fn(u32) -> bool) -> u32 {
        loop {
            let number = (self.next() >> 33) as u32;
            if !is_used(number) {
                return number;
            }
        }
    }

    pub(super) fn psn(&mut self) -> Psn {
        Psn::new((self.next() >> 40) as u32)
    }

    /// The next number.
    pub(super) fn next(&mut self) -> u64 {
        self.count += 1;
        let mut block = [0; 16];
        block[..8].copy_from_slice(&self.count.to_be_bytes());
        let mut block = block.into();
        self.cipher.encrypt_block(&mut block);
        u64::from_be_bytes(std::array::from_fn(|i| block[i]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const COUNT: usize = 1 << 16;

    /// Chi-squared of counts that are to be equal, less its mean and in units of its standard deviation.
    fn deviation(counts: &[u32]) -> f64 {
        let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        let squares: f64 = counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
        let freedom = counts.len() as f64 - 1.0;
        (squares - freedom) / (2.0 * freedom).sqrt()
    }

    fn psns(seed: u64) -> Vec<u32> {
        let mut numbers = Numbers::new(seed);
        (0..COUNT).map(|_| numbers.psn().value()).collect()
    }

    #[test]
    fn psns_are_spread_over_all_24_bits() {
        for seed in [0, 1, u64::MAX, 77] {
            let psns = psns(seed);
            for shift in [0, 8, 16] {
                let mut counts = [0; 256];
                psns.iter().for_each(|psn| counts[(psn >> shift & 0xff) as usize] += 1);
                assert!(deviation(&counts).abs() < 6.0, "bits from {shift}, seed {seed}");
            }
        }
    }

    #[test]
    fn a_psn_says_nothing_of_the_next() {
        let psns = psns(5);
        for pick in [|psn: u32| psn >> 20, |psn: u32| psn & 0xf] {
            let mut pairs = [0; 256];
            psns.windows(2).for_each(|two| pairs[(pick(two[0]) << 4 | pick(two[1])) as usize] += 1);
            assert!(deviation(&pairs).abs() < 6.0);
        }
        let mut steps = [0; 256];
        psns.windows(2).for_each(|two| steps[(two[1].wrapping_sub(two[0]) >> 16 & 0xff) as usize] += 1);
        assert!(deviation(&steps).abs() < 6.0, "not even their difference");
        // A repeated value is followed by another one than the first time: the state is larger than what is seen of it.
        let followed: HashSet<_> = psns.windows(2).map(|two| (two[0], two[1])).collect();
        assert_eq!(followed.len(), COUNT - 1);
    }

    #[test]
    fn neighbouring_seeds_have_nothing_in_common() {
        let (one, other) = (psns(6), psns(7));
        let equal = one.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(equal < 4, "{equal}");
    }
}
