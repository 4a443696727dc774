//! Fault injection: faults in received datagrams, to test programs and the engine.

mod injector;

pub(super) use injector::Injector;

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// Kinds and rates of injected faults. As text: `loss=1%,duplicate=0.1%,seed=7`; other faults do not occur.
///
/// | key | what happens to a datagram |
/// |---|---|
/// | `loss` | it is lost |
/// | `burst` | `burst=0.1%/20`: it begins a burst of losses that is 20 datagrams long on average (Gilbert's model) |
/// | `duplicate` | it arrives twice |
/// | `reorder` | some later ones overtake it |
/// | `corrupt` | one of its bits is flipped |
/// | `ce` | it is marked as having met congestion (RFC 3168) |
/// | `seed` | where chance begins |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Single losses.
    pub loss: Chance,
    /// Losses in bursts.
    pub burst: Burst,
    /// Duplicates.
    pub duplicate: Chance,
    /// Overtaken datagrams.
    pub reorder: Chance,
    /// Flipped bits.
    pub corrupt: Chance,
    /// Congestion marks.
    pub ce: Chance,
    /// Seed of chance.
    pub seed: u64,
}

/// A probability, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Chance(u32);

/// Bursts of losses: Gilbert's model, in which everything is lost in the bad state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Burst {
    /// Probability that a datagram begins a burst.
    pub begin: Chance,
    /// Mean number of datagrams of a burst.
    pub length: u32,
}

/// Error of parsing a description of faults.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidFaults {
    /// Not one of the keys.
    #[error("no fault `{0}`: there are loss, burst, duplicate, reorder, corrupt, ce and seed")]
    Key(String),
    /// No value.
    #[error("`{0}` has no value: `loss=1%` is how it is written")]
    NoValue(String),
    /// Not a percentage.
    #[error("`{0}` is not a percentage from 0% to 100% with up to four decimals")]
    Chance(String),
    /// Not a burst.
    #[error("`{0}` is not a burst: `burst=0.1%/20` begins one with 0.1% that is 20 datagrams long on average")]
    Burst(String),
    /// Not a seed.
    #[error("seed: {0}")]
    Seed(#[from] ParseIntError),
}

impl Chance {
    /// `millionths` of one; more than all is all.
    pub const fn from_millionths(millionths: u32) -> Self {
        Self(if millionths < MILLION { millionths } else { MILLION })
    }

    /// In millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }
}

impl FromStr for Faults {
    type Err = InvalidFaults;

    fn from_str(text: &str) -> Result<Self, InvalidFaults> {
        let mut faults = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| InvalidFaults::NoValue(part.to_owned()))?;
            match key.trim() {
                "loss" => faults.loss = value.parse()?,
                "burst" => faults.burst = value.parse()?,
                "duplicate" => faults.duplicate = value.parse()?,
                "reorder" => faults.reorder = value.parse()?,
                "corrupt" => faults.corrupt = value.parse()?,
                "ce" => faults.ce = value.parse()?,
                "seed" => faults.seed = value.trim().parse()?,
                key => return Err(InvalidFaults::Key(key.to_owned())),
            }
        }
        Ok(faults)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chances = [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
            ("ce", self.ce),
        ];
        for (name, chance) in chances.into_iter().filter(|(_, chance)| chance.0 > 0) {
            write!(f, "{name}={chance},")?;
        }
        if self.burst.begin.0 > 0 {
            write!(f, "burst={},", self.burst)?;
        }
        write!(f, "seed={}", self.seed)
    }
}

impl FromStr for Chance {
    type Err = InvalidFaults;

    fn from_str(text: &str) -> Result<Self, InvalidFaults> {
        let invalid = || InvalidFaults::Chance(text.trim().to_owned());
        let number = text.trim().strip_suffix('%').ok_or_else(invalid)?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(decimals) || decimals.len() > DECIMALS {
            return Err(invalid());
        }
        let whole: u32 = whole.parse().map_err(|_| invalid())?;
        let part: u32 = format!("{decimals:0<DECIMALS$}").parse().map_err(|_| invalid())?;
        let millionths = whole.checked_mul(PERCENT).and_then(|whole| whole.checked_add(part));
        millionths.filter(|&n| n <= MILLION).map(Self).ok_or_else(invalid)
    }
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / PERCENT, self.0 % PERCENT);
        if part == 0 {
            return write!(f, "{whole}%");
        }
        let decimals = format!("{part:0DECIMALS$}");
        write!(f, "{whole}.{}%", decimals.trim_end_matches('0'))
    }
}

impl FromStr for Burst {
    type Err = InvalidFaults;

    fn from_str(text: &str) -> Result<Self, InvalidFaults> {
        let invalid = || InvalidFaults::Burst(text.trim().to_owned());
        let (begin, length) = text.split_once('/').ok_or_else(invalid)?;
        let length = length.trim().parse().ok().filter(|&n| n > 0).ok_or_else(invalid)?;
        Ok(Self { begin: begin.parse()?, length })
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.begin, self.length)
    }
}

const MILLION: u32 = 1_000_000;
const PERCENT: u32 = MILLION / 100;
/// Decimals of a percentage.
const DECIMALS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_text_says_what_happens() {
        let faults: Faults =
            "loss=1%,duplicate=0.1%,reorder=0.5%, corrupt=0.0001%,ce=100%,burst=0.2%/20,seed=7".parse().unwrap();
        let expected = Faults {
            loss: Chance(10_000),
            burst: Burst { begin: Chance(2_000), length: 20 },
            duplicate: Chance(1_000),
            reorder: Chance(5_000),
            corrupt: Chance(1),
            ce: Chance(MILLION),
            seed: 7,
        };
        assert_eq!(faults, expected);
        assert_eq!("".parse(), Ok(Faults::default()));
        assert_eq!(Faults::default().to_string(), "seed=0");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["loss", "lost=1%", "loss=1", "loss=101%", "loss=-1%", "loss=1.00001%", "loss=.5%", "loss=5.%", "loss=%"]
        {
            assert!(text.parse::<Faults>().is_err(), "{text}");
        }
        for text in ["burst=1%", "burst=1%/0", "burst=1%/x", "seed=x", "loss=99999999999%", "loss=1%%"] {
            assert!(text.parse::<Faults>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_text_reads_back(numbers in proptest::array::uniform6(0..=MILLION), length in 1..100_u32, seed: u64) {
            let [loss, begin, duplicate, reorder, corrupt, ce] = numbers.map(Chance);
            let burst = if begin.0 == 0 { Burst::default() } else { Burst { begin, length } };
            let faults = Faults { loss, burst, duplicate, reorder, corrupt, ce, seed };
            prop_assert_eq!(faults.to_string().parse(), Ok(faults));
        }
    }
}
