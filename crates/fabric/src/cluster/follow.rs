//! Typed watch of a part of the store: its records as they are, through losses of the connection.

use super::error::ClusterError;
use super::keys;
use super::records::Cluster;
use crate::store::{Change, Changes, Entry, Revision, StoreError};
use crate::{Endpoint, Host, Name, Network, Policy, PolicyScope, PolicyTree, SecurityGroup, Tenant};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

/// Records under one prefix, which follow changes.
pub trait View: Clone + Default + Send {
    /// Follows a change of `key`, the part after the prefix; no value where it is removed.
    fn apply(&mut self, key: &str, value: Option<&[u8]>);
}

/// Everything that belongs to a network. Records that cannot be read are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkView {
    network: Option<Network>,
    hosts: BTreeMap<Name, Host>,
    endpoints: BTreeMap<Name, Endpoint>,
    groups: BTreeMap<Name, SecurityGroup>,
    policies: BTreeMap<Name, Policy>,
}

/// The cluster's tenants, and the policies of hosts and tenants. Records that cannot be read are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommonView {
    tenants: BTreeMap<Name, Tenant>,
    policies: PolicyTree,
}

impl NetworkView {
    /// The network itself; none where it has been removed.
    pub fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// The hosts that have endpoints on it, by name.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.hosts.values()
    }

    /// Its endpoints, by name, with their hosts.
    pub fn placed(&self) -> impl Iterator<Item = (&Endpoint, &Host)> {
        self.endpoints.values().filter_map(|endpoint| Some((endpoint, self.hosts.get(&endpoint.host)?)))
    }

    /// Adds a host and its endpoints, but for those whose name or address another endpoint has.
    pub(super) fn add_absent(&mut self, host: &Host, endpoints: &[Endpoint]) {
        self.hosts.entry(host.name.clone()).or_insert_with(|| host.clone());
        let used: HashSet<IpAddr> = self.endpoints.values().flat_map(|endpoint| endpoint.addresses.clone()).collect();
        for endpoint in endpoints.iter().filter(|absent| !absent.addresses.iter().any(|own| used.contains(own))) {
            self.endpoints.entry(endpoint.name.clone()).or_insert_with(|| endpoint.clone());
        }
    }

    /// Its security groups, by name.
    pub fn groups(&self) -> impl Iterator<Item = &SecurityGroup> {
        self.groups.values()
    }

    /// The policies of its endpoints.
    pub fn policies(&self) -> impl Iterator<Item = (&Name, &Policy)> {
        self.policies.iter()
    }
}

impl View for NetworkView {
    fn apply(&mut self, key: &str, value: Option<&[u8]>) {
        if key == keys::NETWORK {
            self.network = value.and_then(|value| serde_json::from_slice(value).ok());
        } else if let Some(name) = key.strip_prefix(keys::HOSTS) {
            set(&mut self.hosts, name, value);
        } else if let Some(name) = key.strip_prefix(keys::ENDPOINTS) {
            set(&mut self.endpoints, name, value);
        } else if let Some(name) = key.strip_prefix(keys::GROUPS) {
            set(&mut self.groups, name, value);
        } else if let Some(name) = key.strip_prefix(keys::POLICIES) {
            set(&mut self.policies, name, value);
        }
    }
}

impl CommonView {
    /// All tenants that have a record, by name.
    pub fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.values()
    }

    /// The policies of hosts and tenants.
    pub fn policies(&self) -> &PolicyTree {
        &self.policies
    }
}

impl View for CommonView {
    fn apply(&mut self, key: &str, value: Option<&[u8]>) {
        if let Some(name) = key.strip_prefix(keys::TENANTS) {
            set(&mut self.tenants, name, value);
        } else if let Some(Ok(scope)) = key.strip_prefix(keys::POLICIES).map(str::parse::<PolicyScope>) {
            self.policies.set(scope, value.and_then(|value| serde_json::from_slice(value).ok()));
        }
    }
}

fn set<T: DeserializeOwned>(map: &mut BTreeMap<Name, T>, name: &str, value: Option<&[u8]>) {
    let Ok(name) = name.parse() else { return };
    match value.and_then(|value| serde_json::from_slice(value).ok()) {
        Some(record) => map.insert(name, record),
        None => map.remove(&name),
    };
}

/// A view that follows the store.
pub struct Follower<V> {
    cluster: Cluster,
    prefix: String,
    view: V,
    revision: Revision,
    changes: Option<Box<dyn Changes>>,
    is_listed: bool,
}

impl Follower<NetworkView> {
    /// A follower of a network, which has read nothing yet.
    pub fn of_network(cluster: Cluster, network: &Name) -> Self {
        Self::new(cluster, keys::network_prefix(network))
    }
}

impl Follower<CommonView> {
    /// A follower of what all hosts follow, which has read nothing yet.
    pub fn of_cluster(cluster: Cluster) -> Self {
        Self::new(cluster, keys::COMMON.to_owned())
    }
}

impl<V: View> Follower<V> {
    fn new(cluster: Cluster, prefix: String) -> Self {
        let (view, revision) = (V::default(), Revision::default());
        Self { cluster, prefix, view, revision, changes: None, is_listed: false }
    }

    /// The state as known now.
    pub fn view(&self) -> &V {
        &self.view
    }

    /// Revision of the store of which it is.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Waits for a change, which is in the view then; the first one is the listing. After an error the view stays as it was, and
    /// the next call goes on where this one was.
    pub async fn follow(&mut self) -> Result<(), ClusterError> {
        loop {
            if !self.is_listed {
                return self.list().await;
            }
            match self.next().await {
                // What is missing is not known: all is read again.
                Err(StoreError::Forgotten(_)) => self.is_listed = false,
                outcome => return Ok(outcome?),
            }
        }
    }

    async fn list(&mut self) -> Result<(), ClusterError> {
        let listing = self.cluster.store().list(&self.prefix, None).await?;
        let mut view = V::default();
        for Entry { key, value, .. } in &listing.entries {
            view.apply(&key[self.prefix.len()..], Some(value));
        }
        (self.view, self.revision, self.changes, self.is_listed) = (view, listing.revision, None, true);
        Ok(())
    }

    async fn next(&mut self) -> Result<(), StoreError> {
        let prefix = &self.prefix;
        let changes = match &mut self.changes {
            Some(changes) => changes,
            None => self.changes.insert(self.cluster.store().watch(prefix, self.revision).await?),
        };
        let next = changes.next().await;
        // Also where nothing has come: a later compaction is then no loss.
        self.revision = changes.revision();
        let batch = next.inspect_err(|_| self.changes = None)?;
        for change in &batch.changes {
            let value = match change {
                Change::Put(entry) => Some(entry.value.as_slice()),
                Change::Delete { .. } => None,
            };
            self.view.apply(&change.key()[prefix.len()..], value);
        }
        Ok(())
    }
}
