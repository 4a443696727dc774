//! Networks that the operator makes.

use super::{Registry, RegistryError, StoreError, decode, network_key};
use crate::invalid::Validate;
use crate::network::DEFAULT_VNI;
use crate::{Name, Network};

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
