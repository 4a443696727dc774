//! Last changes of the embedded store, for watches that continue and for reads at a revision.

use crate::store::{Batch, Change, Entry, Revision, StoreError};
use std::collections::{BTreeMap, VecDeque};

/// The last changes, and what was there before each of them.
#[derive(Default)]
pub(super) struct History {
    past: VecDeque<Past>,
    /// Changes in it.
    remembered: usize,
    /// The last revision that is not in it any more.
    forgotten: Revision,
}

struct Past {
    batch: Batch,
    /// The earlier values, by key.
    before: Vec<(String, Option<Entry>)>,
}

impl History {
    /// A history that begins after `revision`.
    pub(super) fn after(revision: Revision) -> Self {
        Self { forgotten: revision, ..Self::default() }
    }

    pub(super) fn add(&mut self, batch: Batch, before: Vec<(String, Option<Entry>)>) {
        self.remembered += batch.changes.len();
        self.past.push_back(Past { batch, before });
        while self.remembered > HISTORY {
            self.forget_oldest();
        }
    }

    /// Forgets what was before `revision`.
    pub(super) fn compact(&mut self, revision: Revision) {
        while self.past.front().is_some_and(|past| past.batch.revision <= revision) {
            self.forget_oldest();
        }
    }

    /// An error where the changes after `revision` are not all remembered, or it is after `now`.
    pub(super) fn check(&self, revision: Revision, now: Revision) -> Result<(), StoreError> {
        let is_known = (self.forgotten..=now).contains(&revision);
        if is_known { Ok(()) } else { Err(StoreError::Forgotten(revision)) }
    }

    /// The batches after `revision` that have changes of keys which begin with `prefix`, with those alone.
    pub(super) fn since<'a>(&'a self, prefix: &'a str, revision: Revision) -> impl Iterator<Item = Batch> + 'a {
        let first = self.past.partition_point(|past| past.batch.revision <= revision);
        self.past.range(first..).filter_map(move |past| of(&past.batch, prefix))
    }

    /// Turns the keys of now into those of `revision`.
    pub(super) fn undo(&self, keys: &mut BTreeMap<String, Entry>, prefix: &str, revision: Revision) {
        let later = self.past.iter().rev().take_while(|past| past.batch.revision > revision);
        for (key, before) in later.flat_map(|past| &past.before).filter(|(key, _)| key.starts_with(prefix)) {
            match before {
                Some(entry) => keys.insert(key.clone(), entry.clone()),
                None => keys.remove(key),
            };
        }
    }

    fn forget_oldest(&mut self) {
        let Some(Past { batch, .. }) = self.past.pop_front() else { return };
        self.remembered -= batch.changes.len();
        self.forgotten = batch.revision;
    }
}

/// The changes of keys that begin with `prefix`; none where there are none.
pub(super) fn of(batch: &Batch, prefix: &str) -> Option<Batch> {
    let changes: Vec<Change> =
        batch.changes.iter().filter(|change| change.key().starts_with(prefix)).cloned().collect();
    (!changes.is_empty()).then_some(Batch { revision: batch.revision, changes })
}

/// Changes that are remembered.
const HISTORY: usize = 4096;
