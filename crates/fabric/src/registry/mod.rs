//! Registry: assigns names, addresses and network numbers.

mod addresses;
mod error;
mod groups;
mod networks;
mod peers;
mod policies;
mod pools;
mod recovery;

use addresses::NextFree;
pub use error::RegistryError;
pub(crate) use groups::GROUPS;
pub(crate) use peers::host_key;
pub(crate) use pools::{ACQUIRED, POOLS};
pub use pools::{Acquisition, JoinPool};
pub use recovery::Owner;

use crate::network::{DEFAULT_VNI, MAX_VNI};
use crate::store::{Committed, Entry, Expect, LocalStore, Revision, StoreError, Transaction};
use crate::{DEFAULT_NETWORK, Endpoint, InterfaceName, Isolation, Labels, Name, Network, PoolMember, Quota};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// Networks and endpoints in a store, under these keys:
///
/// * `networks/<name>`: a [`Network`]; `vnis/<vni>`: the name of the network that has the number;
/// * `hosts/<name>`: a [`Host`](crate::Host);
/// * `endpoints/<network>/<name>`: an [`Endpoint`], on this host or another; `addresses/<network>/<address>`: the endpoint that has the address;
/// * `policies/<scope>`: a [`Policy`](crate::Policy); `tenants/<name>`: a [`Tenant`](crate::Tenant);
/// * `pools/<network>/<name>`: a [`Pool`](crate::Pool); `acquired/<network>/<name>`: the [`Acquisition`] of an endpoint of one;
/// * `groups/<network>`: its security groups, as [`NetworkGroups`](crate::NetworkGroups);
/// * `owners/<network>/<name>`: the [`Owner`] of an endpoint, `own-host`: the name of this host, for a router that comes after one that has died.
///
/// Numbers and addresses are claimed by creating their key, which succeeds for one only, however many routers try.
#[derive(Clone)]
pub struct Registry {
    store: Arc<dyn LocalStore>,
    next_free: NextFree,
}

/// Parameters of [`Registry::add_endpoint`].
#[derive(Clone, Debug)]
pub struct EndpointRequest {
    /// Its name.
    pub name: Name,
    /// Its network, made if there is none of that name.
    pub network: Name,
    /// The number that the network has, or is to have; any free one where none is given.
    pub vni: Option<u32>,
    /// The host that it is on.
    pub host: Name,
    /// Its addresses; where empty, the network's next free one of each family.
    pub addresses: Vec<IpAddr>,
    /// Its quota.
    pub quota: Quota,
    /// See [`Endpoint::allowed_uid`].
    pub allowed_uid: Option<u32>,
    /// See [`Endpoint::owner_pid`].
    pub owner_pid: Option<i32>,
    /// See [`Endpoint::isolation`].
    pub isolation: Isolation,
    /// See [`Endpoint::interface`].
    pub interface: InterfaceName,
    /// See [`Endpoint::pool`].
    pub pool: Option<JoinPool>,
    /// See [`Endpoint::labels`].
    pub labels: Labels,
}

/// Result of [`Registry::add_endpoint`].
#[derive(Clone, Debug)]
pub struct Added {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Its network.
    pub network: Network,
    /// The store's revision that has it.
    pub revision: Revision,
}

impl EndpointRequest {
    /// The endpoint that is asked for, with the addresses that it is given.
    fn at(&self, addresses: Vec<IpAddr>) -> Endpoint {
        let Self { name, network, host, quota, allowed_uid, owner_pid, isolation, interface, pool, labels, .. } =
            self.clone();
        let pool = pool.map(|JoinPool { name, link }| PoolMember { name, link: link.unwrap_or(addresses[0]) });
        Endpoint { name, network, host, addresses, quota, allowed_uid, owner_pid, isolation, interface, pool, labels }
    }
}

impl Registry {
    /// The registry in `store`.
    pub fn new(store: Arc<dyn LocalStore>) -> Self {
        Self { store, next_free: NextFree::default() }
    }

