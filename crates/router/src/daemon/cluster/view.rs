//! Other hosts and their endpoints, as the cluster has them, in this host's registry.

use crate::daemon::error::HostError;
use crate::daemon::peers::PeerHosts;
use rdmesh_fabric::cluster::NetworkView;
use rdmesh_fabric::{Name, Network, PeerEndpoint, Registry};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The networks that this host has endpoints on: what they are, where that is known already.
pub(super) type Views = BTreeMap<Name, Option<NetworkView>>;

/// A host with its endpoints on the networks that are followed.
type Wanted = BTreeMap<Name, (IpAddr, Vec<PeerEndpoint>)>;

/// Makes the registry agree with `views`. What is known of a network whose view has not come yet stays.
pub(super) fn apply(views: &Views, own: &Name, registry: &Registry, peers: &PeerHosts) -> Result<(), HostError> {
    for view in views.values().flatten() {
        let is_complete = !view.hosts().any(|host| host.capabilities.has_attached);
        let Some(network) = view.network() else { continue };
        registry.adopt_network(&Network { is_complete, ..network.clone() })?;
    }
    let wanted = wanted(views, own);
    // First what has gone: an endpoint that has moved keeps its address.
    for peer in registry.peers(own)? {
        let now = wanted.get(&peer.name);
        let stays = |endpoint: &PeerEndpoint| match views.get(&endpoint.network) {
            Some(None) => true,
            Some(Some(_)) => now.is_some_and(|(_, endpoints)| endpoints.contains(endpoint)),
            None => false,
        };
        if now.is_none() && !peer.endpoints.iter().any(stays) {
            peers.remove(&peer.name)?;
            continue;
        }
        for endpoint in peer.endpoints.iter().filter(|endpoint| !stays(endpoint)) {
            peers.remove_endpoint(&peer.name, &endpoint.network, endpoint.addresses[0])?;
        }
    }
    let known: BTreeMap<Name, _> = registry.peers(own)?.into_iter().map(|peer| (peer.name.clone(), peer)).collect();
    for (name, (address, endpoints)) in wanted {
        let known = known.get(&name);
        if known.is_none_or(|known| known.address != address) {
            peers.set(name.clone(), address, None)?;
        }
        for endpoint in endpoints {
            if known.is_none_or(|known| !known.endpoints.contains(&endpoint)) {
                peers.add_endpoint(&name, endpoint)?;
            }
        }
    }
    Ok(())
}

fn wanted(views: &Views, own: &Name) -> Wanted {
    let mut wanted = Wanted::new();
    for view in views.values().flatten() {
        let vni = view.network().map(|network| network.vni);
        for (endpoint, host) in view.placed().filter(|(_, host)| host.name != *own) {
            let (network, addresses) = (endpoint.network.clone(), endpoint.addresses.clone());
            let (_, endpoints) = wanted.entry(host.name.clone()).or_insert((host.address, Vec::new()));
            endpoints.push(PeerEndpoint { network, vni, addresses });
        }
    }
    wanted
}
