//! `rdmesh peer`: commands on the other hosts.

use crate::args::{OutputOptions, PeerEndpointOptions};
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::api::{Tunnel, TunnelHost};
use rdmesh_fabric::{Client, KeyError, Name, PeerEndpoint, TunnelKey};
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

/// Adds another host, or changes its address or its key.
pub(crate) fn add(host: &Name, address: IpAddr, key: Option<&Path>, client: &Client) -> Result<(), Failure> {
    client.set_peer(host, address, key.map(read_key).transpose()?)?;
    print_line(format!(
        "Host `{host}` is at {address}. Say which endpoints it has with `rdmesh peer endpoint {host} …`."
    ))
}

/// Prints a new key.
pub(crate) fn key() -> Result<(), Failure> {
    print_line(TunnelKey::generate()?.to_text())
}

/// Replaces the key of a host, or the secret of all.
pub(crate) fn rotate(host: Option<&Name>, key: &Path, client: &Client) -> Result<(), Failure> {
    let key = read_key(key)?;
    let Some(host) = host else {
        client.set_mesh_key(key)?;
        return print_line(
            "The new secret is used with each host as soon as it has it too: give it to the others now, and put it into the file \
             that `rdmesh up` reads.",
        );
    };
    let peers = client.peers()?.hosts;
    let peer = peers.iter().find(|peer| peer.name == *host);
    let peer =
        peer.ok_or_else(|| Failure::new(format!("there is no peer `{host}`: `rdmesh peer ls` lists those there are")))?;
    client.set_peer(host, peer.address, Some(key))?;
    print_line(format!("The new key is used as soon as `{host}` has it too: give it to it now."))
}

/// Replaces this host's key pair.
pub(crate) fn rotate_own(client: &Client) -> Result<(), Failure> {
    client.rotate_key()?;
    print_line("This host has a new key pair: it is used with each host that has read its public half in the store.")
}

/// The key in a file, or in the standard input for `-`.
pub(crate) fn read_key(path: &Path) -> Result<TunnelKey, Failure> {
    let key = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(KeyError::from).and_then(|_| text.trim().parse())
    } else {
        TunnelKey::read(path)
    };
    key.map_err(|error| Failure::new(format!("the key {}: {error}", path.display())))
}

/// Adds an endpoint of another host.
pub(crate) fn add_endpoint(options: PeerEndpointOptions, client: &Client) -> Result<(), Failure> {
    let PeerEndpointOptions { host, net, vni, addresses } = options;
    let added = client.add_peer_endpoint(&host, &PeerEndpoint { network: net, vni, addresses, link: None })?;
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
    let tunnel = client.tunnel()?;
    let mut table = Table::new(&["HOST", "AT", "TUNNEL", "NETWORK", "NUMBER", "ENDPOINT"]);
    for peer in &peers.hosts {
        let (name, at, way) = (peer.name.to_string(), peer.address.to_string(), way(&tunnel, &peer.name));
        let mut row = |network: &str, number: String, addresses: String| {
            table.row([name.clone(), at.clone(), way.to_owned(), network.to_owned(), number, addresses]);
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

/// State of the tunnel to a host.
fn way(tunnel: &Tunnel, name: &Name) -> &'static str {
    match tunnel.hosts.iter().find(|host| host.name == *name) {
        _ if !tunnel.is_authenticated => "insecure",
        Some(TunnelHost { state, .. }) if state.is_open() && state.is_changing_key => "new key waits",
        Some(TunnelHost { state, .. }) if state.is_open() => "authenticated",
        Some(TunnelHost { state, .. }) if state.counters.other_key > 0 => "other key",
        _ => "no answer",
    }
}

fn list_of(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
