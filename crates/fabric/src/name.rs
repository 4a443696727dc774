//! Names of networks and endpoints.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A name that is also a file name and a part of a key: 1 to 31 of `a-z A-Z 0-9 _ -`, starting with a letter or digit.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Name(String);

/// Error of a text that is not a [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a name: use 1 to {max} letters, digits, `-` or `_`, starting with a letter or digit", max = Name::MAX_LEN)]
pub struct InvalidName(String);

impl Name {
    /// Two names and the directories around them must fit into a socket address.
    pub(crate) const MAX_LEN: usize = 31;

    /// The name of a host that has none.
    pub(crate) fn nameless_host() -> Self {
        Self("host".to_owned())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Six hexadecimal digits of a hash (FNV-1a) of the texts, each with its end: a part of names that follow from others which are too
/// long to be a part themselves.
pub fn short_hash(texts: &[&str]) -> String {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{:06x}", hash & 0xff_ffff)
}

impl TryFrom<String> for Name {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if starts_well && text.len() <= Self::MAX_LEN && text.chars().all(allowed) {
            Ok(Self(text))
        } else {
            Err(InvalidName(text))
        }
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::try_from(text.to_owned())
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_directory() {
        for bad in ["", ".", "..", "a/b", "a.b", "-a", "_a", "a b", "ä", &"a".repeat(32)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
            assert!(serde_json::from_value::<Name>(bad.into()).is_err(), "{bad}");
        }
        for good in ["a", "9", "web-1", "Blue_2", &"a".repeat(31)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
    }
}
