//! Networks that a node offers to pods.

use rdmesh_fabric::Name;
use std::str::FromStr;

/// A network, and how many endpoints pods of this node may have on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offered {
    /// The network, whose name may be that of a resource of Kubernetes.
    pub network: Name,
    /// Most endpoints of pods of this node, 1 to 9,999.
    pub count: u16,
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