    /// The network `name`, which has the number `vni` if one is given; where there is none, a new one whose ranges hold
    /// `addresses`.
    pub fn network(&self, name: &Name, vni: Option<u32>, addresses: &[IpAddr]) -> Result<Network, RegistryError> {
        let key = network_key(name);
        loop {
            if let Some(entry) = self.store.get(&key)? {
                let network: Network = decode(&entry)?;
                let differs = |&asked: &u32| asked != network.vni;
                return match vni.filter(differs) {
                    Some(asked) => Err(RegistryError::VniDiffers { network: name.clone(), has: network.vni, asked }),
                    None => Ok(network),
                };
            }
            let claimed = vni.map_or_else(|| self.claim_vni(name), |vni| self.claim_given_vni(name, vni))?;
            let network = Network::around(name.clone(), claimed, addresses);
            match self.create(&key, &network) {
                Ok(_) => return Ok(network),
                // Another router was faster, and may have claimed the same number.
                Err(StoreError::Conflict(_)) => self.release_unused_vni(name, claimed)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes over a network as the cluster has it. Its number must be free here, or the network's own.
    pub fn adopt_network(&self, network: &Network) -> Result<(), RegistryError> {
        let key = network_key(&network.name);
        match self.store.get(&key)? {
            Some(entry) => {
                let known: Network = decode(&entry)?;
                if known == *network {
                    return Ok(());
                }
                if known.vni != network.vni {
                    let (network, has, asked) = (network.name.clone(), known.vni, network.vni);
                    return Err(RegistryError::VniDiffers { network, has, asked });
                }
            }
            None => drop(self.claim_given_vni(&network.name, network.vni)?),
        }
        self.put(&key, network, Expect::Anything)?;
        Ok(())
    }

    /// All networks, by name.
    pub fn networks(&self) -> Result<Vec<Network>, RegistryError> {
        self.store.list(NETWORKS)?.iter().map(decode).collect()
    }

    /// All endpoints, by network and name.
    pub fn endpoints(&self) -> Result<Vec<Endpoint>, RegistryError> {
        self.store.list(ENDPOINTS)?.iter().map(decode).collect()
    }

    /// The endpoint `name` on `network`.
    pub fn endpoint(&self, network: &Name, name: &Name) -> Result<Endpoint, RegistryError> {
        let entry = self.store.get(&endpoint_key(network, name))?;
        decode(&entry.ok_or_else(|| no_such(network, name))?)
    }

    /// Adds an endpoint and gives it its addresses.
    pub fn add_endpoint(&self, request: EndpointRequest) -> Result<Added, RegistryError> {
        let EndpointRequest { name, network, addresses, .. } = &request;
        let families: BTreeSet<bool> = addresses.iter().map(IpAddr::is_ipv4).collect();
        if families.len() != addresses.len() {
            return Err(RegistryError::TooManyAddresses);
        }
        let exists = || RegistryError::EndpointExists { name: name.clone(), network: network.clone() };
        let key = endpoint_key(network, name);
        if self.store.get(&key)?.is_some() {
            return Err(exists());
        }
        let found = self.network(network, request.vni, addresses)?;
        loop {
            let endpoint = request.at(self.addresses_for(&found, addresses)?);
            match self.store.commit(&creation(&endpoint)?) {
                Ok(Committed { revision, .. }) => {
                    self.next_free.take(&found, &endpoint.addresses);
                    return Ok(Added { endpoint, network: found, revision });
                }
                Err(StoreError::Conflict(_)) if self.store.get(&key)?.is_some() => return Err(exists()),
                Err(StoreError::Conflict(_)) if addresses.is_empty() => self.next_free.forget(network),
                Err(StoreError::Conflict(_)) => self.refuse_taken(&request)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes an endpoint and frees its addresses. A network stays when its last endpoint goes.
    pub fn remove_endpoint(&self, network: &Name, name: &Name) -> Result<Endpoint, RegistryError> {
        let key = endpoint_key(network, name);
        let entry = self.store.get(&key)?.ok_or_else(|| no_such(network, name))?;
        let endpoint: Endpoint = decode(&entry)?;
        match self.store.commit(&removal(Transaction::default(), &endpoint, entry.revision)) {
            Err(StoreError::Conflict(_)) => return Err(no_such(network, name)),
            removed => removed?,
        };
        self.next_free.give_back(network, &endpoint.addresses);
        Ok(endpoint)
    }

    /// Removes those of these endpoints of one network that are there, all or none, in one transaction.
    pub fn remove_endpoints(&self, network: &Name, names: &[Name]) -> Result<Vec<Endpoint>, RegistryError> {
        let (mut gone, mut all) = (Vec::with_capacity(names.len()), Transaction::default());
        for name in names {
            let Some(entry) = self.store.get(&endpoint_key(network, name))? else { continue };
            let endpoint: Endpoint = decode(&entry)?;
            all = removal(all, &endpoint, entry.revision);
            gone.push(endpoint);
        }
        if !gone.is_empty() {
            self.store.commit(&all)?;
        }
        gone.iter().for_each(|endpoint| self.next_free.give_back(network, &endpoint.addresses));
        Ok(gone)
    }

    /// Changes the quota of an endpoint. Returns what it is then.
    pub fn set_quota(&self, network: &Name, name: &Name, quota: Quota) -> Result<Endpoint, RegistryError> {
        let key = endpoint_key(network, name);
        loop {
            let entry = self.store.get(&key)?.ok_or_else(|| no_such(network, name))?;
            let endpoint = Endpoint { quota, ..decode(&entry)? };
            match self.put(&key, &endpoint, Expect::Revision(entry.revision)) {
                Ok(_) => return Ok(endpoint),
                // Another has changed it meanwhile.
                Err(StoreError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn claim_vni(&self, network: &Name) -> Result<u32, RegistryError> {
        let first = if network.as_str() == DEFAULT_NETWORK { DEFAULT_VNI } else { DEFAULT_VNI + 1 };
        let taken: BTreeSet<String> = self.store.list(VNIS)?.into_iter().map(|e| e.key).collect();
        for vni in first..=MAX_VNI {
            let key = vni_key(vni);
            if !taken.contains(&key) && self.claim(&key, network.as_str())? {
                return Ok(vni);
            }
        }
        Err(RegistryError::NoVniLeft)
    }

    /// Claims `vni` for `network`, which may have claimed it already.
    fn claim_given_vni(&self, network: &Name, vni: u32) -> Result<u32, RegistryError> {
        if !(DEFAULT_VNI..=MAX_VNI).contains(&vni) {
            return Err(RegistryError::InvalidVni(vni));
        }
        let taken = |holder| RegistryError::VniTaken { vni, holder };
        if vni == DEFAULT_VNI && network.as_str() != DEFAULT_NETWORK {
            return Err(taken(DEFAULT_NETWORK.to_owned()));
        }
        let key = vni_key(vni);
        if self.claim(&key, network.as_str())? {
            return Ok(vni);
        }
        match self.holder(&key)? {
            holder if holder == network.as_str() => Ok(vni),
            holder => Err(taken(holder)),
        }
    }

    fn release_unused_vni(&self, network: &Name, vni: u32) -> Result<(), RegistryError> {
        let entry = self.store.get(&network_key(network))?;
        let existing: Option<Network> = entry.as_ref().map(decode).transpose()?;
        if existing.is_some_and(|existing| existing.vni != vni) {
            self.store.delete(&vni_key(vni), Expect::Anything)?;
        }
        Ok(())
    }

    /// Creates `key`; false if it exists.
    fn claim(&self, key: &str, value: &str) -> Result<bool, StoreError> {
        match self.store.put(key, value.as_bytes(), Expect::Absent, None) {
            Ok(_) => Ok(true),
            Err(StoreError::Conflict(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The owner of `key`.
    fn holder(&self, key: &str) -> Result<String, StoreError> {
        Ok(self.store.get(key)?.map(|e| String::from_utf8_lossy(&e.value).into_owned()).unwrap_or_default())
    }

    fn create(&self, key: &str, value: &impl Serialize) -> Result<Revision, StoreError> {
        self.put(key, value, Expect::Absent)
    }

    fn put(&self, key: &str, value: &impl Serialize, expect: Expect) -> Result<Revision, StoreError> {
        self.store.put(key, &encode(value)?, expect, None)
    }
}

/// Makes `endpoint` and claims its addresses, or changes nothing.
fn creation(endpoint: &Endpoint) -> Result<Transaction, StoreError> {
    let key = endpoint_key(&endpoint.network, &endpoint.name);
    let transaction = Transaction::default().expect(&key, Expect::Absent).put(&key, &encode(endpoint)?, None);
    let addresses = endpoint.addresses.iter().map(|&address| address_key(&endpoint.network, address));
    let name = endpoint.name.as_str().as_bytes();
    Ok(addresses.fold(transaction, |all, key| all.expect(&key, Expect::Absent).put(&key, name, None)))
}

/// `transaction`, which removes `endpoint` as well, if that is as it was at `revision`.
fn removal(transaction: Transaction, endpoint: &Endpoint, revision: Revision) -> Transaction {
    let Endpoint { network, name, addresses, .. } = endpoint;
    let key = endpoint_key(network, name);
    let removal = transaction.expect(&key, Expect::Revision(revision)).delete(&key);
    let removal = removal.delete(&recovery::owner_key(network, name)).delete(&pools::acquired_key(network, name));
    addresses.iter().fold(removal, |removal, &address| removal.delete(&address_key(network, address)))
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    let mut text = Vec::with_capacity(512);
    serde_json::to_writer(&mut text, value).map_err(|e| StoreError::Unavailable(e.to_string()))?;
    Ok(text)
}

pub(crate) fn decode<T: DeserializeOwned>(entry: &Entry) -> Result<T, RegistryError> {
    let unreadable = |e| StoreError::Unavailable(format!("`{}` is unreadable: {e}", entry.key));
    Ok(serde_json::from_slice(&entry.value).map_err(unreadable)?)
}

fn no_such(network: &Name, name: &Name) -> RegistryError {
    RegistryError::NoSuchEndpoint { name: name.clone(), network: network.clone() }
}

fn network_key(name: &Name) -> String {
    format!("{NETWORKS}{name}")
}

fn vni_key(vni: u32) -> String {
    format!("{VNIS}{vni}")
}

fn endpoint_key(network: &Name, name: &Name) -> String {
    format!("{ENDPOINTS}{network}/{name}")
}

fn address_key(network: &Name, address: IpAddr) -> String {
    format!("{ADDRESSES}{network}/{address}")
}

pub(crate) const NETWORKS: &str = "networks/";
pub(crate) const HOSTS: &str = "hosts/";
pub(crate) const ENDPOINTS: &str = "endpoints/";
const VNIS: &str = "vnis/";
const ADDRESSES: &str = "addresses/";

#[cfg(test)]
mod tests;
