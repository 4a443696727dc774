//! The store of a single host: in memory, and in a file from which it is restored.

mod disk;
mod history;
mod legacy;
mod shared;
mod state;
mod watch;

use super::{Committed, Entry, LeaseId, LocalStore, Revision, StoreError, Transaction, Watch};
use disk::Disk;
use state::State;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use watch::EmbeddedWatch;

/// A [`LocalStore`] and [`Store`](super::Store) in memory. Clones are the same store.
///
/// Leases end by the clock: a watch that waits notices it on time, every other call when it is made. They begin anew when a
/// store is opened.
#[derive(Clone)]
pub struct Embedded {
    state: Arc<Mutex<State>>,
    clock: Clock,
}

/// Time since some fixed point.
type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

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

    /// A store in the file `path`; it begins with what is there. The file and its directory are this process's alone.
    pub fn open(path: &Path) -> io::Result<Self> {
        let store = Self::default();
        let (disk, content) = Disk::open(path)?;
        *store.state() = State::restore(disk, content, (store.clock)());
        Ok(store)
    }

    /// The state as it is now: leases that are over have ended.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.end_leases((self.clock)());
        state
    }

    fn time_to_next_end(&self) -> Option<Duration> {
        self.state().time_to_next_end((self.clock)())
    }
}

impl LocalStore for Embedded {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        Ok(self.state().get(key))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        Ok(self.state().list(prefix).collect())
    }

    fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        self.state().commit(transaction)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.state().grant(ttl, (self.clock)())
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.state().keep_alive(lease, (self.clock)())
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.state().end_lease(lease)
    }

    fn watch(&self, prefix: &str) -> Result<(Vec<Entry>, Box<dyn Watch>), StoreError> {
        let mut state = self.state();
        let revision = state.revision();
        let (cancel, news) = state.watches.add(prefix, revision);
        let watch = EmbeddedWatch::new(self.clone(), cancel, news, revision);
        Ok((state.list(prefix).collect(), Box::new(watch)))
    }

    fn watch_from(&self, prefix: &str, revision: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let mut state = self.state();
        state.history().check(revision, state.revision())?;
        let (cancel, news) = state.watches.add(prefix, revision);
        Ok(Box::new(EmbeddedWatch::new(self.clone(), cancel, news, revision)))
    }
}

#[cfg(test)]
mod tests;
