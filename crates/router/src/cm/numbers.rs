//! Numbers that a peer or another program cannot guess.

use rdmesh_verbs::Psn;

/// A sequence of numbers that follows from a seed.
#[derive(Debug)]
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed | 1)
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

    /// The next number (splitmix64).
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
