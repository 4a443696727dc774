//! Tests that every [`Store`] passes.
//!
//! Each takes a store that nothing else uses meanwhile, except under other prefixes, and panics where the store is not what
//! [`Store`] promises.

mod random;

pub use random::operations_are_the_models;

use super::{Change, Changes, Entry, Expect, LeaseId, Revision, Store, StoreError, Transaction, settle};
use std::time::Duration;

/// Runs all of the tests below `prefix`, which has no keys yet.
pub async fn all(store: &dyn Store, prefix: &str) {
    for (name, run) in [("writers", 0), ("transactions", 1), ("past", 2), ("watches", 3), ("leases", 4), ("expiry", 5)]
    {
        let prefix = format!("{prefix}{name}/");
        match run {
            0 => of_two_writers_one_wins(store, &prefix).await,
            1 => a_transaction_is_all_or_nothing(store, &prefix).await,
            2 => the_past_can_be_read_until_it_is_compacted(store, &prefix).await,
            3 => a_watch_continues_where_another_ended(store, &prefix).await,
            4 => keys_go_when_their_lease_is_revoked(store, &prefix).await,
            _ => a_lease_that_is_not_kept_alive_ends(store, &prefix).await,
        }
    }
    for seed in 0..SEEDS {
        operations_are_the_models(store, &format!("{prefix}random/{seed}/"), seed).await;
    }
}

async fn put(store: &dyn Store, key: &str, value: &str, expect: Expect) -> Result<Revision, StoreError> {
    let transaction = Transaction::default().expect(key, expect).put(key, value.as_bytes(), None);
    store.commit(&transaction).await.map(|committed| committed.revision)
}

async fn now(store: &dyn Store, prefix: &str) -> Revision {
    store.list(prefix, None).await.expect("a list").revision
}

async fn keys(store: &dyn Store, prefix: &str) -> Vec<String> {
    let listing = store.list(prefix, None).await.expect("a list");
    listing.entries.into_iter().map(|entry| entry.key[prefix.len()..].to_owned()).collect()
}

/// Of two writers that have read the same revision, one wins.
pub async fn of_two_writers_one_wins(store: &dyn Store, prefix: &str) {
    let key = format!("{prefix}k");
    let first = put(store, &key, "1", Expect::Absent).await.expect("a new key");
    assert_eq!(put(store, &key, "2", Expect::Absent).await, Err(StoreError::Conflict(key.clone())));
    let second = put(store, &key, "2", Expect::Revision(first)).await.expect("the first writer");
    assert!(second > first);
    assert_eq!(put(store, &key, "3", Expect::Revision(first)).await, Err(StoreError::Conflict(key.clone())));
    let entry = Entry { key: key.clone(), value: b"2".to_vec(), revision: second, lease: None };
    assert_eq!(store.get(&key).await, Ok(Some(entry)));
    assert_eq!(store.get(&format!("{prefix}none")).await, Ok(None));
}

/// A transaction makes all changes with one revision, or none.
pub async fn a_transaction_is_all_or_nothing(store: &dyn Store, prefix: &str) {
    let key = |name: &str| format!("{prefix}{name}");
    let first = put(store, &key("a"), "1", Expect::Absent).await.expect("a new key");
    let move_it = Transaction::default().expect(&key("a"), Expect::Revision(first)).expect(&key("b"), Expect::Absent);
    let move_it = move_it.delete(&key("a")).put(&key("b"), b"1", None).put(&key("c"), b"2", None).delete(&key("none"));
    let moved = store.commit(&move_it).await.expect("the conditions hold");
    assert_eq!((moved.deleted, keys(store, prefix).await), (1, vec!["b".to_owned(), "c".to_owned()]));
    for name in ["b", "c"] {
        assert_eq!(store.get(&key(name)).await.expect("a read").map(|entry| entry.revision), Some(moved.revision));
    }
    assert_eq!(store.commit(&move_it).await, Err(StoreError::Conflict(key("a"))));
    let mixed =
        Transaction::default().expect(&key("b"), Expect::Revision(moved.revision)).expect(&key("c"), Expect::Absent);
    assert_eq!(store.commit(&mixed.delete(&key("b"))).await, Err(StoreError::Conflict(key("c"))));
    assert_eq!(keys(store, prefix).await, ["b", "c"]);
}

/// A range is read as it was, until that is forgotten.
pub async fn the_past_can_be_read_until_it_is_compacted(store: &dyn Store, prefix: &str) {
    let key = format!("{prefix}k");
    let start = now(store, prefix).await;
    let first = put(store, &key, "1", Expect::Absent).await.expect("a new key");
    let second = put(store, &key, "2", Expect::Anything).await.expect("a change");
    store.commit(&Transaction::default().delete(&key)).await.expect("a removal");
    for (revision, value) in [(start, None), (first, Some(b"1")), (second, Some(b"2"))] {
        let listing = store.list(prefix, Some(revision)).await.expect("it is remembered");
        let values: Vec<&[u8]> = listing.entries.iter().map(|entry| entry.value.as_slice()).collect();
        assert_eq!(values, value.iter().map(|value| value.as_slice()).collect::<Vec<_>>(), "{revision:?}");
    }
    let future = Revision(now(store, prefix).await.0 + 1000);
    assert_eq!(store.list(prefix, Some(future)).await, Err(StoreError::Forgotten(future)));
    // A watcher that slept through a compaction is told to read again, not left without changes.
    let mut watch = store.watch(prefix, start).await.expect("a watch");
    assert_eq!(watch.next().await.map(|batch| batch.revision), Ok(first));
    drop(watch);
    store.compact(second).await.expect("it is not compacted yet");
    assert_eq!(store.list(prefix, Some(first)).await, Err(StoreError::Forgotten(first)));
    let forgotten = match store.watch(prefix, start).await {
        Ok(mut watch) => watch.next().await.err(),
        Err(error) => Some(error),
    };
    assert_eq!(forgotten, Some(StoreError::Forgotten(start)));
    assert_eq!(store.list(prefix, None).await.expect("a list").entries, []);
}

