//! `rdmesh peer`.

use crate::args::{OutputOptions, PeerEndpointOptions};
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::{Client, Name, PeerEndpoint};
use std::net::IpAddr;

/// Adds another host, or changes its address.
pub(crate) fn add(host: &Name, address: IpAddr, client: &Client) -> Result<(), Failure> {
    client.set_peer(host, address)?;
    print_line(format!(
        "Host `{host}` is at {address}. Say which endpoints it has with `rdmesh peer endpoint {host} …`."
    ))
}

/// Adds an endpoint of another host.
pub(crate) fn add_endpoint(options: PeerEndpointOptions, client: &Client) -> Result<(), Failure> {
    let PeerEndpointOptions { host, net, vni, addresses } = options;
    let added = client.add_peer_endpoint(&host, &PeerEndpoint { network: net, vni, addresses })?;
    print_line(format!("{} on network `{}` is on host `{host}`.", list_of(&added.addresses), added.network))
}

/// Removes another host, or one of its endpoints.
pub(crate) fn remove(host: &Name, network: &Name, address: Option<IpAddr>, client: &Client) -> Result<(), Failure> {
    match address {
        Some(address) => drop(client.remove_peer_endpoint(host, network, address)?),
        None => drop(client.remove_peer(host)?),
    }
    Ok(())
}

/// Lists the other hosts and their endpoints.
pub(crate) fn list(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
    let peers = client.peers()?;
    if options.json {
        return print_json(&peers);
    }
    let status = client.status()?;
    match status.underlay {
        Some(address) => print_line(format!("This host is `{}` at {address}.", status.host))?,
        None => print_line("This host has no address for others: `rdmesh up --underlay ADDRESS` gives it one.")?,
    }
    if peers.hosts.is_empty() {
        return print_line("No other hosts: `rdmesh peer add HOST ADDRESS` adds one.");
    }
    let mut table = Table::new(&["HOST", "AT", "NETWORK", "NUMBER", "ENDPOINT"]);
    for peer in &peers.hosts {
        let mut row = |network: &str, number: String, addresses: String| {
            table.row([peer.name.to_string(), peer.address.to_string(), network.to_owned(), number, addresses]);
        };
        if peer.endpoints.is_empty() {
            row("-", "-".to_owned(), "-".to_owned());
        }
        for endpoint in &peer.endpoints {
            let number = endpoint.vni.map_or("-".to_owned(), |vni| vni.to_string());
            row(endpoint.network.as_str(), number, list_of(&endpoint.addresses));
        }
    }
    print_line(format!("\n{table}"))
}

fn list_of(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
