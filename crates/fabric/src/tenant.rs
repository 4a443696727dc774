//! Tenants: the owners of networks.

use crate::invalid::{InvalidField, Validate, require};
use crate::{Name, Network};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the tenant that a network belongs to when none is named.
pub const DEFAULT_TENANT: &str = "default";

/// The owner of networks and of the programs on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Its name, unique in the cluster.
    pub name: Name,
    /// The most networks that it may have; none: any number.
    #[serde(default)]
    pub max_networks: Option<u32>,
    /// The most endpoints that it may have on one host; none: any number.
    #[serde(default)]
    pub max_endpoints_per_host: Option<u32>,
}

impl Tenant {
    /// The tenant `name`, without limits.
    pub fn new(name: Name) -> Self {
        Self { name, max_networks: None, max_endpoints_per_host: None }
    }

    /// Whether it may have one more network, with all of `networks` there are.
    pub fn may_add_network<'a>(&self, networks: impl IntoIterator<Item = &'a Network>) -> bool {
        let own = networks.into_iter().filter(|network| network.tenant == self.name).count();
        self.max_networks.is_none_or(|most| own < most as usize)
    }
}

impl Validate for Tenant {
    fn validate(&self) -> Result<(), InvalidField> {
        require(self.max_networks != Some(0), "max_networks", "must be at least 1, or left out")?;
        require(self.max_endpoints_per_host != Some(0), "max_endpoints_per_host", "must be at least 1, or left out")
    }
}

/// The tenant of networks of which none is named.
pub fn default_tenant() -> Name {
    Name::try_from(DEFAULT_TENANT.to_owned()).expect("the default is a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_no_more_networks_than_it_may() {
        let tenant = Tenant { max_networks: Some(1), ..Tenant::new("blue".parse().unwrap()) };
        let network =
            |tenant: &str| Network { tenant: tenant.parse().unwrap(), ..Network::around("n".parse().unwrap(), 2, &[]) };
        assert!(tenant.may_add_network(&[network("red")]));
        assert!(!tenant.may_add_network(&[network("red"), network("blue")]));
        assert!(Tenant::new(tenant.name.clone()).may_add_network(&[network("blue")]));
        let none = Tenant { max_networks: Some(0), ..tenant };
        assert_eq!(none.validate().unwrap_err().field(), "max_networks");
    }
}
