//! Endpoints: name, network, addresses and limits.

use crate::invalid::{InvalidField, Validate, require_one_of_each_family, require_unicast};
use crate::{InterfaceName, Labels, Name, PoolMember, Quota};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};

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
    /// The pool that it is of; its programs share that pool's network namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolMember>,
    /// Labels, which its owner has given it.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

impl Endpoint {
    /// The name of its directory, `<network>.<name>`; names hold no dots.
    pub fn directory_name(&self) -> String {
        format!("{}.{}", self.network, self.name)
    }

    /// The name of its network namespace: that of its directory, or one that all of its pool have.
    pub fn namespace_name(&self) -> String {
        match &self.pool {
            Some(pool) => PoolMember::directory_name(&self.network, &pool.name),
            None => self.directory_name(),
        }
    }

    /// The address from which the link-layer address of its interface follows.
    pub fn link(&self) -> IpAddr {
        let own = || self.addresses.first().copied();
        self.pool.as_ref().map(|pool| pool.link).or_else(own).unwrap_or(Ipv4Addr::UNSPECIFIED.into())
    }
}

impl Validate for Endpoint {
    fn validate(&self) -> Result<(), InvalidField> {
        require_one_of_each_family("addresses", &self.addresses)?;
        self.addresses.iter().try_for_each(|address| require_unicast("addresses", *address))
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
    /// They share a network namespace, made by the router, with the other endpoints of their pool.
    Pool,
    /// The router makes no namespace: they keep the one they have (the host's, or a container's own).
    None,
}

impl Isolation {
    /// Whether the router adds an interface with the endpoint's address to their network namespace.
    pub fn has_interface(self) -> bool {
        self != Self::None
    }
}
