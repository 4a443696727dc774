//! The GID table.

use rdmesh_fabric::Endpoint;
use rdmesh_overlay::MacAddress;
use rdmesh_verbs::Gid;
use std::net::IpAddr;

/// Entries of the table.
pub const GID_TABLE_LEN: usize = 16;

/// The table of `endpoint`: 0 the link-local address of its interface, 1 its IPv4 address, 2 its IPv6 address; the rest
/// is empty, and so are 1 and 2 where it has no such address.
pub fn gid_table(endpoint: &Endpoint) -> Vec<Gid> {
    let mut table = vec![Gid::default(); GID_TABLE_LEN];
    if let Some(&first) = endpoint.addresses.first() {
        table[0] = Gid::from_ip(MacAddress::of(first).link_local().into());
    }
    for &address in &endpoint.addresses {
        let index = if address.is_ipv4() { 1 } else { 2 };
        table[index] = Gid::from_ip(address);
    }
    table
}

/// The GUID of the endpoint's device: the EUI-64 of its interface.
pub(super) fn guid(endpoint: &Endpoint) -> [u8; 8] {
    let address = endpoint.addresses.first().copied();
    MacAddress::of(address.unwrap_or(IpAddr::from([0, 0, 0, 0]))).eui64()
}
