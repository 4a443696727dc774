//! Watches of the embedded store, and the changes that it remembers for those that continue.

use super::Embedded;
use crate::store::{Cancel, Change, Entry, Revision, StoreError, Watch};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Changes of one revision.
#[derive(Clone)]
pub(super) struct Batch {
    pub(super) revision: Revision,
    pub(super) changes: Vec<Change>,
}

/// Message to a watch: changes, or none when its waiting is to end.
type News = Option<Batch>;

/// The watches of a store, and its last changes.
#[derive(Default)]
pub(super) struct Watches {
    watches: Vec<(String, Sender<News>)>,
    history: VecDeque<Batch>,
    /// Changes in the history.
    remembered: usize,
    /// The last revision that is not in the history any more.
    forgotten: Revision,
}

impl Watches {
    /// A new watch of `prefix`, which begins with what it missed after `revision`.
    pub(super) fn add(
        &mut self,
        prefix: &str,
        revision: Revision,
    ) -> Result<(Sender<News>, Receiver<News>), StoreError> {
        if revision < self.forgotten {
            return Err(StoreError::Forgotten(revision));
        }
        let (sender, receiver) = channel();
        let missed = self.history.iter().filter(|batch| batch.revision > revision);
        // The receiver is there.
        missed.filter_map(|batch| batch.of(prefix)).for_each(|batch| drop(sender.send(Some(batch))));
        self.watches.push((prefix.to_owned(), sender.clone()));
        Ok((sender, receiver))
    }

    /// Sends changes to the watches of their keys; removes watches that were dropped.
    pub(super) fn tell(&mut self, batch: Batch) {
        self.watches.retain(|(prefix, sender)| batch.of(prefix).is_none_or(|batch| sender.send(Some(batch)).is_ok()));
        self.remembered += batch.changes.len();
        self.history.push_back(batch);
        while self.remembered > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.remembered -= oldest.changes.len();
            self.forgotten = oldest.revision;
        }
    }
}

impl Batch {
    /// The changes of keys that begin with `prefix`; none where there are none.
    fn of(&self, prefix: &str) -> Option<Self> {
        let is_meant = |change: &&Change| match change {
            Change::Put(Entry { key, .. }) | Change::Delete { key, .. } => key.starts_with(prefix),
        };
        let changes: Vec<_> = self.changes.iter().filter(is_meant).cloned().collect();
        (!changes.is_empty()).then_some(Self { revision: self.revision, changes })
    }
}

/// A [`Watch`] of the embedded store.
pub(super) struct EmbeddedWatch {
    store: Embedded,
    cancel: Sender<News>,
    news: Receiver<News>,
    /// Changes that have come and were not returned yet, and their revision.
    arrived: VecDeque<Change>,
    arriving: Revision,
    /// See [`Watch::revision`].
    revision: Revision,
}

impl EmbeddedWatch {
    pub(super) fn new(store: Embedded, (cancel, news): (Sender<News>, Receiver<News>), revision: Revision) -> Self {
        Self { store, cancel, news, arrived: VecDeque::new(), arriving: revision, revision }
    }

    fn take(&mut self) -> Option<Change> {
        let change = self.arrived.pop_front();
        if self.arrived.is_empty() {
            self.revision = self.arriving;
        }
        change
    }

    fn receive(&mut self, news: News) -> Option<Change> {
        let Batch { revision, changes } = news?;
        self.arriving = revision;
        self.arrived = changes.into();
        self.take()
    }

    /// What has come until now. Where that is nothing, all of the store's changes have been returned.
    fn receive_now(&mut self) -> Option<Change> {
        let state = self.store.state();
        let (news, now) = (self.news.try_recv(), state.revision);
        drop(state);
        match news {
            Ok(news) => self.receive(news),
            Err(_) => {
                self.arriving = now;
                self.take()
            }
        }
    }
}

impl Watch for EmbeddedWatch {
    fn next(&mut self, timeout: Duration) -> Result<Option<Change>, StoreError> {
        if !self.arrived.is_empty() {
            return Ok(self.take());
        }
        let deadline = Instant::now() + timeout;
        loop {
            let lease = self.store.state().time_to_next_end((self.store.clock)());
            let left = deadline.saturating_duration_since(Instant::now());
            match self.news.recv_timeout(lease.map_or(left, |lease| lease.min(left))) {
                Ok(news) => return Ok(self.receive(news)),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => return Ok(self.receive_now()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(StoreError::Unavailable("it was dropped".into())),
            }
        }
    }

    fn revision(&self) -> Revision {
        self.revision
    }

    fn cancel(&self) -> Cancel {
        let sender = self.cancel.clone();
        // It fails only after the watch was dropped.
        Box::new(move || drop(sender.send(None)))
    }
}

/// Changes that are remembered.
const HISTORY: usize = 4096;
