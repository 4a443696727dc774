//! The store of a single host: in memory, with a journal from which it is restored where its router has died.

use super::journal::Journal;
use super::{Cancel, Change, Entry, Expect, LeaseId, Revision, Store, StoreError, Watch};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A [`Store`] in memory. Clones are the same store.
///
/// Leases end by the clock: a watch that waits notices it on time, every other call when it is made.
#[derive(Clone)]
pub struct Embedded {
    state: Arc<Mutex<State>>,
    clock: Clock,
}

/// Message to a watch: a change, or none when its waiting is to end.
type News = Option<Change>;

/// Time since some fixed point.
type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

#[derive(Default)]
struct State {
    revision: u64,
    keys: BTreeMap<String, Held>,
    leases: BTreeMap<LeaseId, Lease>,
    last_lease: u64,
    watchers: Vec<(String, Sender<News>)>,
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
            state.put(&key, &value, None);
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

    fn put(&self, key: &str, value: &[u8], expect: Expect, lease: Option<LeaseId>) -> Result<Revision, StoreError> {
        let mut state = self.state();
        state.check(key, expect)?;
        if lease.is_some_and(|id| !state.leases.contains_key(&id)) {
            return Err(StoreError::LeaseEnded);
        }
        state.note(key, lease.is_none().then_some(value))?;
        Ok(state.put(key, value, lease))
    }

    fn delete(&self, key: &str, expect: Expect) -> Result<bool, StoreError> {
        let mut state = self.state();
        state.check(key, expect)?;
        if state.note(key, None).is_err()
            && let Some(journal) = &mut state.journal
        {
            // A deletion succeeds in any case: a full disk must not prevent cleanup.
            journal.has_missed();
        }
        Ok(state.delete(key))
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
        let (sender, changes) = channel();
        state.watchers.push((prefix.to_owned(), sender.clone()));
        Ok((state.list(prefix), Box::new(EmbeddedWatch { store: self.clone(), cancel: sender, changes })))
    }
}

struct EmbeddedWatch {
    store: Embedded,
    cancel: Sender<News>,
    changes: Receiver<News>,
}

impl Watch for EmbeddedWatch {
    fn next(&mut self, timeout: Duration) -> Result<Option<Change>, StoreError> {
        let deadline = Instant::now() + timeout;
        loop {
            let lease = self.store.state().time_to_next_end((self.store.clock)());
            let left = deadline.saturating_duration_since(Instant::now());
            match self.changes.recv_timeout(lease.map_or(left, |lease| lease.min(left))) {
                Ok(news) => return Ok(news),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                    return Ok(self.changes.try_recv().ok().flatten());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(StoreError::Unavailable("it was dropped".into())),
            }
        }
    }

    fn cancel(&self) -> Cancel {
        let sender = self.cancel.clone();
        // It fails only after the watch was dropped.
        Box::new(move || drop(sender.send(None)))
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

    fn put(&mut self, key: &str, value: &[u8], lease: Option<LeaseId>) -> Revision {
        self.unlink(key);
        let revision = self.next_revision();
        let held = Held { value: value.to_vec(), revision, lease };
        let change = Change::Put(held.entry(key));
        self.keys.insert(key.to_owned(), held);
        if let Some(lease) = lease.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.insert(key.to_owned());
        }
        self.tell(key, &change);
        revision
    }

    fn delete(&mut self, key: &str) -> bool {
        self.unlink(key);
        if self.keys.remove(key).is_none() {
            return false;
        }
        let change = Change::Delete { key: key.to_owned(), revision: self.next_revision() };
        self.tell(key, &change);
        true
    }

    /// Records a change in the journal before it is made.
    fn note(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        let failed = |error: io::Error| StoreError::Unavailable(format!("its journal: {error}"));
        self.tidy_journal().map_err(failed)?;
        let is_known = self.keys.get(key).is_some_and(|held| held.lease.is_none());
        match &mut self.journal {
            Some(journal) if is_known || value.is_some() => journal.note(key, value).map_err(failed),
            _ => Ok(()),
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

    fn next_revision(&mut self) -> Revision {
        self.revision += 1;
        Revision(self.revision)
    }

    /// Sends a change to the watches of the key; removes watches that were dropped.
    fn tell(&mut self, key: &str, change: &Change) {
        self.watchers
            .retain(|(prefix, sender)| !key.starts_with(prefix.as_str()) || sender.send(Some(change.clone())).is_ok());
    }

    fn end_leases(&mut self, now: Duration) {
        let over: Vec<LeaseId> = self.leases.iter().filter(|(_, l)| l.ends <= now).map(|(&id, _)| id).collect();
        for id in over {
            let _ = self.end_lease(id);
        }
    }

    fn end_lease(&mut self, id: LeaseId) -> Result<(), StoreError> {
        let lease = self.leases.remove(&id).ok_or(StoreError::LeaseEnded)?;
        for key in &lease.keys {
            self.delete(key);
        }
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
