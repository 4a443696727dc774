//! Tenants, and the security groups of networks.

use super::{Registry, RegistryError, decode, encode};
use crate::invalid::Validate;
use crate::store::{Expect, Revision, StoreError};
use crate::{Name, NetworkGroups, SecurityGroup, Tenant};

impl Registry {
    /// The security groups of a network.
    pub fn groups(&self, network: &Name) -> Result<NetworkGroups, RegistryError> {
        Ok(self.store.get(&groups_key(network))?.as_ref().map(decode).transpose()?.unwrap_or_default())
    }

    /// The security groups of all networks, by network and name.
    pub fn all_groups(&self) -> Result<Vec<SecurityGroup>, RegistryError> {
        let all = self.store.list(GROUPS)?;
        let all = all.iter().map(decode::<NetworkGroups>).collect::<Result<Vec<_>, _>>()?;
        Ok(all.into_iter().flat_map(|network| network.groups).collect())
    }

    /// Sets all security groups of a network.
    pub fn set_groups(&self, network: &Name, groups: &NetworkGroups) -> Result<Revision, RegistryError> {
        Ok(self.store.put(&groups_key(network), &encode(groups)?, Expect::Anything, None)?)
    }

    /// Sets a security group of a network, or removes it; none where there was none to be removed.
    pub fn set_group(
        &self,
        network: &Name,
        name: &Name,
        group: Option<&SecurityGroup>,
    ) -> Result<Option<Revision>, RegistryError> {
        group.map_or(Ok(()), Validate::validate)?;
        let key = groups_key(network);
        loop {
            let entry = self.store.get(&key)?;
            let mut groups: NetworkGroups = entry.as_ref().map(decode).transpose()?.unwrap_or_default();
            let before = groups.groups.len();
            groups.groups.retain(|known| known.name != *name);
            if group.is_none() && groups.groups.len() == before {
                return Ok(None);
            }
            groups.groups.extend(group.cloned());
            groups.groups.sort_by(|a, b| a.name.cmp(&b.name));
            let expect = entry.map_or(Expect::Absent, |entry| Expect::Revision(entry.revision));
            match self.store.put(&key, &encode(&groups)?, expect, None) {
                // Another has changed them meanwhile.
                Err(StoreError::Conflict(_)) => {}
                put => return Ok(Some(put?)),
            }
        }
    }

    /// All tenants that have a record, by name.
    pub fn tenants(&self) -> Result<Vec<Tenant>, RegistryError> {
        self.store.list(TENANTS)?.iter().map(decode).collect()
    }

    /// Sets the record of a tenant.
    pub fn set_tenant(&self, tenant: &Tenant) -> Result<(), RegistryError> {
        tenant.validate()?;
        self.store.put(&format!("{TENANTS}{}", tenant.name), &encode(tenant)?, Expect::Anything, None)?;
        Ok(())
    }

    /// Removes the record of a tenant; whether there was one.
    pub fn remove_tenant(&self, name: &Name) -> Result<bool, RegistryError> {
        if self.networks()?.iter().any(|network| network.tenant == *name) {
            return Err(RegistryError::TenantInUse(name.clone()));
        }
        self.forget_tenant(name)
    }

    /// Removes the record of a tenant that others have removed; whether there was one.
    pub fn forget_tenant(&self, name: &Name) -> Result<bool, RegistryError> {
        Ok(self.store.delete(&format!("{TENANTS}{name}"), Expect::Anything)?)
    }
}

pub(super) fn groups_key(network: &Name) -> String {
    format!("{GROUPS}{network}")
}

pub(crate) const GROUPS: &str = "groups/";
const TENANTS: &str = "tenants/";
