//! The cluster: records that its hosts share in a store, and the addresses of their endpoints.
//!
//! * [`Cluster`]: tenants, networks, security groups and policies, as operators set them;
//! * [`Member`]: a host's leases, its blocks of addresses, and its endpoints;
//! * [`NetworkFollower`]: a network's records as they are now.

mod addresses;
mod blocks;
mod endpoints;
mod error;
mod follow;
mod keys;
mod member;
mod pool;
mod records;
mod secret;

pub use error::ClusterError;
pub use follow::{NetworkFollower, NetworkView};
pub use member::{Clock, Member, Renewal, Terms};
pub use records::Cluster;

#[cfg(test)]
mod tests;
