//! Random operations, compared with a model of them.

use super::{Changes, Entry, Expect, LeaseId, Revision, Store, StoreError, Transaction};
use crate::store::Change;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The contents that a store should have below a prefix.
#[derive(Default)]
struct Model {
    keys: BTreeMap<String, Entry>,
    /// Contents at each revision at which they changed.
    past: BTreeMap<Revision, BTreeMap<String, Entry>>,
    leases: BTreeSet<LeaseId>,
}

/// A generator of numbers that are random enough for tests (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

impl Model {
    /// A random transaction, and the error that it should have.
    fn transaction(&self, prefix: &str, numbers: &mut Numbers) -> (Transaction, Option<StoreError>) {
        let (mut transaction, mut error) = (Transaction::default(), None);
        for _ in 0..numbers.below(3) {
            let key = format!("{prefix}{}", numbers.below(KEYS));
            let known = self.keys.get(&key).map(|entry| entry.revision);
            let expect = match (numbers.below(4), known) {
                (0, _) => Expect::Absent,
                (1, _) => Expect::Revision(Revision(1)),
                (_, Some(revision)) => Expect::Revision(revision),
                (_, None) => Expect::Anything,
            };
            let holds = match expect {
                Expect::Absent => known.is_none(),
                Expect::Revision(revision) => known == Some(revision),
                Expect::Anything => true,
            };
            if !holds && error.is_none() {
                error = Some(StoreError::Conflict(key.clone()));
            }
            transaction = transaction.expect(&key, expect);
        }
        for _ in 0..numbers.below(4) {
            let key = format!("{prefix}{}", numbers.below(KEYS));
            let lease = self.leases.iter().next().copied().filter(|_| numbers.below(3) == 0);
            transaction = match numbers.below(3) {
                0 => transaction.delete(&key),
                _ => transaction.put(&key, &numbers.below(1000).to_be_bytes(), lease),
            };
        }
        (transaction, error)
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(entry) => drop(self.keys.insert(entry.key.clone(), entry.clone())),
            Change::Delete { key, .. } => assert!(self.keys.remove(key).is_some(), "{key} was not there"),
        }
        self.past.insert(change.revision(), self.keys.clone());
    }

    /// The contents as they were.
    fn at(&self, revision: Revision) -> Vec<Entry> {
        let then = self.past.range(..=revision).next_back();
        then.map(|(_, keys)| keys.values().cloned().collect()).unwrap_or_default()
    }
}

/// Transactions, leases, reads of the past and watches that are interrupted agree with a model, whatever their order.
pub async fn operations_are_the_models(store: &dyn Store, prefix: &str, seed: u64) {
    let (mut model, mut numbers) = (Model::default(), Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
    let start = super::now(store, prefix).await;
    let mut watch = store.watch(prefix, start).await.expect("a watch");
    for _ in 0..STEPS {
        let before = model.keys.clone();
        let changed = step(store, prefix, &mut model, &mut numbers).await;
        if changed {
            follow(watch.as_mut(), &mut model, store, prefix).await;
        } else {
            assert_eq!(model.keys, before);
        }
        let listing = store.list(prefix, None).await.expect("a list");
        assert_eq!(listing.entries, model.keys.values().cloned().collect::<Vec<_>>(), "seed {seed}");
        if numbers.below(4) == 0 {
            watch = store.watch(prefix, watch.revision()).await.expect("a watch that continues");
        }
        let then = Revision(start.0 + numbers.below(listing.revision.0 - start.0 + 1));
        let past = store.list(prefix, Some(then)).await.expect("the past");
        assert_eq!(past.entries, model.at(then), "seed {seed}");
    }
}

/// Does one operation; whether it changed any key.
async fn step(store: &dyn Store, prefix: &str, model: &mut Model, numbers: &mut Numbers) -> bool {
    match numbers.below(8) {
        0 => {
            let lease = store.grant(Duration::from_secs(600)).await.expect("a lease");
            model.leases.insert(lease);
            false
        }
        1 => {
            let Some(lease) = model.leases.pop_last() else { return false };
            store.revoke(lease).await.expect("the lease lasts");
            model.keys.values().any(|entry| entry.lease == Some(lease))
        }
        _ => {
            let (transaction, error) = model.transaction(prefix, numbers);
            let outcome = store.commit(&transaction).await;
            assert_eq!(outcome.as_ref().err(), error.as_ref());
            let changes = |(key, operation): (&str, &super::super::Operation)| {
                matches!(operation, super::super::Operation::Put { .. }) || model.keys.contains_key(key)
            };
            outcome.is_ok() && transaction.operations().any(changes)
        }
    }
}

/// Applies the next changes until the model is what the store has.
async fn follow(watch: &mut dyn Changes, model: &mut Model, store: &dyn Store, prefix: &str) {
    let batch = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
    let batch = batch.expect("a change is told").expect("the watch lasts");
    assert!(!batch.changes.is_empty() && batch.changes.iter().all(|change| change.revision() == batch.revision));
    batch.changes.iter().for_each(|change| model.apply(change));
    assert_eq!(watch.revision(), batch.revision);
    assert!(store.list(prefix, None).await.expect("a list").revision >= batch.revision);
}

const KEYS: u64 = 6;
const STEPS: usize = 60;
