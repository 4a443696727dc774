//! Store of one host, which waits for nothing.

use super::{Change, Committed, Entry, Expect, LeaseId, Revision, StoreError, Transaction};
use std::time::Duration;

/// A store that one router keeps for itself.
pub trait LocalStore: Send + Sync {
    /// The value of `key`.
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// All keys that begin with `prefix`, in order.
    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError>;

    /// Makes all changes of `transaction`, if all its conditions hold, else none.
    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError>;

    /// Sets `key`, if it is as `expect` says; with a lease, the key goes when the lease does.
    fn put(&self, key: &str, value: &[u8], expect: Expect, lease: Option<LeaseId>) -> Result<Revision, StoreError> {
        let transaction = Transaction::default().expect(key, expect).put(key, value, lease);
        self.commit(&transaction).map(|committed| committed.revision)
    }

    /// Removes `key`, if it is as `expect` says; whether there was one.
    fn delete(&self, key: &str, expect: Expect) -> Result<bool, StoreError> {
        let transaction = Transaction::default().expect(key, expect).delete(key);
        self.commit(&transaction).map(|committed| committed.deleted != 0)
    }

    /// A new lease, which lasts for `ttl` after the last [`LocalStore::keep_alive`].
    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// Lets the lease last for another time to live.
    fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Ends the lease and removes its keys.
    fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// All keys that begin with `prefix` now, and every change after that, each once and in order.
    fn watch(&self, prefix: &str) -> Result<(Vec<Entry>, Box<dyn Watch>), StoreError>;

    /// Every change after `revision` of keys that begin with `prefix`, each once and in order: the continuation of a watch that
    /// ended at [`Watch::revision`]. [`StoreError::Forgotten`] where the store does not remember that far back.
    fn watch_from(&self, prefix: &str, revision: Revision) -> Result<Box<dyn Watch>, StoreError>;
}

/// The changes of a prefix, as they happen. Dropping it ends the watch.
pub trait Watch: Send {
    /// The next change; none if there is none within `timeout`.
    fn next(&mut self, timeout: Duration) -> Result<Option<Change>, StoreError>;

    /// Revision up to which every change has been returned, whence [`LocalStore::watch_from`] continues. Inside the changes of one
    /// revision it is that of the change before them.
    fn revision(&self) -> Revision;

    /// A handle by which another thread ends the waiting of [`Watch::next`]: that returns none, once for each call.
    fn cancel(&self) -> Cancel;
}

/// Ends the waiting of a [`Watch`].
pub type Cancel = Box<dyn Fn() + Send + Sync>;
