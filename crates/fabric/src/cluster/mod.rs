//! The cluster: records that its hosts share in a store, and the addresses of their endpoints.
//!
//! * [`Cluster`]: tenants, networks, security groups and policies, as operators set them;
//! * [`Member`]: a host's leases, its blocks of addresses, and its endpoints;
//! * [`Follower`]: the records of a network, or those of the whole cluster, as they are now.

mod addresses;
mod blocks;
mod endpoints;
mod error;
mod follow;
mod keys;
mod member;
mod pool;
mod records;

pub use error::ClusterError;
pub use follow::{CommonView, Follower, NetworkView, View};
pub use member::{Clock, Member, Renewal, Terms};
pub use records::Cluster;

#[cfg(test)]
mod tests;
