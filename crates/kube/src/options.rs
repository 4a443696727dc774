//! The command line.

use clap::Parser;
use rdmesh_fabric::Name;
use std::path::PathBuf;
use std::str::FromStr;

/// Endpoints as devices that pods of Kubernetes ask for
///
/// Example: rdmesh-device-plugin --network blue --network red:16
#[derive(Parser, Clone, Debug)]
#[command(version)]
pub(crate) struct Options {
    /// Network that is offered as the resource rdmesh.dev/NETWORK, and the number of its devices on this node [default: 256]
    #[arg(
        long = "network",
        required = true,
        value_name = "NETWORK[:COUNT]",
        value_delimiter = ',',
        env = "RDMESH_PLUGIN_NETWORKS"
    )]
    pub(crate) networks: Vec<Offered>,
    /// Have programs load the library for faster sockets, too
    #[arg(long, env = "RDMESH_PLUGIN_ACCEL")]
    pub(crate) accel: bool,
    /// Seconds after which the endpoint of a pod that has ended is removed
    #[arg(long, default_value = "60", value_name = "SECONDS", env = "RDMESH_PLUGIN_GRACE")]
    pub(crate) grace: u32,
    /// Directory of the kubelet
    #[arg(long, default_value = "/var/lib/kubelet", env = "RDMESH_PLUGIN_KUBELET")]
    pub(crate) kubelet_dir: PathBuf,
    /// State directory of the router [default: root's]
    #[arg(long, env = "RDMESH_STATE")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// A network, and how many endpoints pods of this node may have on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Offered {
    pub(crate) network: Name,
    pub(crate) count: u16,
}

impl FromStr for Offered {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (network, count) = match text.split_once(':') {
            Some((network, count)) => (network, count.parse().ok().filter(|count| (1..=MOST).contains(count))),
            None => (text, Some(COUNT)),
        };
        let count = count.ok_or_else(|| format!("`{text}`: the number of devices is 1 to {MOST}"))?;
        // Kubernetes ends names of resources so; names of endpoints may end otherwise.
        if network.contains(|c: char| !c.is_ascii_alphanumeric() && c != '-') || network.ends_with('-') {
            return Err(format!(
                "`{network}` cannot be the name of a resource: letters, digits and `-` within them can"
            ));
        }
        Ok(Self { network: network.parse().map_err(|error| format!("{error}"))?, count })
    }
}

/// Devices of a network where nothing else is said.
const COUNT: u16 = 256;
/// Most devices of a network: a node runs fewer pods.
const MOST: u16 = 9999;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_may_have_a_number_behind_it() {
        let offered = |text: &str| text.parse::<Offered>().map(|one| (one.network.to_string(), one.count));
        assert_eq!(offered("blue"), Ok(("blue".to_owned(), COUNT)));
        assert_eq!(offered("team-a:16"), Ok(("team-a".to_owned(), 16)));
        for wrong in ["blue:0", "blue:x", "blue:10000", "a_b", "a-", "", "a.b"] {
            assert!(offered(wrong).is_err(), "{wrong}");
        }
    }
}
