//! Probes of the path between two endpoints, which routers send and answer: management datagrams of the vendor class that
//! `ibping` uses (0x32 with the OUI of the OpenIB Alliance; IBA 16.5).
//!
//! An answer has, from the beginning of the data on:
//!
//! ```text
//! 4 bytes  time in ns for which the other router held the probe before it answered
//! 4 bytes  time in ns for which the probe had waited in that router's socket; all ones if that is not known
//! 1 byte   bit 0: the address that was probed is an endpoint's there; bit 1: security groups let the sender connect to it
//! 3 bytes  version of the other router: major, minor, patch
//! ```
//!
//! A probe may be longer than other management datagrams, to test the path's MTU, and its answer is as long.

use core::fmt;
use core::time::Duration;

/// A probe, or the answer to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Transaction ID, which the answer repeats.
    pub tid: u64,
    /// Of an answer: what the other router says.
    pub answer: Option<ProbeAnswer>,
}

/// Answer of the other host's router to a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProbeAnswer {
    /// Time between its arrival in the engine and the answer.
    pub held: Duration,
    /// Time in the router's socket before.
    pub waited: Option<Duration>,
    /// Whether the address that was probed is an endpoint's there.
    pub is_here: bool,
    /// Whether security groups, as that router knows them, let the sender begin a connection to some port of it.
    pub is_allowed: bool,
    /// Version of the router.
    pub version: RouterVersion,
}

/// Version of a router.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct RouterVersion {
    pub major: u8,
    pub minor: u8,
    pub patch: u8,
}

impl RouterVersion {
    /// Version of this program.
    pub const OWN: Self = Self {
        major: number(env!("CARGO_PKG_VERSION_MAJOR")),
        minor: number(env!("CARGO_PKG_VERSION_MINOR")),
        patch: number(env!("CARGO_PKG_VERSION_PATCH")),
    };
}

impl fmt::Display for RouterVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { major, minor, patch } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

impl Probe {
    /// Bytes of the shortest probe: those of a management datagram (IBA 13.4.2).
    pub const LEN: usize = 256;
    /// Bytes of the longest: the payload of a packet with the largest path MTU.
    pub const MOST: usize = 4096;

    /// Writes it to `out`, which has at least [`Probe::LEN`] bytes.
    pub fn encode(&self, out: &mut [u8]) {
        out.fill(0);
        out[..4].copy_from_slice(&HEADER);
        out[3] |= if self.answer.is_some() { RESPONSE } else { 0 };
        out[TID..TID + 8].copy_from_slice(&self.tid.to_be_bytes());
        out[OUI..OUI + 3].copy_from_slice(&OPENIB);
        let Some(answer) = self.answer else { return };
        let nanos = |time: Duration| u32::try_from(time.as_nanos()).unwrap_or(UNKNOWN - 1).min(UNKNOWN - 1);
        out[DATA..DATA + 4].copy_from_slice(&nanos(answer.held).to_be_bytes());
        out[DATA + 4..DATA + 8].copy_from_slice(&answer.waited.map_or(UNKNOWN, nanos).to_be_bytes());
        out[DATA + 8] = u8::from(answer.is_here) | u8::from(answer.is_allowed) << 1;
        let RouterVersion { major, minor, patch } = answer.version;
        out[DATA + 9..DATA + 12].copy_from_slice(&[major, minor, patch]);
    }

    /// The probe that a datagram of the general service interface carries, if it is one.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let [version, class, class_version, method] = *payload.first_chunk()?;
        let is_answer = method & RESPONSE != 0;
        let is_probe = [version, class, class_version, method & !RESPONSE] == HEADER;
        if !(Self::LEN..=Self::MOST).contains(&payload.len()) || !is_probe || payload[OUI..OUI + 3] != OPENIB {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes([payload[at], payload[at + 1], payload[at + 2], payload[at + 3]]);
        let tid = u64::from(word(TID)) << 32 | u64::from(word(TID + 4));
        let (held, waited, flags) = (word(DATA), word(DATA + 4), payload[DATA + 8]);
        let answer = is_answer.then(|| ProbeAnswer {
            held: Duration::from_nanos(held.into()),
            waited: (waited != UNKNOWN).then(|| Duration::from_nanos(waited.into())),
            is_here: flags & 1 != 0,
            is_allowed: flags & 2 != 0,
            version: RouterVersion { major: payload[DATA + 9], minor: payload[DATA + 10], patch: payload[DATA + 11] },
        });
        Some(Self { tid, answer })
    }
}

/// A number in decimal.
const fn number(text: &str) -> u8 {
    match u8::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("a version's number is of one byte"),
    }
}

/// Base version, class, class version, and the method Get.
const HEADER: [u8; 4] = [1, 0x32, 1, 1];
const RESPONSE: u8 = 0x80;
/// Places of fields.
const TID: usize = 8;
const OUI: usize = 37;
const DATA: usize = 40;
const OPENIB: [u8; 3] = [0x00, 0x14, 0x05];
const UNKNOWN: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            tid: u64,
            len in 256..=4096_usize,
            answer: Option<(u32, Option<u32>, bool, bool)>,
            version: (u8, u8, u8),
        ) {
            let version = RouterVersion { major: version.0, minor: version.1, patch: version.2 };
            let nanos = |n: u32| Duration::from_nanos(n.min(UNKNOWN - 1).into());
            let answer = answer.map(|(held, waited, is_here, is_allowed)| {
                ProbeAnswer { held: nanos(held), waited: waited.map(nanos), is_here, is_allowed, version }
            });
            let probe = Probe { tid, answer };
            let mut bytes = vec![0xee; len];
            probe.encode(&mut bytes);
            prop_assert_eq!(Probe::decode(&bytes), Some(probe));
            prop_assert_eq!(Probe::decode(&bytes[..255]), None);
            bytes.resize(4097, 0);
            prop_assert_eq!(Probe::decode(&bytes), None);
        }

        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Probe::decode(&bytes);
        }
    }

    #[test]
    fn it_is_what_ibping_sends() {
        let mut bytes = [0; 256];
        Probe { tid: 0x0102_0304_0506_0708, answer: None }.encode(&mut bytes);
        assert_eq!(bytes[..4], [1, 0x32, 1, 1]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[36..40], [0, 0x00, 0x14, 0x05]);
    }
}
