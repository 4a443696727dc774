//! Names with the network in which they are unique.

use rdmesh_fabric::{Endpoint, Name};

/// Name of an endpoint, or of a pool, and its network's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::daemon) struct FullName {
    pub(in crate::daemon) network: Name,
    pub(in crate::daemon) name: Name,
}

impl FullName {
    pub(in crate::daemon) fn new(network: Name, name: Name) -> Self {
        Self { network, name }
    }

    /// `endpoint`'s.
    pub(in crate::daemon) fn of(endpoint: &Endpoint) -> Self {
        Self::new(endpoint.network.clone(), endpoint.name.clone())
    }

    /// Another one of the same network.
    pub(in crate::daemon) fn beside(&self, name: Name) -> Self {
        Self::new(self.network.clone(), name)
    }
}
