//! The embedded store as the one of a cluster.

use super::Embedded;
use super::watch::Follower;
use crate::store::{Changes, Committed, Entry, LeaseId, Listing, LocalStore, Revision, Store, StoreError, Transaction};
use async_trait::async_trait;
use std::time::Duration;
use tokio::task::spawn_blocking;

#[async_trait]
impl Store for Embedded {
    async fn list(&self, prefix: &str, at: Option<Revision>) -> Result<Listing, StoreError> {
        let state = self.state();
        let revision = state.revision();
        let entries = at.map_or_else(|| Ok(state.list(prefix).collect()), |at| state.list_at(prefix, at))?;
        Ok(Listing { entries, revision: at.unwrap_or(revision) })
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        LocalStore::get(self, key)
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        let transaction = transaction.clone();
        self.on_disk(move |store| LocalStore::commit(&store, &transaction)).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.on_disk(move |store| LocalStore::grant(&store, ttl)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        LocalStore::keep_alive(self, lease)
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.on_disk(move |store| LocalStore::revoke(&store, lease)).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Changes>, StoreError> {
        let state = self.state();
        state.history().check(after, state.revision())?;
        let changed = state.watches.follow();
        Ok(Box::new(Follower::new(self.clone(), prefix, after, changed)))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let mut state = self.state();
        state.history().check(revision, state.revision())?;
        state.watches.compact(revision);
        Ok(())
    }
}

impl Embedded {
    /// Does what may wait for the disk on a thread where others do not wait for it.
    async fn on_disk<T: Send + 'static>(
        &self,
        operation: impl FnOnce(Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        if !self.state().has_file() {
            return operation(store);
        }
        let done = spawn_blocking(move || operation(store)).await;
        done.unwrap_or_else(|error| Err(StoreError::OutcomeUnknown(error.to_string())))
    }
}
