//! Random numbers from a seed: the same on every machine and in every version.

/// Purpose of a stream of random numbers. Each purpose has a stream of its own, so that a change of one leaves the others as
/// they were.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Stream {
    Topology = 1,
    Network = 2,
    Workload = 3,
    Faults = 4,
}

/// A generator of numbers: xoshiro256++ by Blackman and Vigna, seeded through splitmix64.
#[derive(Clone, Debug)]
pub struct Chance([u64; 4]);

impl Chance {
    /// The stream of `seed` that serves `stream`.
    pub fn new(seed: u64, stream: Stream) -> Self {
        let mut state = seed.wrapping_mul(STREAMS).wrapping_add(stream as u64);
        Self(std::array::from_fn(|_| splitmix(&mut state)))
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number from `from` up to and without `to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        debug_assert!(from < to);
        from + ((u128::from(self.draw()) * u128::from(to - from)) >> 64) as u64
    }

    /// A number from `from` up to and without `to`, each order of magnitude as likely as the next.
    pub fn scale(&mut self, from: u64, to: u64) -> u64 {
        let (low, high) = ((from.max(1) as f64).ln(), (to.max(2) as f64).ln());
        ((low + (high - low) * self.unit()).exp() as u64).clamp(from, to - 1)
    }

    /// A number from 0 up to and without 1.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with probability `p`.
    pub fn happens(&mut self, p: f64) -> bool {
        p > 0.0 && self.unit() < p
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.between(0, choices.len() as u64) as usize]
    }
}

/// Bytes that belong to `name` alone, from position `start` on.
pub fn pattern(name: u64, len: usize) -> Vec<u8> {
    let mut state = name;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&splitmix(&mut state).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// One number mixed from two.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut state = a ^ b.wrapping_mul(STREAMS);
    splitmix(&mut state)
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const STREAMS: u64 = 0xd134_2543_de82_ef95;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_a_seed_differ_and_repeat() {
        let numbers = |stream| {
            let mut chance = Chance::new(7, stream);
            std::array::from_fn::<u64, 4, _>(|_| chance.draw())
        };
        assert_eq!(numbers(Stream::Network), numbers(Stream::Network));
        assert_ne!(numbers(Stream::Network), numbers(Stream::Faults));
    }

    #[test]
    fn ranges_are_kept() {
        let mut chance = Chance::new(1, Stream::Topology);
        for _ in 0..1000 {
            assert!((3..9).contains(&chance.between(3, 9)));
            assert!((10..5000).contains(&chance.scale(10, 5000)));
        }
    }
}