/// A watch from any revision has every later change once.
pub async fn a_watch_continues_where_another_ended(store: &dyn Store, prefix: &str) {
    let start = now(store, prefix).await;
    let mut waiting = store.watch(prefix, start).await.expect("a watch");
    let both = Transaction::default().put(&format!("{prefix}a"), b"1", None).put(&format!("{prefix}b"), b"2", None);
    let first = store.commit(&both).await.expect("a change").revision;
    put(store, &format!("{}elsewhere", &prefix[..prefix.len() - 1]), "", Expect::Anything).await.expect("a change");
    let removal = Transaction::default().delete(&format!("{prefix}a"));
    let second = store.commit(&removal).await.expect("a removal").revision;
    let batch = waiting.next().await.expect("the change");
    assert_eq!((batch.revision, batch.changes.len()), (first, 2));
    assert_eq!(waiting.revision(), first);
    let mut other = store.watch(prefix, waiting.revision()).await.expect("a watch");
    for watch in [&mut waiting, &mut other] {
        let batch = watch.next().await.expect("the removal");
        assert_eq!(batch.changes, [Change::Delete { key: format!("{prefix}a"), revision: second }]);
        let silence = tokio::time::timeout(Duration::from_millis(20), watch.next()).await;
        assert!(silence.is_err(), "there is no further change: {silence:?}");
    }
}

/// The keys of a lease go at once when it is revoked; a lease that has ended takes no keys.
pub async fn keys_go_when_their_lease_is_revoked(store: &dyn Store, prefix: &str) {
    let lease = store.grant(Duration::from_secs(60)).await.expect("a lease");
    let with = |lease: LeaseId| {
        Transaction::default().put(&format!("{prefix}a"), b"", Some(lease)).put(&format!("{prefix}b"), b"", Some(lease))
    };
    let made = store.commit(&with(lease)).await.expect("the lease lasts").revision;
    let held = store.get(&format!("{prefix}a")).await.expect("a read").expect("the key");
    assert_eq!(held.lease, Some(lease));
    put(store, &format!("{prefix}b"), "kept", Expect::Anything).await.expect("a change without a lease");
    let mut watch = store.watch(prefix, made).await.expect("a watch");
    store.keep_alive(lease).await.expect("the lease lasts");
    store.revoke(lease).await.expect("the lease lasts");
    watch.next().await.expect("the change");
    let gone = watch.next().await.expect("the end of the lease");
    assert_eq!(gone.changes.iter().map(Change::key).collect::<Vec<_>>(), [format!("{prefix}a")]);
    assert_eq!(keys(store, prefix).await, ["b"]);
    assert_eq!(store.keep_alive(lease).await, Err(StoreError::LeaseEnded));
    assert_eq!(store.revoke(lease).await, Err(StoreError::LeaseEnded));
    assert_eq!(store.commit(&with(lease)).await, Err(StoreError::LeaseEnded));
    assert_eq!(keys(store, prefix).await, ["b"]);
}

/// A lease ends by itself. A write under it that comes too late changes nothing, however often it is tried.
pub async fn a_lease_that_is_not_kept_alive_ends(store: &dyn Store, prefix: &str) {
    let lease = store.grant(Duration::from_secs(1)).await.expect("a lease");
    let key = format!("{prefix}k");
    let write = Transaction::default().expect(&key, Expect::Absent).put(&key, b"1", Some(lease));
    let made = settle(store, &write).await.expect("the lease lasts").revision;
    let mut watch = store.watch(prefix, made).await.expect("a watch");
    let mut revision = made;
    // Writes until the end of the lease: one of them is under way when it comes.
    let late = loop {
        let next = Transaction::default().expect(&key, Expect::Revision(revision)).put(&key, b"2", Some(lease));
        match settle(store, &next).await {
            Ok(committed) => revision = committed.revision,
            Err(error) => break error,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(matches!(late, StoreError::LeaseEnded | StoreError::Conflict(_)), "{late:?}");
    let last = loop {
        let batch = watch.next().await.expect("a change");
        if let [Change::Delete { .. }] = batch.changes[..] {
            break batch.revision;
        }
    };
    assert!(last > revision, "the end of the lease is the last change");
    assert_eq!(keys(store, prefix).await, Vec::<String>::new());
    assert_eq!(settle(store, &write).await, Err(StoreError::LeaseEnded));
}

const SEEDS: u64 = 8;
