//! Errors of operations on the cluster.

use crate::store::StoreError;
use crate::{InvalidField, Name};
use std::net::IpAddr;

/// Error of an operation on the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record breaks a rule.
    #[error(transparent)]
    Invalid(#[from] InvalidField),
    /// A record cannot be read.
    #[error("`{key}` in the store is unreadable: {why}")]
    Unreadable {
        /// Its key.
        key: String,
        /// The cause.
        why: String,
    },
    /// There is none of that name.
    #[error("there is no {what} `{name}`")]
    Missing {
        /// Kind of record.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// There is one of that name, and it is another one.
    #[error("there is another {what} `{name}` already")]
    Exists {
        /// Kind of record.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Another network has the number.
    #[error("network number {vni} belongs to network `{holder}`")]
    VniTaken {
        /// The number.
        vni: u32,
        /// The holder.
        holder: String,
    },
    /// Its tenant has as many networks as it may.
    #[error("tenant `{0}` has as many networks as it may")]
    TooManyNetworks(Name),
    /// The tenant has networks.
    #[error("tenant `{0}` still has networks")]
    TenantInUse(Name),
    /// The network has endpoints.
    #[error("network `{0}` still has endpoints, on this host or another: `rdmesh endpoint ls` on each lists them")]
    InUse(Name),
    /// Another endpoint has the address, or had it a moment ago.
    #[error("address {address} on network `{network}` belongs to {holder}")]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The network.
        network: Name,
        /// The holder.
        holder: String,
    },
    /// The address is not one of the network's.
    #[error("address {address} is no host address of network `{network}`")]
    NotInNetwork {
        /// The address.
        address: IpAddr,
        /// The network.
        network: Name,
    },
    /// No address can be had.
    #[error("network `{0}` has no free address left for this host")]
    NetworkFull(Name),
    /// The store was away for so long that others may have this host's addresses.
    #[error("this host has been without the store for too long to give away addresses")]
    Lapsed,
    /// The endpoint of that name is on another host.
    #[error("endpoint `{name}` of network `{network}` is on host `{host}`")]
    Elsewhere {
        /// The endpoint.
        name: Name,
        /// Its network.
        network: Name,
        /// Its host.
        host: Name,
    },
    /// Others have been faster each time.
    #[error("too many hosts change `{0}` at once")]
    Contended(String),
}
