//! Watches of the embedded store.

use super::Embedded;
use super::history::{History, of};
use crate::store::{Batch, Cancel, Change, Changes, Entry, Revision, StoreError, Watch};
use async_trait::async_trait;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Message to a watch that a thread waits for: changes, or none when its waiting is to end.
type News = Option<Batch>;

/// The watches of a store, and its last changes.
#[derive(Default)]
pub(super) struct Watches {
    watches: Vec<(String, Sender<News>)>,
    history: History,
    /// Tells followers of changes.
    changed: watch::Sender<Revision>,
}

impl Watches {
    /// No watches; the history begins after `revision`.
    pub(super) fn after(revision: Revision) -> Self {
        Self { history: History::after(revision), ..Self::default() }
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    pub(super) fn compact(&mut self, revision: Revision) {
        self.history.compact(revision);
    }

    /// A new watch of `prefix`, which begins with what it missed after `revision`.
    pub(super) fn add(&mut self, prefix: &str, revision: Revision) -> (Sender<News>, Receiver<News>) {
        let (sender, receiver) = channel();
        // The receiver is there.
        self.history.since(prefix, revision).for_each(|batch| drop(sender.send(Some(batch))));
        self.watches.push((prefix.to_owned(), sender.clone()));
        (sender, receiver)
    }

    pub(super) fn follow(&self) -> watch::Receiver<Revision> {
        self.changed.subscribe()
    }

    /// Sends changes to the watches of their keys; removes watches that were dropped.
    pub(super) fn tell(&mut self, batch: Batch, before: Vec<(String, Option<Entry>)>) {
        self.watches.retain(|(prefix, sender)| of(&batch, prefix).is_none_or(|batch| sender.send(Some(batch)).is_ok()));
        let revision = batch.revision;
        self.history.add(batch, before);
        self.changed.send_replace(revision);
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
    pub(super) fn new(store: Embedded, cancel: Sender<News>, news: Receiver<News>, revision: Revision) -> Self {
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

    /// The changes until now. Where there are none, all of the store's changes have been returned.
    fn receive_now(&mut self) -> Option<Change> {
        let state = self.store.state();
        let (news, now) = (self.news.try_recv(), state.revision());
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
            let lease = self.store.time_to_next_end();
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

/// [`Changes`] of the embedded store: a place in its history, so that a slow follower holds no changes back.
pub(super) struct Follower {
    store: Embedded,
    prefix: String,
    revision: Revision,
    changed: watch::Receiver<Revision>,
}

impl Follower {
    pub(super) fn new(store: Embedded, prefix: &str, revision: Revision, changed: watch::Receiver<Revision>) -> Self {
        Self { store, prefix: prefix.to_owned(), revision, changed }
    }

    /// The events that have come; where there are none, the time until the next lease ends.
    fn take(&mut self) -> Result<Result<Batch, Option<Duration>>, StoreError> {
        let state = self.store.state();
        self.changed.mark_unchanged();
        let history = state.history();
        history.check(self.revision, state.revision())?;
        let batch = history.since(&self.prefix, self.revision).next();
        self.revision = batch.as_ref().map_or(state.revision(), |batch| batch.revision);
        drop(state);
        Ok(batch.ok_or_else(|| self.store.time_to_next_end()))
    }
}

#[async_trait]
impl Changes for Follower {
    async fn next(&mut self) -> Result<Batch, StoreError> {
        loop {
            let changed = match self.take()? {
                Ok(batch) => return Ok(batch),
                Err(None) => self.changed.changed().await,
                // A lease that ends is noticed by whoever looks next: this one.
                Err(Some(left)) => tokio::time::timeout(left, self.changed.changed()).await.unwrap_or(Ok(())),
            };
            changed.map_err(|_| StoreError::Unavailable("it was dropped".into()))?;
        }
    }

    fn revision(&self) -> Revision {
        self.revision
    }
}
