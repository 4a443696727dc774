//! Key-value store of the control plane, with revisions, leases and watches.
//!
//! Every change gets a revision, greater than all before it; the changes of a transaction, and of a lease that ends, share one.
//! A key is changed safely by reading it and then writing it with [`Expect::Revision`] (or [`Expect::Absent`] for a new one):
//! the write fails if another writer was faster. What must change together is one [`Transaction`].
//!
//! [`Store`] is what the hosts of a cluster share: every operation may wait for a network, and fail with it. [`LocalStore`] is what
//! one host has for itself; nothing in it waits. [`Embedded`] is both.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod embedded;
mod local;
mod settle;
mod transaction;

pub use embedded::Embedded;
pub use local::{Cancel, LocalStore, Watch};
pub use settle::settle;
pub use transaction::{Committed, Operation, Transaction};

use async_trait::async_trait;
use std::time::Duration;

/// A store that routers share.
///
/// An operation that fails with [`StoreError::Unavailable`] has not been done. One that fails with
/// [`StoreError::OutcomeUnknown`] may have been, or may yet be: see [`settle()`].
#[async_trait]
pub trait Store: Send + Sync {
    /// All keys that begin with `prefix`, in order, as they are now, or as they were at a revision:
    /// [`StoreError::Forgotten`] where the store does not remember that far back.
    async fn list(&self, prefix: &str, at: Option<Revision>) -> Result<Listing, StoreError>;

    /// The value of `key`.
    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// Makes all changes of `transaction`, if all its conditions hold, else none. A store may limit the changes of one
    /// transaction; [`MAX_OPERATIONS`] are possible in each.
    async fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError>;

    /// A new lease, which lasts for `ttl` after the last [`Store::keep_alive`]. A store may make it longer.
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// Lets the lease last for another time to live.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Ends the lease and removes its keys.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Every change after `after` of keys that begin with `prefix`, each once and in order.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Changes>, StoreError>;

    /// Forgets how keys were before `revision`.
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;
}

/// Changes of a prefix, as they happen. Dropping it ends the watch.
#[async_trait]
pub trait Changes: Send {
    /// The changes of the next revision that has any. [`StoreError::Forgotten`] where they are remembered no more: what there is
    /// must be listed anew. After any error the watch is of no more use, and another one may continue at [`Changes::revision`].
    /// A future that is dropped has taken no change.
    async fn next(&mut self) -> Result<Batch, StoreError>;

    /// Revision up to which every change has been returned.
    fn revision(&self) -> Revision;
}

/// Number of operations that every store takes in one [`Transaction`], and of conditions.
pub const MAX_OPERATIONS: usize = 100;

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
    /// The lease with which it goes.
    pub lease: Option<LeaseId>,
}

/// Keys at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The keys, in order.
    pub entries: Vec<Entry>,
    /// Revision of the store when they were so.
    pub revision: Revision,
}

/// Changes of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The revision.
    pub revision: Revision,
    /// The changes, at least one.
    pub changes: Vec<Change>,
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

impl Change {
    /// The key.
    pub fn key(&self) -> &str {
        let (Self::Put(Entry { key, .. }) | Self::Delete { key, .. }) = self;
        key
    }

    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        let (Self::Put(Entry { revision, .. }) | Self::Delete { revision, .. }) = self;
        *revision
    }
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
    /// The store cannot be reached, and nothing has been changed.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// The connection was lost before the answer came.
    #[error("the store has not said whether the change was made: {0}")]
    OutcomeUnknown(String),
    /// The store does not let this user in.
    #[error("the store refuses: {0}")]
    Refused(String),
}

impl StoreError {
    /// Whether the store has not answered, so that other questions would wait in vain as well.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::OutcomeUnknown(_))
    }
}
