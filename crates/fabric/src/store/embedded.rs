//! The store of a single host: in memory, with a journal from which it is restored where its router has died.

mod watch;

use super::journal::Journal;
use super::{Change, Committed, Entry, Expect, LeaseId, Operation, Revision, Store, StoreError, Transaction, Watch};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use watch::{Batch, EmbeddedWatch, Watches};

/// A [`Store`] in memory. Clones are the same store.
///
/// Leases end by the clock: a watch that waits notices it on time, every other call when it is made.
#[derive(Clone)]
pub struct Embedded {
    state: Arc<Mutex<State>>,
    clock: Clock,
}

/// Time since some fixed point.
type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

#[derive(Default)]
struct State {
    revision: Revision,
    keys: BTreeMap<String, Held>,
    leases: BTreeMap<LeaseId, Lease>,
    last_lease: u64,
    watches: Watches,
    journal: Option<Journal>,
}

struct Held {
    value: Vec<u8>,
    revision: Revision,
    lease: Option<LeaseId>,
}

struct Lease {
    ttl: Duration,
    ends: Duration,
    keys: BTreeSet<String>,
}

impl Default for Embedded {
    fn default() -> Self {
        let start = Instant::now();
        Self::with_clock(move || start.elapsed())
    }
}

impl Embedded {
    /// An empty store that takes the time from `clock`.
    pub fn with_clock(clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { state: Arc::default(), clock: Arc::new(clock) }
    }

    /// A store with a journal in the file `path`, which has all keys without a lease; it begins with the journal's content. The
    /// file and its directory are this process's alone.
    pub fn open(path: &Path) -> io::Result<Self> {
        let store = Self::default();
        let (journal, keys) = Journal::open(path)?;
        let mut state = store.state();
        for (key, value) in keys {
            state.apply([(key.as_str(), &Operation::Put { value, lease: None })]);
        }
        state.journal = Some(journal);
        state.tidy_journal()?;
        drop(state);
        Ok(store)
    }

    /// The state as it is now: leases that are over have ended.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.end_leases((self.clock)());
        state
    }
}

impl Store for Embedded {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        Ok(self.state().keys.get(key).map(|held| held.entry(key)))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        Ok(self.state().list(prefix))
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        let mut state = self.state();
        for (key, expect) in transaction.conditions() {
            state.check(key, expect)?;
        }
        if !transaction.leases().all(|id| state.leases.contains_key(&id)) {
            return Err(StoreError::LeaseEnded);
        }
        state.note(transaction)?;
        Ok(state.apply(transaction.operations()))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let mut state = self.state();
        state.last_lease += 1;
        let id = LeaseId(state.last_lease);
        state.leases.insert(id, Lease { ttl, ends: (self.clock)() + ttl, keys: BTreeSet::new() });
        Ok(id)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        let mut state = self.state();
        let lease = state.leases.get_mut(&lease).ok_or(StoreError::LeaseEnded)?;
        lease.ends = (self.clock)() + lease.ttl;
        Ok(())
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.state().end_lease(lease)
    }

    fn watch(&self, prefix: &str) -> Result<(Vec<Entry>, Box<dyn Watch>), StoreError> {
        let mut state = self.state();
        let revision = state.revision;
        let watch = EmbeddedWatch::new(self.clone(), state.watches.add(prefix, revision)?, revision);
        Ok((state.list(prefix), Box::new(watch)))
    }

    fn watch_from(&self, prefix: &str, revision: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let mut state = self.state();
        if revision > state.revision {
            return Err(StoreError::Forgotten(revision));
        }
        Ok(Box::new(EmbeddedWatch::new(self.clone(), state.watches.add(prefix, revision)?, revision)))
    }
}

impl State {
    fn check(&self, key: &str, expect: Expect) -> Result<(), StoreError> {
        let now = self.keys.get(key).map(|held| held.revision);
        let holds = match expect {
            Expect::Anything => true,
            Expect::Absent => now.is_none(),
            Expect::Revision(revision) => now == Some(revision),
        };
        if holds { Ok(()) } else { Err(StoreError::Conflict(key.to_owned())) }
    }

