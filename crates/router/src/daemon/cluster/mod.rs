//! This host in a cluster: its endpoints in the store that the hosts share, and theirs here.
//!
//! The router's own registry has what this host needs to know, so that it goes on when the store is away; a thread keeps the two in
//! agreement.

mod agent;
mod allocator;
mod view;

pub(super) use agent::{Agent, Parts};
pub(super) use allocator::Allocator;

use rdmesh_fabric::api::StoreAccess;
use rdmesh_fabric::cluster::Terms;
use rdmesh_fabric::store::Store;
use std::fmt;
use std::sync::Arc;

/// A store that the hosts of a cluster share, and on which terms this host does.
#[derive(Clone)]
pub struct SharedStore {
    store: Arc<dyn Store>,
    terms: Terms,
    access: StoreAccess,
}

impl SharedStore {
    /// The store `store`, which is reached by `access`.
    pub fn new(store: impl Store + 'static, terms: Terms, access: StoreAccess) -> Self {
        Self { store: Arc::new(store), terms, access }
    }

    pub(super) fn access(&self) -> &StoreAccess {
        &self.access
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    fn terms(&self) -> Terms {
        self.terms
    }
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedStore")
    }
}
