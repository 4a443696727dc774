//! Changes of several keys, made all or none.

use super::{Expect, LeaseId, Revision};
use std::collections::BTreeMap;

/// Conditions on keys, and changes that are made if all of them hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    conditions: Vec<(String, Expect)>,
    operations: BTreeMap<String, Operation>,
}

/// Change of a key in a [`Transaction`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The key is set.
    Put {
        /// The new value.
        value: Vec<u8>,
        /// With a lease, the key goes when the lease does.
        lease: Option<LeaseId>,
    },
    /// The key is removed, if it exists.
    Delete,
}

/// Result of a [`Transaction`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// The revision of the changes; that of the store where nothing changed.
    pub revision: Revision,
    /// Number of keys removed.
    pub deleted: usize,
}

impl Transaction {
    /// Requires that `key` is as `expect` says before the changes.
    pub fn expect(mut self, key: &str, expect: Expect) -> Self {
        self.conditions.push((key.to_owned(), expect));
        self
    }

    /// Sets `key`. Of two changes of a key the later one counts.
    pub fn put(mut self, key: &str, value: &[u8], lease: Option<LeaseId>) -> Self {
        self.operations.insert(key.to_owned(), Operation::Put { value: value.to_vec(), lease });
        self
    }

    /// Removes `key`. Of two changes of a key the later one counts.
    pub fn delete(mut self, key: &str) -> Self {
        self.operations.insert(key.to_owned(), Operation::Delete);
        self
    }

    /// Keys with their conditions.
    pub fn conditions(&self) -> impl Iterator<Item = (&str, Expect)> {
        self.conditions.iter().map(|(key, expect)| (key.as_str(), *expect))
    }

    /// Changes by key, in order of the keys.
    pub fn operations(&self) -> impl Iterator<Item = (&str, &Operation)> {
        self.operations.iter().map(|(key, operation)| (key.as_str(), operation))
    }

    /// Leases that keys are put with.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.operations.values().filter_map(|operation| match operation {
            Operation::Put { lease, .. } => *lease,
            Operation::Delete => None,
        })
    }
}
