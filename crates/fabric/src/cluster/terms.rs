//! Terms of a host's membership: its leases' times to live, the rest of addresses, and their reserve.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Terms of leases, reserves and rests.
///
/// As text, times in seconds: `session=10,tenure=600,quarantine=60,reserve=0`, where what is left out is as here.
///
/// ```
/// let terms: rdmesh_fabric::cluster::Terms = "quarantine=5".parse()?;
/// assert_eq!(terms.to_string(), "session=10,tenure=600,quarantine=5,reserve=0");
/// # Ok::<(), rdmesh_fabric::cluster::TermsError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The session's time to live: how soon others know that a host is lost, or the store is to it.
    pub session: Duration,
    /// The tenure's time to live: how long a host may go on without the store, and how long the endpoints of one that is lost
    /// stay known and their addresses rest.
    pub tenure: Duration,
    /// The time for which an address rests that was given back.
    pub quarantine: Duration,
    /// Number of addresses of each network with endpoints of a host that the host keeps for its next ones, in whole blocks: as many
    /// it can give while the store is away. The last free block of a network is left to others.
    pub reserve: u32,
}

/// Error of a text that is no [`Terms`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// Something else than a term.
    #[error("`{0}` is none of session=SECONDS, tenure=SECONDS, quarantine=SECONDS and reserve=ADDRESSES")]
    Term(String),
    /// A time that is none, or too short or long for a lease.
    #[error("`{0}` must be a number of seconds from {SHORTEST} to {LONGEST}")]
    Time(&'static str),
    /// A reserve that is no number, or too large a one.
    #[error("`reserve` must be a number of addresses from 0 to {MOST_RESERVED}")]
    Reserve,
    /// A host would lose its addresses about as soon as its endpoints.
    #[error("`tenure` must be at least twice `session`")]
    Order,
}

impl Terms {
    /// Pause between two renewals.
    pub(super) fn pause(self) -> Duration {
        self.session / 3
    }

    /// Time after the end of a session in which the tenure, renewed with it, may last.
    pub(super) fn rest_of_tenure(self) -> Duration {
        self.tenure - self.session
    }

    /// Time after a renewal in which the tenure surely lasts, by a clock that runs slower than the store's by at most a tenth.
    pub(super) fn offline(self) -> Duration {
        self.tenure.mul_f64(0.9)
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            session: Duration::from_secs(10),
            tenure: Duration::from_secs(600),
            quarantine: Duration::from_secs(60),
            reserve: 0,
        }
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, tenure, quarantine, reserve } = self;
        let [session, tenure, quarantine] = [session, tenure, quarantine].map(Duration::as_secs);
        write!(f, "session={session},tenure={tenure},quarantine={quarantine},reserve={reserve}")
    }
}

impl FromStr for Terms {
    type Err = TermsError;

    fn from_str(text: &str) -> Result<Self, TermsError> {
        let mut terms = Self::default();
        for term in text.split(',') {
            let unknown = || TermsError::Term(term.to_owned());
            let (name, time) = term.split_once('=').ok_or_else(unknown)?;
            let (name, place) = match name {
                "session" => ("session", &mut terms.session),
                "tenure" => ("tenure", &mut terms.tenure),
                "quarantine" => ("quarantine", &mut terms.quarantine),
                "reserve" => {
                    let number = time.parse().ok().filter(|number| *number <= MOST_RESERVED);
                    terms.reserve = number.ok_or(TermsError::Reserve)?;
                    continue;
                }
                _ => return Err(unknown()),
            };
            let seconds = time.parse().ok().filter(|seconds| (SHORTEST..=LONGEST).contains(seconds));
            *place = Duration::from_secs(seconds.ok_or(TermsError::Time(name))?);
        }
        if terms.tenure < terms.session * 2 { Err(TermsError::Order) } else { Ok(terms) }
    }
}

/// Each block of a reserve is a transaction in the store.
const MOST_RESERVED: u32 = 4096;
const SHORTEST: u64 = 2;
/// Shorter than the longest lease of any store.
const LONGEST: u64 = 7 * 24 * 60 * 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_terms_is_said() {
        let refused = |text: &str| text.parse::<Terms>().unwrap_err();
        assert_eq!(refused("lease=3"), TermsError::Term("lease=3".to_owned()));
        assert_eq!(refused(""), TermsError::Term(String::new()));
        for time in ["1", "604801", "-3", "3s", ""] {
            assert_eq!(refused(&format!("session={time}")), TermsError::Time("session"), "{time}");
        }
        assert_eq!(refused("session=30,tenure=40"), TermsError::Order);
        for reserve in ["-1", "4097", "many", ""] {
            assert_eq!(refused(&format!("reserve={reserve}")), TermsError::Reserve, "{reserve}");
        }
        let terms: Terms = "tenure=12,session=3,reserve=200,quarantine=5".parse().unwrap();
        assert_eq!((terms.pause(), terms.to_string().parse()), (Duration::from_secs(1), Ok(terms)));
    }
}
