//! Contents of the embedded store.

use super::disk::{Disk, Write};
use super::history::History;
use super::watch::Watches;
use crate::store::{Batch, Change, Committed, Entry, Expect, LeaseId, Operation, Revision, StoreError, Transaction};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::time::Duration;

/// Keys, leases and watches, and the file that has the first two of them.
#[derive(Default)]
pub(super) struct State {
    content: Content,
    leases: BTreeMap<LeaseId, Lease>,
    pub(super) watches: Watches,
    disk: Option<Disk>,
}

/// The part of the store that is kept on disk.
#[derive(Default)]
pub(super) struct Content {
    pub(super) revision: Revision,
    pub(super) last_lease: u64,
    pub(super) keys: BTreeMap<String, Held>,
    pub(super) leases: BTreeMap<LeaseId, Duration>,
}

#[derive(Clone)]
pub(super) struct Held {
    pub(super) value: Vec<u8>,
    pub(super) revision: Revision,
    pub(super) lease: Option<LeaseId>,
}

#[derive(Default)]
struct Lease {
    ends: Duration,
    keys: BTreeSet<String>,
}

impl State {
    /// The contents of a file; leases begin anew.
    pub(super) fn restore(disk: Disk, content: Content, now: Duration) -> Self {
        let lease = |(&id, &ttl): (&LeaseId, &Duration)| (id, Lease { ends: now + ttl, keys: BTreeSet::new() });
        let mut leases: BTreeMap<LeaseId, Lease> = content.leases.iter().map(lease).collect();
        for (key, held) in &content.keys {
            if let Some(lease) = held.lease.and_then(|id| leases.get_mut(&id)) {
                lease.keys.insert(key.clone());
            }
        }
        let watches = Watches::after(content.revision);
        Self { content, leases, watches, disk: Some(disk) }
    }

    pub(super) fn revision(&self) -> Revision {
        self.content.revision
    }

    pub(super) fn has_file(&self) -> bool {
        self.disk.is_some()
    }

