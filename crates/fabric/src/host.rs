//! Hosts of the mesh.

use crate::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A host whose router can be reached from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// Its name, unique in the mesh.
    pub name: Name,
    /// The address by which other hosts' routers reach its router.
    pub address: IpAddr,
}

impl Name {
    /// The name for a system's host name: the part after the first dot is left out, invalid characters become dashes.
    pub fn of_host(system: &str) -> Self {
        let first = system.split('.').next().unwrap_or_default();
        let text: String = first.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect();
        let text = text.trim_start_matches(['-', '_']);
        Self::try_from(text[..text.len().min(Self::MAX_LEN)].to_owned()).unwrap_or_else(|_| Self::nameless_host())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_has_a_host_name() {
        let long = "a".repeat(64);
        let cases = [
            ("node1.example.org", "node1"),
            ("ip-10-0-0-1", "ip-10-0-0-1"),
            ("", "host"),
            ("..", "host"),
            ("-ä-b", "b"),
        ];
        for (system, name) in cases {
            assert_eq!(Name::of_host(system).as_str(), name, "{system}");
        }
        assert_eq!(Name::of_host(&long).as_str(), &long[..31]);
    }
}
