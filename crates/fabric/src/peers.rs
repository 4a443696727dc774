//! Peers file: the operator's list of the other hosts, where no store is shared.

use crate::{KeyError, Name, TunnelKey, read_secret};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::Path;

/// The other hosts and their endpoints: the file of `rdmesh up --peers`, and what `rdmesh peer ls --json` prints.
///
/// ```
/// let text = r#"{ "hosts": [
///     { "name": "b", "address": "192.0.2.2", "endpoints": [
///         { "network": "blue", "vni": 7, "addresses": ["10.7.0.3", "fd00::3"] } ] } ] }"#;
/// let peers: rdmesh_fabric::Peers = text.parse()?;
/// assert_eq!(peers.hosts[0].endpoints[0].vni, Some(7));
/// # Ok::<(), rdmesh_fabric::PeersError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// A secret that all these hosts have, from which the key of each pair is derived. A file with keys must be its owner's
    /// alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<TunnelKey>,
    /// The hosts. The one that reads this may be among them, so that all may have the same file.
    pub hosts: Vec<Peer>,
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its name: that of its `rdmesh up --host`.
    pub name: Name,
    /// Its router's address: that of its `rdmesh up --underlay`.
    pub address: IpAddr,
    /// A key that the host which reads this shares with it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<TunnelKey>,
    /// Its endpoints.
    #[serde(default)]
    pub endpoints: Vec<PeerEndpoint>,
}

/// An endpoint of another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeerEndpoint {
    /// Its network.
    pub network: Name,
    /// The network's number, the same on all hosts; needed where the network is not known yet.
    #[serde(default)]
    pub vni: Option<u32>,
    /// Its addresses, in the order that they have there; at least one, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// The address from which the link-layer address of its interface follows, where it shares one with others of a pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<IpAddr>,
}

impl Peers {
    /// Reads a file. One with keys must be readable by its owner, and at most its group, only.
    pub fn read(path: &Path) -> Result<Self, PeersFileError> {
        let text = std::fs::read_to_string(path)?;
        let peers: Self = text.parse()?;
        if peers.key.is_some() || peers.hosts.iter().any(|host| host.key.is_some()) {
            read_secret(path)?;
        }
        Ok(peers)
    }
}

/// Error of a file that does not describe peers.
#[derive(Debug, thiserror::Error)]
pub enum PeersFileError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It has another form.
    #[error(transparent)]
    Form(#[from] PeersError),
    /// It has keys, which others can read.
    #[error("it has keys, but {0}")]
    Key(#[from] KeyError),
}

/// Error of a text that does not describe peers.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}; it is to look like this: \
     {{ \"hosts\": [{{ \"name\": \"b\", \"address\": \"192.0.2.2\", \"endpoints\": \
     [{{ \"network\": \"blue\", \"vni\": 7, \"addresses\": [\"10.7.0.3\"] }}] }}] }}"
)]
pub struct PeersError(serde_json::Error);

impl std::str::FromStr for Peers {
    type Err = PeersError;

    fn from_str(text: &str) -> Result<Self, PeersError> {
        serde_json::from_str(text).map_err(PeersError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_shown_with_its_place_and_the_right_form() {
        let misspelt = r#"{ "hosts": [{ "name": "b", "adress": "192.0.2.2" }] }"#.parse::<Peers>().unwrap_err();
        let said = misspelt.to_string();
        assert!(said.contains("`adress`") && said.contains("line 1") && said.contains("\"addresses\""), "{said}");
        assert!(r#"{ "hosts": [{ "name": "b.c", "address": "192.0.2.2" }] }"#.parse::<Peers>().is_err());
        assert!(r#"{ "hosts": [{ "name": "b", "address": "192.0.2" }] }"#.parse::<Peers>().is_err());
    }
}
