//! Endpoints: name, network, addresses and limits.

use crate::invalid::{InvalidField, Validate, require_one_of_each_family, require_unicast};
use crate::{InterfaceName, Name, Quota};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A place where programs have a device: a name on a network, with addresses and limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint {
    /// Its name, unique on its network.
    pub name: Name,
    /// The network it is on.
    pub network: Name,
    /// The host that it is on.
    pub host: Name,
    /// Its addresses, at least one, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// Limits on the objects of its programs.
    pub quota: Quota,
    /// The only user that may open its device; none: any user that can reach its socket.
    pub allowed_uid: Option<u32>,
    /// The process with which it goes; none: it stays until it is removed.
    pub owner_pid: Option<i32>,
    /// The network namespace of its programs' sockets.
    pub isolation: Isolation,
    /// The interface with its addresses in that namespace, where the router makes it.
    #[serde(default)]
    pub interface: InterfaceName,
}

impl Endpoint {
    /// The name of its directory, `<network>.<name>`; names hold no dots.
    pub fn directory_name(&self) -> String {
        format!("{}.{}", self.network, self.name)
    }
}

impl Validate for Endpoint {
    fn validate(&self) -> Result<(), InvalidField> {
        require_one_of_each_family("addresses", &self.addresses)?;
        self.addresses.iter().try_for_each(|address| require_unicast("addresses", *address))?;
        self.quota.validate().map_err(|error| error.within("quota"))
    }
}

/// Isolation of an endpoint's programs from the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// They have a network namespace with the endpoint's address, made by the router.
    #[default]
    Namespace,
    /// They have a network namespace with the endpoint's address that the router was given.
    Given,
    /// The router makes no namespace: they keep the one they have (the host's, or a container's own).
    None,
}

impl Isolation {
    /// Whether the router adds an interface with the endpoint's address to their network namespace.
    pub fn has_interface(self) -> bool {
        self != Self::None
    }
}
