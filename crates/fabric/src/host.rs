//! Hosts of the mesh.

use crate::invalid::{InvalidField, Validate, require, require_unicast};
use crate::{Name, PublicKey, Rotated};
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
    /// Further addresses of its router, for other paths to it; of the same family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_addresses: Vec<IpAddr>,
    /// The abilities of its router.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// The public halves of its own keys; none where hosts authenticate each other by keys that the operator gives to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_keys: Option<Rotated<PublicKey>>,
}

/// Abilities of a router that others must know before they use them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Capabilities {
    /// Packets in the tunnel are authenticated.
    pub is_authenticated: bool,
    /// IP between endpoints is carried too: the router makes network namespaces.
    pub carries_ip: bool,
    /// Interfaces are attached to the network of which this is told: machines behind them are no endpoints.
    pub has_attached: bool,
}

impl Host {
    /// A host with one address.
    pub fn new(name: Name, address: IpAddr) -> Self {
        Self { name, address, more_addresses: Vec::new(), capabilities: Capabilities::default(), public_keys: None }
    }
}

impl Validate for Host {
    fn validate(&self) -> Result<(), InvalidField> {
        require_unicast("address", self.address)?;
        for (index, address) in self.more_addresses.iter().enumerate() {
            let field = format!("more_addresses[{index}]");
            require_unicast(&field, *address)?;
            require(address.is_ipv4() == self.address.is_ipv4(), &field, "must be of the same family as `address`")?;
            let is_new = *address != self.address && !self.more_addresses[..index].contains(address);
            require(is_new, &field, format_args!("{address} must not be there twice"))?;
        }
        Ok(())
    }
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
    fn a_host_has_different_addresses_of_one_family() {
        let host = |more: &[&str]| Host {
            more_addresses: more.iter().map(|address| address.parse().unwrap()).collect(),
            ..Host::new("a".parse().unwrap(), "192.0.2.1".parse().unwrap())
        };
        assert_eq!(host(&["192.0.2.2"]).validate(), Ok(()));
        for more in [["192.0.2.1", "192.0.2.2"], ["fd00::1", "192.0.2.2"], ["0.0.0.0", "192.0.2.2"]] {
            assert_eq!(host(&more).validate().unwrap_err().field(), "more_addresses[0]", "{more:?}");
        }
        let old: Host = serde_json::from_str(r#"{"name": "a", "address": "192.0.2.1"}"#).unwrap();
        assert_eq!(old, host(&[]));
    }

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
