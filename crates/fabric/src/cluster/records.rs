//! Typed records of the cluster: tenants, networks, groups and policies, as operators set them.

use super::error::ClusterError;
use super::keys;
use crate::network::{DEFAULT_VNI, MAX_VNI};
use crate::store::{Entry, Expect, Revision, Store, StoreError, Transaction, settle};
use crate::{
    DEFAULT_NETWORK, DEFAULT_TENANT, Endpoint, Host, Name, Network, Policy, PolicyScope, PolicyTree, SecurityGroup,
    Tenant, Validate,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// The cluster's records in a store that its hosts share.
#[derive(Clone)]
pub struct Cluster {
    store: Arc<dyn Store>,
}

impl Cluster {
    /// The cluster in `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Adds a tenant, or changes one.
    pub async fn set_tenant(&self, tenant: &Tenant) -> Result<Revision, ClusterError> {
        tenant.validate()?;
        self.set(&keys::tenant(&tenant.name), tenant).await
    }

    /// The tenant `name`.
    pub async fn tenant(&self, name: &Name) -> Result<Option<Tenant>, ClusterError> {
        self.read(&keys::tenant(name)).await
    }

    /// All tenants that have a record, by name.
    pub async fn tenants(&self) -> Result<Vec<Tenant>, ClusterError> {
        self.list(&keys::tenant_prefix()).await
    }

    /// Removes a tenant that has no networks; whether there was one.
    pub async fn remove_tenant(&self, name: &Name) -> Result<bool, ClusterError> {
        if self.networks().await?.iter().any(|network| network.tenant == *name) {
            return Err(ClusterError::TenantInUse(name.clone()));
        }
        let removal = Transaction::default().delete(&keys::tenant(name));
        Ok(self.store.commit(&removal).await?.deleted != 0)
    }

    /// All networks.
    pub async fn networks(&self) -> Result<Vec<Network>, ClusterError> {
        let mut networks = Vec::new();
        for entry in self.store.list(keys::VNIS, None).await?.entries {
            if let Some(name) = String::from_utf8(entry.value).ok().and_then(|name| name.parse().ok()) {
                networks.extend(self.network(&name).await?);
            }
        }
        Ok(networks)
    }

    /// The network `name`.
    pub async fn network(&self, name: &Name) -> Result<Option<Network>, ClusterError> {
        self.read(&keys::network(name)).await
    }

    /// Adds a network with the number that it has, or finds that it is there as it is.
    pub async fn add_network(&self, network: &Network) -> Result<Network, ClusterError> {
        network.validate()?;
        if network.name.as_str() != DEFAULT_NETWORK && network.vni == DEFAULT_VNI {
            return Err(ClusterError::VniTaken { vni: network.vni, holder: DEFAULT_NETWORK.to_owned() });
        }
        self.check_tenant(network).await?;
        let (key, vni) = (keys::network(&network.name), keys::vni(network.vni));
        let name = network.name.as_str().as_bytes();
        let creation = Transaction::default().expect(&key, Expect::Absent).expect(&vni, Expect::Absent);
        let creation = creation.put(&key, &encode(network), None).put(&vni, name, None);
        match settle(&*self.store, &creation).await {
            Ok(_) => Ok(network.clone()),
            Err(StoreError::Conflict(_)) => self.existing(network).await,
            Err(error) => Err(error.into()),
        }
    }

    /// The network `name`; where there is none, a new one of `tenant` with a free number, whose ranges hold `addresses`.
    pub async fn network_or_new(
        &self,
        name: &Name,
        tenant: &Name,
        addresses: &[IpAddr],
    ) -> Result<Network, ClusterError> {
        for _ in 0..ATTEMPTS {
            if let Some(network) = self.network(name).await? {
                return Ok(network);
            }
            let vni = self.free_vni(name).await?;
            let network = Network { tenant: tenant.clone(), ..Network::around(name.clone(), vni, addresses) };
            match self.add_network(&network).await {
                // Another host was faster, with this network or with this number.
                Err(ClusterError::Exists { .. } | ClusterError::VniTaken { .. }) => {}
                added => return added,
            }
        }
        Err(ClusterError::Contended(keys::VNIS.to_owned()))
    }

    /// Makes a network of a tenant that there is, with its number where that is not 0, or with a free one.
    pub async fn make_network(&self, network: &Network) -> Result<Network, ClusterError> {
        let Network { name, tenant, .. } = network;
        if tenant.as_str() != DEFAULT_TENANT && self.tenant(tenant).await?.is_none() {
            return Err(ClusterError::Missing { what: "tenant", name: tenant.to_string() });
        }
        for _ in 0..ATTEMPTS {
            if self.network(name).await?.is_some() {
                return Err(ClusterError::Exists { what: "network", name: name.to_string() });
            }
            let vni = if network.vni == 0 { self.free_vni(name).await? } else { network.vni };
            match self.add_network(&Network { vni, ..network.clone() }).await {
                // Another host was faster with this number.
                Err(ClusterError::VniTaken { .. }) if network.vni == 0 => {}
                made => return made,
            }
        }
        Err(ClusterError::Contended(keys::VNIS.to_owned()))
    }

    /// Removes a network that has no endpoints, with its groups and policies.
    pub async fn remove_network(&self, name: &Name) -> Result<(), ClusterError> {
        let prefix = keys::network_prefix(name);
        let listing = self.store.list(&prefix, None).await?;
        let entry = listing.entries.iter().find(|entry| entry.key == keys::network(name));
        let entry = entry.ok_or_else(|| ClusterError::Missing { what: "network", name: name.to_string() })?;
        let (network, revision) = (decode::<Network>(entry)?, entry.revision);
        let has_endpoints = listing.entries.iter().any(|entry| entry.key[prefix.len()..].starts_with(keys::ENDPOINTS));
        if has_endpoints {
            return Err(ClusterError::InUse(name.clone()));
        }
        let removal = Transaction::default().expect(&keys::network(name), Expect::Revision(revision));
        let removal = removal.delete(&keys::network(name)).delete(&keys::vni(network.vni));
        settle(&*self.store, &removal).await?;
        for entry in listing.entries.iter().filter(|entry| entry.lease.is_none()) {
            self.store.commit(&Transaction::default().delete(&entry.key)).await?;
        }
        Ok(())
    }

    /// Adds a security group, or changes one.
    pub async fn set_group(&self, group: &SecurityGroup) -> Result<Revision, ClusterError> {
        group.validate()?;
        self.set(&keys::group(&group.network, &group.name), group).await
    }

    /// The security groups of a network, by name.
    pub async fn groups(&self, network: &Name) -> Result<Vec<SecurityGroup>, ClusterError> {
        self.list(&keys::group_prefix(network)).await
    }

    /// The endpoints of a network, by name.
    pub async fn endpoints(&self, network: &Name) -> Result<Vec<Endpoint>, ClusterError> {
        self.list(&keys::endpoint_prefix(network)).await
    }

    /// Removes a security group; whether there was one.
    pub async fn remove_group(&self, network: &Name, name: &Name) -> Result<bool, ClusterError> {
        let removal = Transaction::default().delete(&keys::group(network, name));
        Ok(self.store.commit(&removal).await?.deleted != 0)
    }

    /// Sets the policy of a scope, or removes it.
    pub async fn set_policy(&self, scope: &PolicyScope, policy: Option<&Policy>) -> Result<Revision, ClusterError> {
        let key = keys::policy(scope);
        let Some(policy) = policy else {
            return Ok(self.store.commit(&Transaction::default().delete(&key)).await?.revision);
        };
        policy.validate()?;
        self.set(&key, policy).await
    }

    /// The policy of a scope itself.
    pub async fn policy(&self, scope: &PolicyScope) -> Result<Option<Policy>, ClusterError> {
        self.read(&keys::policy(scope)).await
    }

    /// All policies, by scope.
    pub async fn policies(&self) -> Result<PolicyTree, ClusterError> {
        let mut tree = PolicyTree::default();
        let common = keys::common_policy_prefix();
        for entry in self.store.list(&common, None).await?.entries {
            if let Ok(scope) = entry.key[common.len()..].parse() {
                tree.set(scope, Some(decode(&entry)?));
            }
        }
        for network in self.networks().await? {
            let prefix = keys::policy_prefix(&network.name);
            for entry in self.store.list(&prefix, None).await?.entries {
                if let Ok(name) = entry.key[prefix.len()..].parse() {
                    let scope = PolicyScope::Endpoint { network: network.name.clone(), name };
                    tree.set(scope, Some(decode(&entry)?));
                }
            }
        }
        Ok(tree)
    }

    /// All hosts that are there now, by name.
    pub async fn hosts(&self) -> Result<Vec<Host>, ClusterError> {
        self.list(keys::HOSTS).await
    }

    async fn list<T: DeserializeOwned>(&self, prefix: &str) -> Result<Vec<T>, ClusterError> {
        self.store.list(prefix, None).await?.entries.iter().map(decode).collect()
    }

    async fn set(&self, key: &str, record: &impl Serialize) -> Result<Revision, ClusterError> {
        // To set a record twice is to set it once.
        let set = Transaction::default().put(key, &encode(record), None);
        Ok(settle(&*self.store, &set).await?.revision)
    }

    async fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, ClusterError> {
        self.store.get(key).await?.as_ref().map(decode).transpose()
    }

    async fn existing(&self, network: &Network) -> Result<Network, ClusterError> {
        let exists = || ClusterError::Exists { what: "network", name: network.name.to_string() };
        if let Some(existing) = self.network(&network.name).await? {
            return if existing == *network { Ok(existing) } else { Err(exists()) };
        }
        let holder = self.store.get(&keys::vni(network.vni)).await?;
        let holder = holder.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()).unwrap_or_default();
        Err(ClusterError::VniTaken { vni: network.vni, holder })
    }

    /// An error where the network's tenant, if it has a record, has as many networks as it may.
    async fn check_tenant(&self, network: &Network) -> Result<(), ClusterError> {
        let Some(tenant) = self.tenant(&network.tenant).await? else { return Ok(()) };
        if tenant.max_networks.is_none() || self.network(&network.name).await?.is_some() {
            return Ok(());
        }
        if tenant.may_add_network(&self.networks().await?) {
            Ok(())
        } else {
            Err(ClusterError::TooManyNetworks(tenant.name))
        }
    }

    async fn free_vni(&self, network: &Name) -> Result<u32, ClusterError> {
        if network.as_str() == DEFAULT_NETWORK {
            return Ok(DEFAULT_VNI);
        }
        let taken: BTreeSet<String> =
            self.store.list(keys::VNIS, None).await?.entries.into_iter().map(|e| e.key).collect();
        let free = (DEFAULT_VNI + 1..=MAX_VNI).find(|vni| !taken.contains(&keys::vni(*vni)));
        free.ok_or_else(|| ClusterError::Missing { what: "free network number", name: String::new() })
    }
}

pub(super) fn encode(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("records are JSON")
}

pub(super) fn decode<T: DeserializeOwned>(entry: &Entry) -> Result<T, ClusterError> {
    let unreadable = |why: serde_json::Error| ClusterError::Unreadable { key: entry.key.clone(), why: why.to_string() };
    serde_json::from_slice(&entry.value).map_err(unreadable)
}

/// Number of times that an operation is tried while others are faster.
pub(super) const ATTEMPTS: usize = 64;
