//! Names of network interfaces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A name that the kernel takes for an interface: 1 to 15 printable ASCII characters, none of them `/`, `:` or `%`, and not `.` or `..`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct InterfaceName(String);

/// Error of a text that is not an [`InterfaceName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an interface's name: use 1 to {max} characters, without spaces, `/`, `:` and `%`", max = InterfaceName::MAX_LEN)]
pub struct InvalidInterfaceName(String);

impl InterfaceName {
    /// The kernel's `IFNAMSIZ`, without the zero at the end.
    const MAX_LEN: usize = 15;

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for InterfaceName {
    fn default() -> Self {
        Self("eth0".to_owned())
    }
}

impl TryFrom<String> for InterfaceName {
    type Error = InvalidInterfaceName;

    fn try_from(text: String) -> Result<Self, InvalidInterfaceName> {
        let is_path = matches!(text.as_str(), "." | "..");
        // In a name with `%` the kernel puts a number.
        let allowed = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':' | '%');
        if (1..=Self::MAX_LEN).contains(&text.len()) && !is_path && text.chars().all(allowed) {
            Ok(Self(text))
        } else {
            Err(InvalidInterfaceName(text))
        }
    }
}

impl FromStr for InterfaceName {
    type Err = InvalidInterfaceName;

    fn from_str(text: &str) -> Result<Self, InvalidInterfaceName> {
        Self::try_from(text.to_owned())
    }
}

impl From<InterfaceName> for String {
    fn from(name: InterfaceName) -> Self {
        name.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_kernel_takes() {
        for bad in ["", ".", "..", "a/b", "a:1", "eth%d", "a b", "a\n", "ä", &"a".repeat(16)] {
            assert!(bad.parse::<InterfaceName>().is_err(), "{bad}");
            assert!(serde_json::from_value::<InterfaceName>(bad.into()).is_err(), "{bad}");
        }
        for good in ["eth0", "eth0.5", "net1", "rdma-0_x", &"a".repeat(15)] {
            assert_eq!(good.parse::<InterfaceName>().unwrap().as_str(), good);
        }
    }
}
