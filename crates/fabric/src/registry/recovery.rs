//! Recovery of a dead router's store for the next one.

use super::{ADDRESSES, Registry, RegistryError, VNIS, decode, endpoint_key, host_key, network_key};
use crate::store::{Expect, StoreError};
use crate::{Endpoint, Name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Owner process of an endpoint, distinguished from a later process with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The boot in which it was started, as the kernel names it.
    pub boot: String,
    /// Time at which it was started in it, in clock ticks.
    pub started: u64,
}

impl Registry {
    /// Registers this router as the host `host`, and returns the endpoints of an earlier router on this host: they are this
    /// host's now, even if it had another name. Registrations that the earlier one had not finished are removed.
    pub fn recover(&self, host: &Name) -> Result<Vec<Endpoint>, RegistryError> {
        let before = self.store.get(OWN_HOST)?.and_then(|entry| String::from_utf8(entry.value).ok());
        let before = before.and_then(|name| name.parse::<Name>().ok()).unwrap_or_else(|| host.clone());
        self.store.put(OWN_HOST, host.as_str().as_bytes(), Expect::Anything, None)?;
        if before != *host {
            self.store.delete(&host_key(&before), Expect::Anything)?;
        }
        let endpoints = self.endpoints()?;
        self.release_unused(&endpoints)?;
        let own = endpoints.into_iter().filter(|endpoint| endpoint.host == before);
        let adopt = |endpoint: Endpoint| {
            let endpoint = Endpoint { host: host.clone(), ..endpoint };
            self.put(&endpoint_key(&endpoint.network, &endpoint.name), &endpoint, Expect::Anything)?;
            Ok(endpoint)
        };
        own.map(adopt).collect()
    }

    /// Records the identity of an endpoint's owner, which distinguishes it from a later process with the same number.
    pub fn set_owner(&self, network: &Name, name: &Name, owner: &Owner) -> Result<(), RegistryError> {
        self.put(&owner_key(network, name), owner, Expect::Anything)?;
        Ok(())
    }

    /// The owner that [`Registry::set_owner`] has recorded.
    pub fn owner(&self, network: &Name, name: &Name) -> Result<Option<Owner>, RegistryError> {
        self.store.get(&owner_key(network, name))?.as_ref().map(decode).transpose()
    }

    /// Frees addresses and numbers whose endpoint or network was never made.
    fn release_unused(&self, endpoints: &[Endpoint]) -> Result<(), RegistryError> {
        let address_keys = |e: &Endpoint| {
            let keys: Vec<_> = e.addresses.iter().map(|&address| super::address_key(&e.network, address)).collect();
            keys
        };
        let used: BTreeSet<String> = endpoints.iter().flat_map(address_keys).collect();
        for entry in self.store.list(ADDRESSES)?.iter().filter(|entry| !used.contains(&entry.key)) {
            self.store.delete(&entry.key, Expect::Anything)?;
        }
        for entry in self.store.list(VNIS)? {
            let network = String::from_utf8(entry.value).ok().and_then(|name| name.parse::<Name>().ok());
            let is_used = |network: &Name| Ok::<_, StoreError>(self.store.get(&network_key(network))?.is_some());
            if !network.as_ref().map_or(Ok(false), is_used)? {
                self.store.delete(&entry.key, Expect::Anything)?;
            }
        }
        Ok(())
    }
}

pub(super) fn owner_key(network: &Name, name: &Name) -> String {
    format!("owners/{network}/{name}")
}

const OWN_HOST: &str = "own-host";
