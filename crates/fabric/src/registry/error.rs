//! Errors of the registry.

use crate::network::MAX_VNI;
use crate::store::StoreError;
use crate::{InvalidField, InvalidName, InvalidScope, Name};
use std::net::IpAddr;

/// Error of an operation of the registry.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The name is taken.
    #[error(
        "there is already an endpoint `{name}` on network `{network}`: choose another --name, or remove it with `rdmesh endpoint rm {name} --net {network}`"
    )]
    EndpointExists {
        /// Name of the endpoint.
        name: Name,
        /// Name of its network.
        network: Name,
    },
    /// There is none.
    #[error("there is no endpoint `{name}` on network `{network}`: `rdmesh endpoint ls` lists those there are")]
    NoSuchEndpoint {
        /// Name asked for.
        name: Name,
        /// Network asked for.
        network: Name,
    },
    /// Another endpoint has the address.
    #[error(
        "address {address} on network `{network}` belongs to endpoint {holder}: choose another --ip, or none to get a free one"
    )]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The network.
        network: Name,
        /// The holder: a name in quotes, and the host if it is another one.
        holder: String,
    },
    /// The address is not in the network's ranges.
    #[error("address {address} is not a host address of network `{network}`, which has {ranges}")]
    NotInNetwork {
        /// The address.
        address: IpAddr,
        /// The network.
        network: Name,
        /// Its ranges.
        ranges: String,
    },
    /// A field of a record breaks its rule.
    #[error(transparent)]
    Invalid(#[from] InvalidField),
    /// A key of the store is not a scope.
    #[error(transparent)]
    Scope(#[from] InvalidScope),
    /// Two addresses of one family.
    #[error("an endpoint has at most one IPv4 and one IPv6 address")]
    TooManyAddresses,
    /// No free address is left.
    #[error("network `{0}` has no free address left: remove endpoints, or use another network")]
    NetworkFull(Name),
    /// The name is taken.
    #[error("there is already a network `{0}`: names of networks are unique, whatever their tenant")]
    NetworkExists(Name),
    /// There is none.
    #[error("there is no network `{0}`: `rdmesh network ls` lists those there are, `rdmesh network add {0}` makes it")]
    NoSuchNetwork(Name),
    /// Endpoints are on the network, or pools of them.
    #[error(
        "network `{network}` still has {what}: `rdmesh endpoint rm`, `rdmesh pool rm` and `rdmesh peer rm` remove endpoints, and \
         `rdmesh network detach` gives interfaces back"
    )]
    NetworkInUse {
        /// Name of the network, which stays.
        network: Name,
        /// The first of what is there, as in "endpoint `a` of host `b`".
        what: String,
    },
    /// There is none.
    #[error("there is no tenant `{0}`: `rdmesh tenant add {0}` makes it")]
    NoSuchTenant(Name),
    /// The tenant has as many as it may.
    #[error("tenant `{0}` has as many networks as it may: `rdmesh tenant ls` shows its limits")]
    TooManyNetworks(Name),
    /// The tenant has networks.
    #[error("tenant `{0}` still has networks")]
    TenantInUse(Name),
    /// The tenant has as many as it may.
    #[error("tenant `{0}` has as many endpoints on this host as it may: `rdmesh tenant ls` shows its limits")]
    TooManyEndpoints(Name),
    /// All 2^24 numbers are in use.
    #[error("no virtual network number is left")]
    NoVniLeft,
    /// The network has another number.
    #[error(
        "network `{network}` has number {has}, not {asked}: on all hosts a network must have the same number; say `--vni {has}` there, or restart this router and say `--vni {asked}` when the network is first named"
    )]
    VniDiffers {
        /// The network.
        network: Name,
        /// Its number.
        has: u32,
        /// The number asked for.
        asked: u32,
    },
    /// Another network has the number.
    #[error("network number {vni} belongs to network `{holder}`: choose another --vni, the same on all hosts")]
    VniTaken {
        /// The number.
        vni: u32,
        /// The holder.
        holder: String,
    },
    /// Not a number of 24 bits.
    #[error("{0} is not a network number: use 1 to {MAX_VNI}")]
    InvalidVni(u32),
    /// The number of a network that reaches other hosts is not known.
    #[error(
        "network `{0}` is not known here yet: say the number that it has on the other host with --vni (`rdmesh network ls` there shows it)"
    )]
    VniUnknown(Name),
    /// There is no such host.
    #[error("there is no peer `{0}`: `rdmesh peer ls` lists those there are, `rdmesh peer add {0} ADDRESS` adds it")]
    NoSuchHost(Name),
    /// Another host has the address.
    #[error("{address} is the address of host `{holder}`")]
    HostAddressTaken {
        /// The address.
        address: IpAddr,
        /// The holder.
        holder: Name,
    },
    /// No endpoint of the host has the address.
    #[error("peer `{host}` has no endpoint {address} on network `{network}`: `rdmesh peer ls` lists those it has")]
    NoSuchAddress {
        /// The host.
        host: Name,
        /// The network.
        network: Name,
        /// The address asked for.
        address: IpAddr,
    },
    /// An endpoint without an address.
    #[error("an endpoint of another host needs its address")]
    NoAddress,
    /// A name in the store is not valid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The store failed, or holds something unreadable.
    #[error(transparent)]
    Store(#[from] StoreError),
}