    pub(super) fn history(&self) -> &History {
        self.watches.history()
    }

    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        self.content.keys.get(key).map(|held| held.entry(key))
    }

    pub(super) fn list(&self, prefix: &str) -> impl Iterator<Item = Entry> {
        let from_prefix = self.content.keys.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from_prefix.take_while(move |(key, _)| key.starts_with(prefix)).map(|(key, held)| held.entry(key))
    }

    /// The keys as they were at `revision`.
    pub(super) fn list_at(&self, prefix: &str, revision: Revision) -> Result<Vec<Entry>, StoreError> {
        self.history().check(revision, self.revision())?;
        let mut keys = self.list(prefix).map(|entry| (entry.key.clone(), entry)).collect();
        self.history().undo(&mut keys, prefix, revision);
        Ok(keys.into_values().collect())
    }

    pub(super) fn commit(&mut self, transaction: &Transaction) -> Result<Committed, StoreError> {
        for (key, expect) in transaction.conditions() {
            self.check(key, expect)?;
        }
        if !transaction.leases().all(|id| self.leases.contains_key(&id)) {
            return Err(StoreError::LeaseEnded);
        }
        let changes = self.changes(transaction.operations());
        let is_removal = changes.iter().all(|(_, held)| held.is_none());
        // A deletion succeeds in any case: a full disk must not prevent cleanup.
        self.write(&Write { changes: &changes, ..Write::default() })
            .or_else(|e| if is_removal { Ok(()) } else { Err(e) })?;
        Ok(self.apply(changes))
    }

    pub(super) fn grant(&mut self, ttl: Duration, now: Duration) -> Result<LeaseId, StoreError> {
        let id = LeaseId(self.content.last_lease + 1);
        self.write(&Write { granted: Some((id, ttl)), ..Write::default() })?;
        self.content.last_lease = id.0;
        self.content.leases.insert(id, ttl);
        self.leases.insert(id, Lease { ends: now + ttl, keys: BTreeSet::new() });
        Ok(id)
    }

    pub(super) fn keep_alive(&mut self, id: LeaseId, now: Duration) -> Result<(), StoreError> {
        let ttl = self.content.leases.get(&id).ok_or(StoreError::LeaseEnded)?;
        self.leases.get_mut(&id).ok_or(StoreError::LeaseEnded)?.ends = now + *ttl;
        Ok(())
    }

    pub(super) fn end_leases(&mut self, now: Duration) {
        let over: Vec<LeaseId> = self.leases.iter().filter(|(_, l)| l.ends <= now).map(|(&id, _)| id).collect();
        for id in over {
            let _ = self.end_lease(id);
        }
    }

    pub(super) fn end_lease(&mut self, id: LeaseId) -> Result<(), StoreError> {
        let lease = self.leases.remove(&id).ok_or(StoreError::LeaseEnded)?;
        self.content.leases.remove(&id);
        let changes: Vec<_> = lease.keys.into_iter().map(|key| (key, None)).collect();
        // Where that fails the file is written anew with the next change.
        let _ = self.write(&Write { changes: &changes, ended: Some(id), ..Write::default() });
        self.apply(changes);
        Ok(())
    }

    pub(super) fn time_to_next_end(&self, now: Duration) -> Option<Duration> {
        self.leases.values().map(|lease| lease.ends.saturating_sub(now)).min()
    }

    fn check(&self, key: &str, expect: Expect) -> Result<(), StoreError> {
        let now = self.content.keys.get(key).map(|held| held.revision);
        let holds = match expect {
            Expect::Anything => true,
            Expect::Absent => now.is_none(),
            Expect::Revision(revision) => now == Some(revision),
        };
        if holds { Ok(()) } else { Err(StoreError::Conflict(key.to_owned())) }
    }

    /// The new content of each key that changes, all with the next revision.
    fn changes<'a>(&self, operations: impl Iterator<Item = (&'a str, &'a Operation)>) -> Vec<(String, Option<Held>)> {
        let revision = Revision(self.content.revision.0 + 1);
        let change = |(key, operation): (&str, &Operation)| match operation {
            Operation::Put { value, lease } => {
                Some((key.to_owned(), Some(Held { value: value.clone(), revision, lease: *lease })))
            }
            Operation::Delete => self.content.keys.contains_key(key).then(|| (key.to_owned(), None)),
        };
        operations.filter_map(change).collect()
    }

    fn apply(&mut self, changes: Vec<(String, Option<Held>)>) -> Committed {
        if changes.is_empty() {
            return Committed { revision: self.content.revision, deleted: 0 };
        }
        let revision = Revision(self.content.revision.0 + 1);
        let (mut told, mut before, mut deleted) = (Vec::new(), Vec::new(), 0);
        for (key, held) in changes {
            before.push((key.clone(), self.get(&key)));
            self.unlink(&key);
            deleted += usize::from(held.is_none());
            told.push(self.set(key, held, revision));
        }
        self.content.revision = revision;
        self.watches.tell(Batch { revision, changes: told }, before);
        Committed { revision, deleted }
    }

    fn set(&mut self, key: String, held: Option<Held>, revision: Revision) -> Change {
        let Some(held) = held else {
            self.content.keys.remove(&key);
            return Change::Delete { key, revision };
        };
        if let Some(lease) = held.lease.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.insert(key.clone());
        }
        let change = Change::Put(held.entry(&key));
        self.content.keys.insert(key, held);
        change
    }

    /// Takes `key` out of the lease that it belongs to.
    fn unlink(&mut self, key: &str) {
        let lease = self.content.keys.get(key).and_then(|held| held.lease);
        if let Some(lease) = lease.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.remove(key);
        }
    }

    /// Writes changes to the file before they are made.
    fn write(&mut self, write: &Write<'_>) -> Result<(), StoreError> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        let written = disk.write(write, &self.content);
        written.map_err(|error: io::Error| StoreError::Unavailable(format!("its file: {error}")))
    }

    #[cfg(test)]
    pub(super) fn disk(&mut self) -> &mut Disk {
        self.disk.as_mut().expect("the store has a file")
    }
}

impl Held {
    fn entry(&self, key: &str) -> Entry {
        Entry { key: key.to_owned(), value: self.value.clone(), revision: self.revision, lease: self.lease }
    }
}
