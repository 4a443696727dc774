//! Pools of this host, and which of their endpoints are acquired: what the next router needs to know.

use super::{Owner, Registry, RegistryError, decode, encode};
use crate::store::{Expect, Transaction};
use crate::{Endpoint, Name, Pool};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// User of an acquired endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquisition {
    /// The process with which it is released, and its identity; none: it stays acquired until it is released.
    pub owner: Option<(i32, Owner)>,
    /// Directory of the control group whose sockets are held to the endpoint's addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
}

/// The pool that a new endpoint is to be of.
#[derive(Clone, Debug)]
pub struct JoinPool {
    /// Its name.
    pub name: Name,
    /// See [`PoolMember::link`](crate::PoolMember::link); none: the new endpoint is the first one, and its own address it is.
    pub link: Option<IpAddr>,
}

impl Registry {
    /// All pools, by network and name.
    pub fn pools(&self) -> Result<Vec<Pool>, RegistryError> {
        self.store.list(POOLS)?.iter().map(decode).collect()
    }

    /// Records a pool.
    pub fn set_pool(&self, pool: &Pool) -> Result<(), RegistryError> {
        self.put(&pool_key(&pool.network, &pool.name), pool, Expect::Anything)?;
        Ok(())
    }

    /// Forgets a pool.
    pub fn forget_pool(&self, network: &Name, name: &Name) -> Result<(), RegistryError> {
        self.store.delete(&pool_key(network, name), Expect::Anything)?;
        Ok(())
    }

    /// Records that these endpoints of `network` are acquired, all or none.
    pub fn acquire(&self, network: &Name, names: &[Name], by: &Acquisition) -> Result<(), RegistryError> {
        let value = encode(by)?;
        let all = names.iter();
        let all = all.fold(Transaction::default(), |all, name| all.put(&acquired_key(network, name), &value, None));
        self.store.commit(&all)?;
        Ok(())
    }

    /// Records the control group of an endpoint that is acquired without a process.
    pub fn set_cgroup(&self, network: &Name, name: &Name, cgroup: PathBuf) -> Result<(), RegistryError> {
        let by = Acquisition { owner: None, cgroup: Some(cgroup) };
        self.put(&acquired_key(network, name), &by, Expect::Anything)?;
        Ok(())
    }

    /// Records that an endpoint of a pool is released.
    pub fn release(&self, network: &Name, name: &Name) -> Result<(), RegistryError> {
        self.store.delete(&acquired_key(network, name), Expect::Anything)?;
        Ok(())
    }

    /// Whether an endpoint of a pool is acquired, and by whom.
    pub fn acquisition(&self, endpoint: &Endpoint) -> Result<Option<Acquisition>, RegistryError> {
        let entry = self.store.get(&acquired_key(&endpoint.network, &endpoint.name))?;
        entry.as_ref().map(decode).transpose()
    }
}

fn pool_key(network: &Name, name: &Name) -> String {
    format!("{POOLS}{network}/{name}")
}

pub(super) fn acquired_key(network: &Name, name: &Name) -> String {
    format!("{ACQUIRED}{network}/{name}")
}

pub(crate) const POOLS: &str = "pools/";
pub(crate) const ACQUIRED: &str = "acquired/";
