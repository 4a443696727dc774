//! Networks that the operator makes.

use super::groups::groups_key;
use super::{ENDPOINTS, POOLS, Registry, RegistryError, StoreError, decode, network_key, vni_key};
use crate::invalid::Validate;
use crate::network::DEFAULT_VNI;
use crate::store::{Expect, Transaction};
use crate::{Endpoint, Name, Network, Pool};

impl Registry {
    /// The network `name`.
    pub fn find_network(&self, name: &Name) -> Result<Option<Network>, RegistryError> {
        self.store.get(&network_key(name))?.as_ref().map(decode).transpose()
    }

    /// Makes a network, with its number where that is not 0, or with a free one.
    pub fn add_network(&self, mut network: Network) -> Result<Network, RegistryError> {
        let name = network.name.clone();
        if self.find_network(&name)?.is_some() {
            return Err(RegistryError::NetworkExists(name));
        }
        Network { vni: DEFAULT_VNI, ..network.clone() }.validate()?;
        self.check_tenant(&network)?;
        network.vni = if network.vni == 0 { self.claim_vni(&name) } else { self.claim_given_vni(&name, network.vni) }?;
        match self.create(&network_key(&name), &network) {
            Ok(_) => Ok(network),
            Err(StoreError::Conflict(_)) => {
                self.release_unused_vni(&name, network.vni)?;
                Err(RegistryError::NetworkExists(name))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a network that has no endpoints and pools, with its groups. Nobody may add any meanwhile.
    pub fn remove_network(&self, name: &Name) -> Result<(), RegistryError> {
        let key = network_key(name);
        let entry = self.store.get(&key)?.ok_or_else(|| RegistryError::NoSuchNetwork(name.clone()))?;
        let network: Network = decode(&entry)?;
        self.check_unused(name)?;
        let removal = Transaction::default().expect(&key, Expect::Revision(entry.revision)).delete(&key);
        self.store.commit(&removal.delete(&vni_key(network.vni)).delete(&groups_key(name)))?;
        self.next_free.forget(name);
        Ok(())
    }

    /// An error where endpoints or pools are on a network.
    pub fn check_unused(&self, name: &Name) -> Result<(), RegistryError> {
        let in_use = |what: String| Err(RegistryError::NetworkInUse { network: name.clone(), what });
        // Pools first: endpoints of theirs go with them.
        if let Some(entry) = self.store.list(&format!("{POOLS}{name}/"))?.first() {
            return in_use(format!("pool `{}`", decode::<Pool>(entry)?.name));
        }
        match self.store.list(&format!("{ENDPOINTS}{name}/"))?.first() {
            Some(entry) => {
                let endpoint: Endpoint = decode(entry)?;
                in_use(format!("endpoint `{}` of host `{}`", endpoint.name, endpoint.host))
            }
            None => Ok(()),
        }
    }

    /// An error where the network's tenant is not known, or has as many networks as it may.
    fn check_tenant(&self, network: &Network) -> Result<(), RegistryError> {
        let name = &network.tenant;
        match self.tenants()?.into_iter().find(|tenant| tenant.name == *name) {
            None if name.as_str() == crate::DEFAULT_TENANT => Ok(()),
            None => Err(RegistryError::NoSuchTenant(name.clone())),
            Some(tenant) if tenant.may_add_network(&self.networks()?) => Ok(()),
            Some(_) => Err(RegistryError::TooManyNetworks(name.clone())),
        }
    }
}
