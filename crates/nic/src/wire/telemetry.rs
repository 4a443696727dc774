//! Telemetry of a router's link: how much it carries, and how long packets wait before it. It is what HPCC's switches write into
//! packets (Li et al., SIGCOMM 2019, 4.1), of the hop that routers see themselves: the last.
//!
//! A requester asks for it in its requests. Then each selective acknowledgement begins with
//!
//! ```text
//! 4 bytes  time in ns, modulo 2^32
//! 4 bytes  units of 64 bytes that the link has carried until then, modulo 2^32
//! 4 bytes  time in ns that the last packet has waited, beyond that in which the router usually handles one
//! 4 bytes  rate of the link in Mb/s; 0 if that is not known
//! ```

use super::Malformed;
use super::bytes::Reader;

/// Telemetry of one hop at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Telemetry {
    /// Time in ns, modulo 2^32.
    pub at: u32,
    /// Units of [`Telemetry::UNIT`] that were carried until then, modulo 2^32.
    pub carried: u32,
    /// Time in ns that the last packet has waited in a queue.
    pub waited: u32,
    /// Rate of the link in Mb/s; 0 if that is not known.
    pub rate: u32,
}

impl Telemetry {
    /// Bytes that it takes.
    pub const LEN: usize = 16;
    /// Bytes of a unit in which traffic is counted.
    pub const UNIT: u64 = 64;

    /// Writes it to the first [`Telemetry::LEN`] bytes of `out`.
    pub fn encode(&self, out: &mut [u8]) {
        let words = [self.at, self.carried, self.waited, self.rate];
        for (bytes, word) in out.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
    }

    /// Reads one from the beginning of `bytes`. Returns what follows too.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut reader = Reader::new(bytes);
        let [at, carried, waited, rate] = [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?];
        Ok((Self { at, carried, waited, rate }, reader.rest()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(at: u32, carried: u32, waited: u32, rate: u32) {
            let telemetry = Telemetry { at, carried, waited, rate };
            let mut bytes = vec![0xee; Telemetry::LEN + 3];
            telemetry.encode(&mut bytes);
            prop_assert_eq!(Telemetry::decode(&bytes), Ok((telemetry, &[0xee; 3][..])));
            prop_assert_eq!(Telemetry::decode(&bytes[..Telemetry::LEN - 1]), Err(Malformed::TooShort));
        }
    }
}
