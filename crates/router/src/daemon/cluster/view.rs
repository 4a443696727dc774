//! Transfer of what the cluster has told to this host's registry: other hosts and their endpoints, groups, tenants and policies.

use crate::daemon::endpoints::Endpoints;
use crate::daemon::error::HostError;
use crate::daemon::peers::PeerHosts;
use rdmesh_fabric::api::ScopePolicy;
use rdmesh_fabric::cluster::{CommonView, NetworkView};
use rdmesh_fabric::{
    Host as HostRecord, Name, Network, NetworkGroups, PeerEndpoint, Policy, PolicyScope, Registry, Validate,
};
use rdmesh_overlay::Errors;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Contents of the store, as far as they are known.
#[derive(Clone, Default)]
pub(super) struct Known {
    /// The networks that this host has endpoints on: what they are, where that is known already.
    pub(super) networks: Views,
    /// The records that all hosts follow, where they are known already.
    pub(super) common: Option<CommonView>,
}

/// The parts of this host that follow the store.
pub(super) struct Target {
    pub(super) own: Name,
    pub(super) registry: Registry,
    pub(super) peers: Arc<PeerHosts>,
    pub(super) endpoints: Arc<Endpoints>,
}

type Views = BTreeMap<Name, Option<NetworkView>>;

/// A host with its endpoints on the networks that are followed.
struct WantedHost {
    record: HostRecord,
    endpoints: Vec<PeerEndpoint>,
}

/// Makes this host agree with what is known.
pub(super) fn apply(known: &Known, target: &Target) -> Result<(), HostError> {
    for view in known.networks.values().flatten() {
        let is_complete = !view.hosts().any(|host| host.capabilities.has_attached);
        let Some(network) = view.network() else { continue };
        target.registry.adopt_network(&Network { is_complete, ..network.clone() })?;
    }
    // Before the endpoints that they are about.
    apply_groups(&known.networks, target)?;
    apply_policies(known, &target.endpoints)?;
    if let Some(common) = &known.common {
        apply_tenants(common, &target.registry)?;
    }
    apply_endpoints(&known.networks, target)
}

fn apply_groups(views: &Views, target: &Target) -> Result<(), HostError> {
    for (network, view) in views.iter().filter_map(|(network, view)| Some((network, view.as_ref()?))) {
        let others = view.placed().map(|(endpoint, _)| endpoint).filter(|endpoint| endpoint.host != target.own);
        let groups = NetworkGroups::new(view.groups().cloned().collect(), others);
        if target.registry.groups(network)? != groups {
            target.registry.set_groups(network, &groups)?;
        }
    }
    Ok(())
}

/// Policies of networks whose view has not come yet stay as they are.
fn apply_policies(known: &Known, endpoints: &Endpoints) -> Result<(), HostError> {
    let mut wanted: BTreeMap<PolicyScope, Policy> = BTreeMap::new();
    for (network, view) in known.networks.iter().filter_map(|(network, view)| Some((network, view.as_ref()?))) {
        let scope = |name: &Name| PolicyScope::Endpoint { network: network.clone(), name: name.clone() };
        wanted.extend(view.policies().map(|(name, policy)| (scope(name), policy.clone())));
    }
    let common = known.common.iter().flat_map(|common| common.policies().iter());
    wanted.extend(common.map(|(scope, policy)| (scope.clone(), policy.clone())));
    // Like records that cannot be read.
    wanted.retain(|_, policy| policy.validate().is_ok());
    let is_followed = |scope: &PolicyScope| match scope {
        PolicyScope::Endpoint { network, .. } => known.networks.get(network).is_some_and(Option::is_some),
        PolicyScope::Host(_) | PolicyScope::Tenant(_) => known.common.is_some(),
    };
    for ScopePolicy { scope, policy: before } in endpoints.policies() {
        match wanted.remove(&scope) {
            None if is_followed(&scope) => endpoints.set_policy(ScopePolicy { scope, policy: None })?,
            Some(policy) if before.as_ref() != Some(&policy) => {
                endpoints.set_policy(ScopePolicy { scope, policy: Some(policy) })?;
            }
            _ => {}
        }
    }
    for (scope, policy) in wanted {
        endpoints.set_policy(ScopePolicy { scope, policy: Some(policy) })?;
    }
    Ok(())
}

fn apply_tenants(common: &CommonView, registry: &Registry) -> Result<(), HostError> {
    let known = registry.tenants()?;
    for tenant in common.tenants().filter(|tenant| !known.contains(tenant)) {
        registry.set_tenant(tenant)?;
    }
    for gone in known.iter().filter(|known| !common.tenants().any(|tenant| tenant.name == known.name)) {
        registry.forget_tenant(&gone.name)?;
    }
    Ok(())
}

/// Makes the registry's endpoints agree with `views`. Those of a network whose view has not come yet stay.
fn apply_endpoints(views: &Views, Target { own, registry, peers, .. }: &Target) -> Result<(), HostError> {
    let wanted = wanted(views, own);
    // First what has gone: an endpoint that has moved keeps its address.
    for peer in registry.peers(own)? {
        let now = wanted.get(&peer.name);
        let stays = |endpoint: &PeerEndpoint| match views.get(&endpoint.network) {
            Some(None) => true,
            Some(Some(_)) => now.is_some_and(|now| now.endpoints.contains(endpoint)),
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
    let hosts: BTreeMap<Name, _> = registry.hosts()?.into_iter().map(|host| (host.name.clone(), host)).collect();
    // A host that cannot be reached is in no other's way.
    let outcomes = wanted.into_iter().map(|(name, wanted)| {
        if hosts.get(&name) != Some(&wanted.record) {
            peers.set(wanted.record, None)?;
        }
        let known = known.get(&name);
        let is_new = |endpoint: &PeerEndpoint| known.is_none_or(|known| !known.endpoints.contains(endpoint));
        wanted.endpoints.into_iter().filter(is_new).try_for_each(|new| peers.add_endpoint(&name, new).map(drop))
    });
    Errors::all(outcomes)
}

fn wanted(views: &Views, own: &Name) -> BTreeMap<Name, WantedHost> {
    let mut wanted = BTreeMap::new();
    for view in views.values().flatten() {
        let vni = view.network().map(|network| network.vni);
        for (endpoint, host) in view.placed().filter(|(_, host)| host.name != *own) {
            let (network, addresses) = (endpoint.network.clone(), endpoint.addresses.clone());
            let link = endpoint.pool.as_ref().map(|pool| pool.link);
            let record = || HostRecord {
                public_keys: host.public_keys.clone(),
                ..HostRecord::new(host.name.clone(), host.address)
            };
            let of_host = wanted
                .entry(host.name.clone())
                .or_insert_with(|| WantedHost { record: record(), endpoints: Vec::new() });
            of_host.endpoints.push(PeerEndpoint { network, vni, addresses, link });
        }
    }
    wanted
}
