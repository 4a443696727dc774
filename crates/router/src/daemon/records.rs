//! Records of the operator: tenants, networks, security groups and policies. In a cluster they are the store's, and come to this host
//! as to all others; otherwise they are this router's own.

use super::cluster::Allocator;
use super::endpoints::Endpoints;
use super::error::HostError;
use super::mesh::Mesh;
use rdmesh_fabric::api::ScopePolicy;
use rdmesh_fabric::cluster::ClusterError;
use rdmesh_fabric::{Endpoint, Name, Network, PolicyScope, Registry, RegistryError, SecurityGroup, Tenant};
use std::sync::Arc;

/// The records, as operators read and change them.
pub struct Records {
    registry: Registry,
    endpoints: Arc<Endpoints>,
    mesh: Arc<Mesh>,
    /// None where the host is in no cluster.
    cluster: Option<Arc<Allocator>>,
}

impl Records {
    pub(super) fn new(
        registry: Registry,
        endpoints: Arc<Endpoints>,
        mesh: Arc<Mesh>,
        cluster: Option<Arc<Allocator>>,
    ) -> Self {
        Self { registry, endpoints, mesh, cluster }
    }

    /// All tenants that have a record, by name.
    pub fn tenants(&self) -> Result<Vec<Tenant>, HostError> {
        match &self.cluster {
            Some(shared) => shared.with_cluster(async |cluster| cluster.tenants().await),
            None => Ok(self.registry.tenants()?),
        }
    }

    /// Adds a tenant, or changes its limits.
    pub fn set_tenant(&self, tenant: &Tenant) -> Result<(), HostError> {
        match &self.cluster {
            Some(shared) => shared.with_cluster(async |cluster| cluster.set_tenant(tenant).await).map(drop),
            None => Ok(self.registry.set_tenant(tenant)?),
        }
    }

    /// Removes a tenant that has no networks.
    pub fn remove_tenant(&self, name: &Name) -> Result<(), HostError> {
        let removed = match &self.cluster {
            Some(shared) => shared.with_cluster(async |cluster| cluster.remove_tenant(name).await),
            None => Ok(self.registry.remove_tenant(name)?),
        };
        if removed? { Ok(()) } else { Err(RegistryError::NoSuchTenant(name.clone()).into()) }
    }

    /// Makes a network, with its number where that is not 0, or with a free one. It is known here at once.
    pub fn add_network(&self, network: Network) -> Result<Network, HostError> {
        let Some(shared) = &self.cluster else { return Ok(self.registry.add_network(network)?) };
        let made = shared.with_cluster(async |cluster| cluster.make_network(&network).await)?;
        self.registry.adopt_network(&made)?;
        Ok(made)
    }

    /// Removes a network that has no endpoints and pools, with its groups and the policies of its endpoints.
    pub fn remove_network(&self, name: &Name) -> Result<(), HostError> {
        let Some(shared) = &self.cluster else { return self.endpoints.remove_network(name) };
        // The cluster does not know of pools.
        self.registry.check_unused(name)?;
        let of_all = shared.with_cluster(async |cluster| cluster.remove_network(name).await);
        // It may be known here only, or not any longer.
        match of_all {
            Ok(()) | Err(HostError::Cluster(ClusterError::Missing { .. })) => {}
            refused => return refused,
        }
        match self.endpoints.remove_network(name) {
            Err(HostError::Registry(RegistryError::NoSuchNetwork(_))) => of_all,
            removed => removed,
        }
    }

    /// The security groups of all networks.
    pub fn groups(&self) -> Result<Vec<SecurityGroup>, HostError> {
        let Some(shared) = &self.cluster else { return Ok(self.registry.all_groups()?) };
        shared.with_cluster(async |cluster| {
            let mut groups = Vec::new();
            for network in cluster.networks().await? {
                groups.extend(cluster.groups(&network.name).await?);
            }
            Ok(groups)
        })
    }

    /// All networks, by name: this host's, and the cluster's. Without the store only the former, which the log says.
    pub fn networks(&self) -> Result<Vec<Network>, HostError> {
        let mut networks = self.registry.networks()?;
        let shared = self.cluster.as_ref().map(|shared| shared.with_cluster(async |cluster| cluster.networks().await));
        let others = shared.unwrap_or_else(|| Ok(Vec::new())).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the store's networks, listing this host's only");
            Vec::new()
        });
        for network in others {
            if networks.iter().all(|known| known.name != network.name) {
                networks.push(network);
            }
        }
        networks.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(networks)
    }

    /// The endpoints of a network on all hosts of the cluster; without one, those that this host knows.
    pub fn endpoints(&self, network: &Name) -> Result<Vec<Endpoint>, HostError> {
        if let Some(shared) = &self.cluster {
            return shared.with_cluster(async |cluster| cluster.endpoints(network).await);
        }
        Ok(self.registry.endpoints()?.into_iter().filter(|endpoint| endpoint.network == *network).collect())
    }

    /// Adds a security group to a network, or changes one. Where the host is in no cluster, it holds when this returns.
    pub fn set_group(&self, group: &SecurityGroup) -> Result<(), HostError> {
        let name = &group.network;
        let missing = || HostError::from(RegistryError::NoSuchNetwork(name.clone()));
        if let Some(shared) = &self.cluster {
            shared.with_cluster(async |cluster| cluster.network(name).await)?.ok_or_else(missing)?;
            return shared.with_cluster(async |cluster| cluster.set_group(group).await).map(drop);
        }
        self.registry.find_network(name)?.ok_or_else(missing)?;
        let revision = self.registry.set_group(name, &group.name, Some(group))?;
        revision.into_iter().for_each(|revision| self.mesh.wait_for(revision));
        Ok(())
    }

    /// Removes a security group: its members are open to all, unless they are in others.
    pub fn remove_group(&self, network: &Name, name: &Name) -> Result<(), HostError> {
        let is_removed = match &self.cluster {
            Some(shared) => shared.with_cluster(async |cluster| cluster.remove_group(network, name).await)?,
            None => {
                let revision = self.registry.set_group(network, name, None)?;
                revision.into_iter().for_each(|revision| self.mesh.wait_for(revision));
                revision.is_some()
            }
        };
        let missing = || HostError::NoSuchGroup { name: name.clone(), network: network.clone() };
        if is_removed { Ok(()) } else { Err(missing()) }
    }

    /// All policies, by scope.
    pub fn policies(&self) -> Result<Vec<ScopePolicy>, HostError> {
        let Some(shared) = &self.cluster else { return Ok(self.endpoints.policies()) };
        let tree = shared.with_cluster(async |cluster| cluster.policies().await)?;
        let of = |(scope, policy): (&PolicyScope, &_)| ScopePolicy {
            scope: scope.clone(),
            policy: Some(Clone::clone(policy)),
        };
        Ok(tree.iter().map(of).collect())
    }

    /// Sets the policy of a scope, or removes it.
    pub fn set_policy(&self, asked: ScopePolicy) -> Result<(), HostError> {
        let Some(shared) = &self.cluster else { return self.endpoints.set_policy(asked) };
        let ScopePolicy { scope, policy } = asked;
        let before = shared.with_cluster(async |cluster| cluster.policy(&scope).await)?;
        if policy.is_none() && before.is_none() {
            return Err(HostError::NoSuchPolicy(scope));
        }
        shared.with_cluster(async |cluster| cluster.set_policy(&scope, policy.as_ref()).await).map(drop)
    }
}
