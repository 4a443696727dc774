//! The cluster: records that its hosts share in a store, and the addresses of their endpoints.
//!
//! * [`Cluster`]: tenants, networks, security groups and policies, as operators set them;
//! * [`Member`]: a host's leases, its blocks of addresses, and its endpoints;
//! * [`Terms`]: how long its leases last, and how long addresses rest;
//! * [`Follower`]: the records of a network, or those of the whole cluster, as they are now;
//! * [`Absences`]: hosts without a session, whose endpoints stay known for the tenure.

mod absence;
mod addresses;
mod blocks;
mod endpoints;
mod error;
mod follow;
mod keys;
mod member;
mod pool;
mod records;
mod terms;

pub use absence::Absences;
pub use error::ClusterError;
pub use follow::{CommonView, Follower, NetworkView, View};
pub use member::{Announced, Clock, Member, Renewal};
pub use records::Cluster;
pub use terms::{Terms, TermsError};

#[cfg(test)]
mod tests;
