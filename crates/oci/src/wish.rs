//! Network, addresses and acceleration of a container, from its environment.
//!
//! | variable | value |
//! |---|---|
//! | `RDMESH_NETWORK` | network of its endpoint; without it the container has none |
//! | `RDMESH_IP` | addresses of its endpoint, with commas between them [default: the next free one] |
//! | `RDMESH_ACCEL` | `1`: its programs load the library for faster sockets, too |
//!
//! An image has an environment of its own, so the operator may say which networks can be named: `RDMESH_NETWORKS` in the engine's
//! environment, with commas between them.

use crate::failure::Failure;
use rdmesh_fabric::Name;
use std::net::IpAddr;

/// A wish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wish {
    pub(crate) network: Name,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) is_accelerated: bool,
}

impl Wish {
    /// That of a container's environment; none where it names no network. `allowed` are the networks that it may name, where not
    /// all are.
    pub(crate) fn of(
        variable: impl Fn(&str) -> Option<String>,
        allowed: Option<&str>,
    ) -> Result<Option<Self>, Failure> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let Some(network) = variable("RDMESH_NETWORK") else { return Ok(None) };
        let wrong = |name, reason: String| Failure::Variable { name, reason };
        if allowed.is_some_and(|allowed| !allowed.split(',').any(|name| name.trim() == network)) {
            return Err(wrong("RDMESH_NETWORK", format!("`{network}` is none of the networks in RDMESH_NETWORKS")));
        }
        let network = network.parse().map_err(|error| wrong("RDMESH_NETWORK", format!("{error}")))?;
        let addresses = variable("RDMESH_IP").unwrap_or_default();
        let addresses = addresses.split(',').map(str::trim).filter(|text| !text.is_empty());
        let address = |text: &str| text.parse().map_err(|_| wrong("RDMESH_IP", format!("`{text}` is no IP address")));
        Ok(Some(Self {
            network,
            addresses: addresses.map(address).collect::<Result<_, _>>()?,
            is_accelerated: variable("RDMESH_ACCEL").is_some_and(|value| value != "0"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(variables: &[(&str, &str)]) -> Result<Option<Wish>, Failure> {
        wish_among(variables, None)
    }

    fn wish_among(variables: &[(&str, &str)], allowed: Option<&str>) -> Result<Option<Wish>, Failure> {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Wish::of(|name| variable(name).map(|(_, value)| (*value).to_owned()), allowed)
    }

    #[test]
    fn an_image_joins_only_networks_that_the_operator_allows() {
        let blue = [("RDMESH_NETWORK", "blue")];
        assert!(wish_among(&blue, Some("red, blue")).unwrap().is_some());
        assert!(wish_among(&blue, Some("red")).unwrap_err().to_string().contains("`blue` is none of"));
        assert!(wish_among(&blue, Some("")).is_err());
        assert_eq!(wish_among(&[], Some("")).unwrap(), None);
    }

    #[test]
    fn a_network_makes_a_wish() {
        assert_eq!(wish(&[("RDMESH_IP", "10.7.0.2")]).unwrap(), None);
        let all = [("RDMESH_NETWORK", "blue"), ("RDMESH_IP", "10.7.0.2, fd00::2"), ("RDMESH_ACCEL", "1")];
        let found = wish(&all).unwrap().unwrap();
        assert_eq!((found.network.as_str(), found.addresses.len(), found.is_accelerated), ("blue", 2, true));
        let least = wish(&[("RDMESH_NETWORK", "blue"), ("RDMESH_ACCEL", "0")]).unwrap().unwrap();
        assert_eq!((least.addresses.len(), least.is_accelerated), (0, false));
    }

    #[test]
    fn mistakes_name_their_variable() {
        let error = |variables: &[(&str, &str)]| wish(variables).unwrap_err().to_string();
        assert!(error(&[("RDMESH_NETWORK", "a b")]).starts_with("RDMESH_NETWORK: "));
        assert!(error(&[("RDMESH_NETWORK", "a"), ("RDMESH_IP", "ten")]).starts_with("RDMESH_IP: `ten`"));
    }
}
