//! Key-value store of the control plane, with revisions, leases and watches.
//!
//! Every change gets a revision, greater than all before it; the changes of a transaction, and of a lease that ends, share one.
//! A key is changed safely by reading it and then writing it with [`Expect::Revision`] (or [`Expect::Absent`] for a new one):
//! the write fails if another writer was faster. What must change together is one [`Transaction`].

mod embedded;
mod journal;
mod transaction;

pub use embedded::Embedded;
pub use transaction::{Committed, Operation, Transaction};

use std::time::Duration;

/// A store that routers share, or that one keeps for itself.
pub trait Store: Send + Sync {
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

    /// A new lease, which lasts for `ttl` after the last [`Store::keep_alive`].
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

    /// Revision up to which every change has been returned, whence [`Store::watch_from`] continues. Inside the changes of one
    /// revision it is that of the change before them.
    fn revision(&self) -> Revision;

    /// A handle by which another thread ends the waiting of [`Watch::next`]: that returns none, once for each call.
    fn cancel(&self) -> Cancel;
}

/// Ends the waiting of a [`Watch`].
pub type Cancel = Box<dyn Fn() + Send + Sync>;

/// A number that grows with every change of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub u64);

/// Names a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// The revision of the last change of this key.
    pub revision: Revision,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was set.
    Put(Entry),
    /// It was removed, or its lease ended.
    Delete {
        /// The key.
        key: String,
        /// The revision of the removal.
        revision: Revision,
    },
}

/// Condition of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Anything,
    /// The key does not exist.
    Absent,
    /// The key was last changed at this revision.
    Revision(Revision),
}

/// Error of an operation of the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The key is not as expected: another writer was faster.
    #[error("`{0}` was changed by somebody else")]
    Conflict(String),
    /// The lease has ended.
    #[error("the lease has ended")]
    LeaseEnded,
    /// The changes after a revision are not remembered, or it is none of this store's: what there is must be listed anew.
    #[error("the store does not remember its changes since revision {}", .0.0)]
    Forgotten(Revision),
    /// The store cannot be reached.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
}
