//! The two ends of a path: which endpoints they are, and on which host the far one is.

use crate::args::{EndpointPath, PathOptions, Target};
use crate::doctor::Finding;
use crate::failure::Failure;
use rdmesh_fabric::{Client, Name, Peer};
use std::net::IpAddr;

/// The ends of a path.
pub(super) struct Place {
    /// The endpoint at the beginning, and its address.
    pub(super) from: EndpointPath,
    pub(super) own: IpAddr,
    /// The end as it was given, with its network and address.
    pub(super) to: String,
    pub(super) network: Name,
    pub(super) address: IpAddr,
    pub(super) location: Location,
}

/// Place of the end of a path.
pub(super) enum Location {
    Here,
    Host(Peer),
    /// On no host that is known: outside rdmesh, or nowhere.
    Unknown,
}

impl Place {
    /// Looks the ends up.
    pub(super) fn find(options: &PathOptions, client: &Client) -> Result<Self, Failure> {
        let from = options.from.clone();
        let endpoint = client.endpoint(&from.network, &from.name)?.endpoint;
        let network = options.to.network.clone().unwrap_or_else(|| from.network.clone());
        let addresses = match &options.to.target {
            Target::Address(address) => vec![*address],
            Target::Name(name) => addresses(&network, name, client)?,
        };
        let is_like = |own: &IpAddr, other: &IpAddr| own.is_ipv4() == other.is_ipv4();
        let pairs = endpoint.addresses.iter().flat_map(|own| addresses.iter().map(move |address| (*own, *address)));
        let (own, address) = pairs
            .clone()
            .find(|(own, address)| is_like(own, address))
            .or_else(|| pairs.clone().next())
            .ok_or_else(|| Failure::new(format!("endpoint {from} has no address")))?;
        let is_at = |found: &[IpAddr], on: &Name| *on == network && found.contains(&address);
        let here = client.endpoints()?.into_iter().any(|info| is_at(&info.endpoint.addresses, &info.endpoint.network));
        let there = |peer: &Peer| peer.endpoints.iter().any(|endpoint| is_at(&endpoint.addresses, &endpoint.network));
        let location = match client.peers()?.hosts.into_iter().find(there) {
            _ if here => Location::Here,
            Some(peer) => Location::Host(peer),
            None => Location::Unknown,
        };
        let to = match &options.to.target {
            Target::Name(name) => format!("{network}/{name}"),
            Target::Address(address) => format!("{network}/{address}"),
        };
        Ok(Self { from, own, to, network, address, location })
    }

    /// Whether both ends are on the same network: nothing leads from one to another.
    pub(super) fn is_one_network(&self) -> bool {
        self.network == self.from.network
    }

    /// Finding about the ends: addresses and hosts, or networks that differ.
    pub(super) fn finding(&self) -> Finding {
        let Self { from, own, to, address, network, .. } = self;
        if !self.is_one_network() {
            return Finding::fail(
                "network",
                format!(
                    "{from} is on network {}, and {to} on {network}: no path leads from one network to another",
                    from.network
                ),
                format!("put both on one network: rdmesh run --net {network}"),
            );
        }
        let end = if to.ends_with(&format!("/{address}")) { to.clone() } else { format!("{to} has {address} and") };
        let place = match &self.location {
            Location::Here => "on this host too".to_owned(),
            Location::Host(host) => format!("on host {}, whose router is at {}", host.name, host.address),
            Location::Unknown => "on no host that this one knows".to_owned(),
        };
        Finding::ok("ends", format!("{from} has {own}; {end} is {place}"))
    }
}

/// The addresses of an endpoint that is known by name.
fn addresses(network: &Name, name: &Name, client: &Client) -> Result<Vec<IpAddr>, Failure> {
    let known = client.network_endpoints(network)?;
    let found = known.into_iter().find(|endpoint| endpoint.name == *name).map(|endpoint| endpoint.addresses);
    found.ok_or_else(|| {
        Failure::new(format!(
            "no endpoint `{name}` of network `{network}` is known here: give its address, {network}/ADDRESS, if its host has no \
             store in common with this one"
        ))
    })
}
