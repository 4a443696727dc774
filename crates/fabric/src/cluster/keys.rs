//! Keys of the cluster's records.
//!
//! * `net/<network>/`: what a router with endpoints on the network watches: `network`, and below `hosts/`, `endpoints/`, `groups/`
//!   and `policies/` what belongs to it;
//! * `alloc/<network>/blocks/<first address>`, `alloc/<network>/addresses/<address>`: who may give away, and who has, which
//!   addresses; read by hosts that need one;
//! * `common/`: what every router watches: `tenants/<name>`, and below `policies/` those of hosts and tenants;
//! * `vnis/<vni>`, `hosts/<name>`.

use crate::{Name, PolicyScope};
use std::net::IpAddr;

pub(super) fn network_prefix(network: &Name) -> String {
    format!("net/{network}/")
}

pub(super) fn network(name: &Name) -> String {
    format!("net/{name}/{NETWORK}")
}

pub(super) fn host_on_network(network: &Name, host: &Name) -> String {
    format!("net/{network}/{HOSTS}{host}")
}

pub(super) fn endpoint(network: &Name, name: &Name) -> String {
    format!("net/{network}/{ENDPOINTS}{name}")
}

pub(super) fn endpoint_prefix(network: &Name) -> String {
    format!("net/{network}/{ENDPOINTS}")
}

pub(super) fn group(network: &Name, name: &Name) -> String {
    format!("net/{network}/{GROUPS}{name}")
}

pub(super) fn group_prefix(network: &Name) -> String {
    format!("net/{network}/{GROUPS}")
}

pub(super) fn policy_prefix(network: &Name) -> String {
    format!("net/{network}/{POLICIES}")
}

pub(super) fn common_policy_prefix() -> String {
    format!("{COMMON}{POLICIES}")
}

pub(super) fn tenant_prefix() -> String {
    format!("{COMMON}{TENANTS}")
}

pub(super) fn policy(scope: &PolicyScope) -> String {
    match scope {
        PolicyScope::Endpoint { network, name } => format!("net/{network}/{POLICIES}{name}"),
        PolicyScope::Host(_) | PolicyScope::Tenant(_) => format!("{COMMON}{POLICIES}{scope}"),
    }
}

pub(super) fn blocks(network: &Name) -> String {
    format!("alloc/{network}/blocks/")
}

pub(super) fn block(network: &Name, first: IpAddr) -> String {
    format!("alloc/{network}/blocks/{first}")
}

pub(super) fn addresses(network: &Name) -> String {
    format!("alloc/{network}/addresses/")
}

pub(super) fn address(network: &Name, address: IpAddr) -> String {
    format!("alloc/{network}/addresses/{address}")
}

pub(super) fn vni(vni: u32) -> String {
    format!("{VNIS}{vni}")
}

pub(super) fn tenant(name: &Name) -> String {
    format!("{COMMON}{TENANTS}{name}")
}

pub(super) fn host(name: &Name) -> String {
    format!("hosts/{name}")
}

/// The part of a network's key after its prefix, for the network itself.
pub(super) const NETWORK: &str = "network";
pub(super) const HOSTS: &str = "hosts/";
pub(super) const ENDPOINTS: &str = "endpoints/";
pub(super) const GROUPS: &str = "groups/";
pub(super) const POLICIES: &str = "policies/";
pub(super) const TENANTS: &str = "tenants/";
pub(super) const COMMON: &str = "common/";
pub(super) const VNIS: &str = "vnis/";
