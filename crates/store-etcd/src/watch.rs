//! Watches over etcd.

use crate::fault::Fault;
use crate::members::Members;
use crate::proto::{DELETE, Event, WatchAnswer, WatchCreate, WatchKind, WatchRequest};
use crate::store::{entry, own_key, signed, unsigned};
use async_trait::async_trait;
use rdmesh_fabric::store::{Batch, Change, Changes, Revision, StoreError};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// [`Changes`] of etcd.
pub(crate) struct EtcdWatch {
    members: Arc<Members>,
    /// The member that is watched.
    index: usize,
    prefix: String,
    answers: Streaming<WatchAnswer>,
    /// The watch lasts as long as the stream of its requests.
    _requests: Sender<WatchRequest>,
    arrived: VecDeque<Batch>,
    revision: Revision,
}

impl EtcdWatch {
    /// Begins to watch a range of keys.
    pub(crate) async fn open(
        members: Arc<Members>,
        prefix: String,
        key: Vec<u8>,
        range_end: Vec<u8>,
        after: Revision,
    ) -> Result<Self, StoreError> {
        let start_revision = signed(after).saturating_add(1);
        let create = WatchCreate { key, range_end, start_revision, progress_notify: true };
        let (requests, receiver) = channel(1);
        let request = WatchRequest { kind: Some(WatchKind::Create(create)) };
        requests.send(request).await.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let (index, answers) = members.stream("/etcdserverpb.Watch/Watch", ReceiverStream::new(receiver)).await?;
        Ok(Self { members, index, prefix, answers, _requests: requests, arrived: VecDeque::new(), revision: after })
    }

    /// Takes in what a message says.
    fn receive(&mut self, answer: WatchAnswer) -> Result<(), StoreError> {
        if answer.compact_revision != 0 {
            return Err(StoreError::Forgotten(self.revision));
        }
        if answer.canceled {
            return Err(self.lost(&Status::unavailable(answer.cancel_reason)));
        }
        let is_progress = answer.events.is_empty() && !answer.created;
        if let Some(header) = answer.header.filter(|_| is_progress) {
            self.revision = self.revision.max(unsigned(header.revision));
        }
        for change in answer.events.into_iter().filter_map(|event| change(event, &self.prefix)) {
            let revision = change.revision();
            match self.arrived.back_mut().filter(|batch| batch.revision == revision) {
                Some(batch) => batch.changes.push(change),
                None => self.arrived.push_back(Batch { revision, changes: vec![change] }),
            }
        }
        Ok(())
    }

    fn lost(&self, status: &Status) -> StoreError {
        self.members.fail(self.index, Fault::of(status, self.revision))
    }
}

#[async_trait]
impl Changes for EtcdWatch {
    async fn next(&mut self) -> Result<Batch, StoreError> {
        loop {
            if let Some(batch) = self.arrived.pop_front() {
                self.revision = batch.revision;
                return Ok(batch);
            }
            match self.answers.message().await {
                Ok(Some(answer)) => self.receive(answer)?,
                Ok(None) => return Err(self.lost(&Status::unavailable("the watch has ended"))),
                Err(status) => return Err(self.lost(&status)),
            }
        }
    }

    fn revision(&self) -> Revision {
        self.revision
    }
}

fn change(event: Event, prefix: &str) -> Option<Change> {
    let kv = event.kv?;
    if event.kind == DELETE {
        let revision = unsigned(kv.mod_revision);
        return Some(Change::Delete { key: own_key(kv.key, prefix)?, revision });
    }
    entry(kv, prefix).map(Change::Put)
}