    fn list(&self, prefix: &str) -> Vec<Entry> {
        let from_prefix = self.keys.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from_prefix.take_while(|(key, _)| key.starts_with(prefix)).map(|(key, held)| held.entry(key)).collect()
    }

    /// Makes changes, all with one revision.
    fn apply<'a>(&mut self, operations: impl IntoIterator<Item = (&'a str, &'a Operation)>) -> Committed {
        let revision = Revision(self.revision.0 + 1);
        let (mut changes, mut deleted) = (Vec::new(), 0);
        for (key, operation) in operations {
            self.unlink(key);
            match operation {
                Operation::Put { value, lease } => changes.push(self.set(key, value, *lease, revision)),
                Operation::Delete if self.keys.remove(key).is_some() => {
                    deleted += 1;
                    changes.push(Change::Delete { key: key.to_owned(), revision });
                }
                Operation::Delete => {}
            }
        }
        if !changes.is_empty() {
            self.revision = revision;
            self.watches.tell(Batch { revision, changes });
        }
        Committed { revision: self.revision, deleted }
    }

    fn set(&mut self, key: &str, value: &[u8], lease: Option<LeaseId>, revision: Revision) -> Change {
        let held = Held { value: value.to_vec(), revision, lease };
        let change = Change::Put(held.entry(key));
        self.keys.insert(key.to_owned(), held);
        if let Some(lease) = lease.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.insert(key.to_owned());
        }
        change
    }

    /// Records changes in the journal before they are made.
    fn note(&mut self, transaction: &Transaction) -> Result<(), StoreError> {
        let tidied = self.tidy_journal();
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let lasting = |key: &str| self.keys.get(key).is_some_and(|held| held.lease.is_none());
        let changes: Vec<(&str, Option<&[u8]>)> = transaction
            .operations()
            .filter_map(|(key, operation)| match operation {
                Operation::Put { value, lease: None } => Some((key, Some(value.as_slice()))),
                Operation::Put { .. } | Operation::Delete => lasting(key).then_some((key, None)),
            })
            .collect();
        match tidied.and_then(|()| journal.note(&changes)) {
            // A deletion succeeds in any case: a full disk must not prevent cleanup.
            Err(_) if transaction.operations().all(|(_, operation)| *operation == Operation::Delete) => {
                journal.has_missed();
                Ok(())
            }
            noted => noted.map_err(|error| StoreError::Unavailable(format!("its journal: {error}"))),
        }
    }

    /// Writes the journal anew where that is due.
    fn tidy_journal(&mut self) -> io::Result<()> {
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.is_due(self.keys.len())) else {
            return Ok(());
        };
        let lasting = self.keys.iter().filter(|(_, held)| held.lease.is_none());
        journal.rewrite(lasting.map(|(key, held)| (key.as_str(), held.value.as_slice())))
    }

    /// Takes `key` out of the lease that it belongs to.
    fn unlink(&mut self, key: &str) {
        let lease = self.keys.get(key).and_then(|held| held.lease);
        if let Some(lease) = lease.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.remove(key);
        }
    }

    fn end_leases(&mut self, now: Duration) {
        let over: Vec<LeaseId> = self.leases.iter().filter(|(_, l)| l.ends <= now).map(|(&id, _)| id).collect();
        for id in over {
            let _ = self.end_lease(id);
        }
    }

    fn end_lease(&mut self, id: LeaseId) -> Result<(), StoreError> {
        let lease = self.leases.remove(&id).ok_or(StoreError::LeaseEnded)?;
        self.apply(lease.keys.iter().map(|key| (key.as_str(), &Operation::Delete)));
        Ok(())
    }

    fn time_to_next_end(&self, now: Duration) -> Option<Duration> {
        self.leases.values().map(|lease| lease.ends.saturating_sub(now)).min()
    }
}

impl Held {
    fn entry(&self, key: &str) -> Entry {
        Entry { key: key.to_owned(), value: self.value.clone(), revision: self.revision }
    }
}

#[cfg(test)]
mod tests;
