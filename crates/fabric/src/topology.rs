//! Topology: a copy of the registry, kept up to date through a watch.

use crate::registry::{ACQUIRED, ENDPOINTS, GROUPS, HOSTS, NETWORKS, POOLS};
use crate::store::{Cancel, Change, Entry, Revision, StoreError, Watch};
use crate::{Endpoint, Host, Name, Network, NetworkGroups};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;

/// Networks, hosts, endpoints and security groups, by their keys in the store. Unreadable entries are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    networks: BTreeMap<String, Network>,
    hosts: BTreeMap<String, Host>,
    endpoints: BTreeMap<String, Endpoint>,
    groups: BTreeMap<String, NetworkGroups>,
}

impl Topology {
    /// All networks, by name.
    pub fn networks(&self) -> impl Iterator<Item = &Network> {
        self.networks.values()
    }

    /// All hosts, by name.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.hosts.values()
    }

    /// All endpoints of all hosts, by network and name.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.values()
    }

    /// The security groups of each network that has some.
    pub fn groups(&self) -> impl Iterator<Item = (Name, &NetworkGroups)> {
        let named = |(key, groups): (&String, _)| Some((key.strip_prefix(GROUPS)?.parse().ok()?, groups));
        self.groups.iter().filter(|(_, groups)| !groups.groups.is_empty()).filter_map(named)
    }

    /// Follows a change of the store.
    pub fn apply(&mut self, change: &Change) {
        let (key, value) = match change {
            Change::Put(entry) => (&entry.key, Some(entry.value.as_slice())),
            Change::Delete { key, .. } => (key, None),
        };
        if key.starts_with(NETWORKS) {
            set(&mut self.networks, key, value);
        } else if key.starts_with(HOSTS) {
            set(&mut self.hosts, key, value);
        } else if key.starts_with(ENDPOINTS) {
            set(&mut self.endpoints, key, value);
        } else if key.starts_with(GROUPS) {
            set(&mut self.groups, key, value);
        }
    }
}

fn set<T: DeserializeOwned>(map: &mut BTreeMap<String, T>, key: &str, value: Option<&[u8]>) {
    match value.and_then(|value| serde_json::from_slice(value).ok()) {
        Some(value) => map.insert(key.to_owned(), value),
        None => map.remove(key),
    };
}

/// Whether a record matters to the router that wrote it only.
fn is_private(key: &str) -> bool {
    key.starts_with(ACQUIRED) || key.starts_with(POOLS)
}

/// A [`Topology`] that follows a store.
pub struct TopologyWatch {
    topology: Topology,
    revision: Revision,
    changes: Box<dyn Watch>,
}

impl TopologyWatch {
    pub(crate) fn new(entries: Vec<Entry>, changes: Box<dyn Watch>) -> Self {
        let mut watch = Self { topology: Topology::default(), revision: Revision::default(), changes };
        entries.into_iter().for_each(|entry| watch.apply(&Change::Put(entry)));
        watch
    }

    /// The registry's contents, as far as they are known here.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The last change that is in it.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Waits for a change, and applies those that have come with it. Returns whether there was one within `timeout`; earlier, and
    /// without one, where the waiting was ended or only records have changed that are in no topology.
    pub fn follow(&mut self, timeout: Duration) -> Result<bool, StoreError> {
        let mut is_news = false;
        let mut next = self.changes.next(timeout)?;
        while let Some(change) = next {
            self.apply(&change);
            // Which endpoints of pools are acquired is nobody's business but the router's.
            is_news |= !is_private(change.key());
            next = self.changes.next(Duration::ZERO)?;
        }
        Ok(is_news)
    }

    /// A handle by which another thread ends the waiting.
    pub fn cancel(&self) -> Cancel {
        self.changes.cancel()
    }

    fn apply(&mut self, change: &Change) {
        self.topology.apply(change);
        let (Change::Put(Entry { revision, .. }) | Change::Delete { revision, .. }) = change;
        self.revision = self.revision.max(*revision);
    }
}
