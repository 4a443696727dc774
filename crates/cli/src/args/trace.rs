//! Options of `rdmesh trace`.

use super::OutputOptions;
use clap::Args;
use rdmesh_fabric::{DEFAULT_NETWORK, InvalidName, Name};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Options of `rdmesh trace`.
#[derive(Args)]
pub(crate) struct PathOptions {
    /// The endpoint at the beginning, on this host: NETWORK/NAME, or NAME in the default network
    #[arg(value_name = "FROM")]
    pub(crate) from: EndpointPath,
    /// The one at the end: NETWORK/NAME, NETWORK/ADDRESS, or without the network if it is the same
    #[arg(value_name = "TO")]
    pub(crate) to: Destination,
    /// Probes of each size
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) count: u32,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// An endpoint, as `NETWORK/NAME` or `NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointPath {
    pub(crate) network: Name,
    pub(crate) name: Name,
}

/// The end of a path: a name or an address, and the network if one was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) network: Option<Name>,
    pub(crate) target: Target,
}

/// Name or address of the end of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Name(Name),
    Address(IpAddr),
}

impl FromStr for EndpointPath {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let (network, name) = text.split_once('/').unwrap_or((DEFAULT_NETWORK, text));
        Ok(Self { network: network.parse()?, name: name.parse()? })
    }
}

impl fmt::Display for EndpointPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.name)
    }
}

impl FromStr for Destination {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let (network, target) = match text.split_once('/') {
            Some((network, target)) => (Some(network.parse()?), target),
            None => (None, text),
        };
        let target = target.parse().map(Target::Address).or_else(|_| target.parse().map(Target::Name))?;
        Ok(Self { network, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_names_or_addresses() {
        let to = |text: &str| text.parse::<Destination>();
        let blue: Name = "blue".parse().unwrap();
        let name = |name: &str| Target::Name(name.parse().unwrap());
        assert_eq!(to("blue/b"), Ok(Destination { network: Some(blue.clone()), target: name("b") }));
        assert_eq!(to("b"), Ok(Destination { network: None, target: name("b") }));
        let v6 = Target::Address("fd00::3".parse().unwrap());
        assert_eq!(to("blue/fd00::3"), Ok(Destination { network: Some(blue), target: v6 }));
        assert!(to("blue/").is_err() && to("a/b/c").is_err());
        let from = "a".parse::<EndpointPath>().unwrap();
        assert_eq!(from.to_string(), format!("{DEFAULT_NETWORK}/a"));
    }
}
