//! [`Store`] over etcd.

use crate::config::{ConfigError, EtcdConfig};
use crate::members::{Call, Kind, Members};
use crate::proto::{
    CREATE, Compaction, CompactionAnswer, Compare, Compared, DeleteRange, KeepAlive, KeptAlive, KeyValue, LeaseGrant,
    LeaseGranted, LeaseRevoke, LeaseRevoked, MOD, Operation as Request, OperationKind, OutcomeKind, Put, Range,
    RangeAnswer, Txn, TxnAnswer,
};
use crate::watch::EtcdWatch;
use async_trait::async_trait;
use rdmesh_fabric::store::{
    Changes, Committed, Entry, Expect, LeaseId, Listing, Operation, Revision, Store, StoreError, Transaction,
};
use std::sync::Arc;
use std::time::Duration;

/// A cluster's etcd. Clones share the connections.
#[derive(Clone)]
pub struct EtcdStore {
    members: Arc<Members>,
    prefix: String,
}

impl EtcdStore {
    /// The store that `config` says. Nothing is connected before the first operation.
    pub fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        Ok(Self { members: Arc::new(Members::new(config)?), prefix: config.prefix().to_owned() })
    }

    fn key(&self, key: &str) -> Vec<u8> {
        format!("{}{key}", self.prefix).into_bytes()
    }

    fn range(&self, prefix: &str) -> (Vec<u8>, Vec<u8>) {
        let key = self.key(prefix);
        let end = after_prefix(&key);
        (key, end)
    }

    /// One page of a listing: keys from `key` on.
    async fn page(&self, key: Vec<u8>, end: Vec<u8>, revision: Revision) -> Result<RangeAnswer, StoreError> {
        let range = Range { key, range_end: end, limit: PAGE, revision: signed(revision), keys_only: false };
        self.members.call(Call { revision, ..Call::new("/etcdserverpb.KV/Range", range) }).await
    }

    fn transaction(&self, transaction: &Transaction) -> Txn {
        let compare = |(key, expect)| {
            let (target, with) = match expect {
                Expect::Anything => return None,
                Expect::Absent => (CREATE, Compared::Created(0)),
                Expect::Revision(revision) => (MOD, Compared::Modified(signed(revision))),
            };
            Some(Compare { target, key: self.key(key), with: Some(with) })
        };
        // Where the conditions do not hold the answer says how the keys are.
        let look = |(key, _)| Range { key: self.key(key), keys_only: true, ..Range::default() };
        let operation = |(key, operation): (&str, &Operation)| match operation {
            Operation::Put { value, lease } => {
                let lease = lease.map_or(0, |lease| lease.0.cast_signed());
                OperationKind::Put(Put { key: self.key(key), value: value.clone(), lease })
            }
            Operation::Delete => OperationKind::Delete(DeleteRange { key: self.key(key) }),
        };
        let request = |kind| Request { kind: Some(kind) };
        Txn {
            compare: transaction.conditions().filter_map(compare).collect(),
            success: transaction.operations().map(operation).map(request).collect(),
            failure: transaction.conditions().map(look).map(OperationKind::Range).map(request).collect(),
        }
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn list(&self, prefix: &str, at: Option<Revision>) -> Result<Listing, StoreError> {
        let (mut from, end) = self.range(prefix);
        let mut entries = Vec::new();
        let mut revision = at.unwrap_or_default();
        loop {
            let page = self.page(from, end.clone(), revision).await?;
            if revision == Revision::default() {
                // The further pages are of the same revision as the first one.
                revision = page.header.map(|header| unsigned(header.revision)).unwrap_or_default();
            }
            entries.extend(page.kvs.into_iter().filter_map(|kv| entry(kv, &self.prefix)));
            match entries.last() {
                Some(last) if page.more => from = [self.key(&last.key), vec![0]].concat(),
                _ => return Ok(Listing { entries, revision }),
            }
        }
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let page = self.page(self.key(key), Vec::new(), Revision::default()).await?;
        Ok(page.kvs.into_iter().next().and_then(|kv| entry(kv, &self.prefix)))
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Committed, StoreError> {
        let call = Call { kind: Kind::Once, ..Call::new("/etcdserverpb.KV/Txn", self.transaction(transaction)) };
        let TxnAnswer { header, succeeded, responses } = self.members.call(call).await?;
        let outcomes: Vec<OutcomeKind> = responses.into_iter().filter_map(|outcome| outcome.kind).collect();
        if !succeeded {
            return Err(StoreError::Conflict(conflict(transaction, &outcomes)));
        }
        let deleted = outcomes.iter().map(|outcome| match outcome {
            OutcomeKind::Delete(answer) => usize::try_from(answer.deleted).unwrap_or_default(),
            OutcomeKind::Put(_) | OutcomeKind::Range(_) => 0,
        });
        let revision = header.map(|header| unsigned(header.revision)).unwrap_or_default();
        Ok(Committed { revision, deleted: deleted.sum() })
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        // A lease that is granted twice ends once by itself.
        let call = Call::new("/etcdserverpb.Lease/LeaseGrant", LeaseGrant { ttl: seconds });
        let LeaseGranted { id } = self.members.call(call).await?;
        Ok(LeaseId(id.cast_unsigned()))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        let request = KeepAlive { id: lease.0.cast_signed() };
        let call = Call { is_stream: true, ..Call::new("/etcdserverpb.Lease/LeaseKeepAlive", request) };
        let KeptAlive { ttl } = self.members.call(call).await?;
        if ttl > 0 { Ok(()) } else { Err(StoreError::LeaseEnded) }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        let call = Call::new("/etcdserverpb.Lease/LeaseRevoke", LeaseRevoke { id: lease.0.cast_signed() });
        let LeaseRevoked {} = self.members.call(call).await?;
        Ok(())
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Changes>, StoreError> {
        let (key, end) = self.range(prefix);
        // etcd would wait for a revision that is not there yet, as after a restoration of older contents, for ever.
        let now = self.page(key.clone(), vec![], Revision::default()).await?.header.map(|header| header.revision);
        if now.is_some_and(|now| unsigned(now) < after) {
            return Err(StoreError::Forgotten(after));
        }
        Ok(Box::new(EtcdWatch::open(Arc::clone(&self.members), self.prefix.clone(), key, end, after).await?))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let request = Compaction { revision: signed(revision) };
        let CompactionAnswer {} =
            self.members.call(Call { revision, ..Call::new("/etcdserverpb.KV/Compact", request) }).await?;
        Ok(())
    }
}

/// The first key that is not as its condition says.
fn conflict(transaction: &Transaction, found: &[OutcomeKind]) -> String {
    let holds = |expect: Expect, found: &OutcomeKind| {
        let OutcomeKind::Range(RangeAnswer { kvs, .. }) = found else { return true };
        let now = kvs.first().map(|kv| unsigned(kv.mod_revision));
        match expect {
            Expect::Anything => true,
            Expect::Absent => now.is_none(),
            Expect::Revision(revision) => now == Some(revision),
        }
    };
    let mut conditions = transaction.conditions().zip(found);
    conditions.find(|((_, expect), found)| !holds(*expect, found)).map_or(String::new(), |((key, _), _)| key.to_owned())
}

/// A key of the store, without its prefix; none where it is not text.
pub(crate) fn entry(kv: KeyValue, prefix: &str) -> Option<Entry> {
    let lease = (kv.lease != 0).then(|| LeaseId(kv.lease.cast_unsigned()));
    Some(Entry { key: own_key(kv.key, prefix)?, value: kv.value, revision: unsigned(kv.mod_revision), lease })
}

pub(crate) fn own_key(key: Vec<u8>, prefix: &str) -> Option<String> {
    String::from_utf8(key).ok()?.strip_prefix(prefix).map(str::to_owned)
}

/// The first key after all that begin with `prefix`.
fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    // All keys from `prefix` on.
    vec![0]
}

pub(crate) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or_default())
}

/// Keys in one answer.
const PAGE: i64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(after_prefix(b"rdmesh/"), b"rdmesh0");
        assert_eq!(after_prefix(&[b'a', 0xff]), b"b");
        assert_eq!(after_prefix(&[0xff]), [0]);
    }
}
