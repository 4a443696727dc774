//! Tests of the embedded store: revisions, leases and watches.

mod disk;
mod shared;
mod transactions;

use super::*;
use crate::store::{Change, Expect};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// A store with a clock that stands still until it is moved.
fn manual() -> (Embedded, Arc<AtomicU64>) {
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    (Embedded::with_clock(move || Duration::from_secs(clock.load(Ordering::Relaxed))), now)
}

fn drain(watch: &mut dyn Watch) -> Vec<Change> {
    std::iter::from_fn(|| watch.next(Duration::ZERO).unwrap()).collect()
}

#[test]
fn of_two_writers_with_one_revision_one_wins() {
    let store = Embedded::default();
    let first = store.put("k", b"1", Expect::Absent, None).unwrap();
    assert!(store.put("k", b"2", Expect::Revision(first), None).is_ok());
    let loser = store.put("k", b"3", Expect::Revision(first), None);
    assert_eq!(loser, Err(StoreError::Conflict("k".into())));
    assert_eq!(store.get("k").unwrap().unwrap().value, b"2");
}

#[test]
fn keys_go_when_their_lease_does() {
    let (store, now) = manual();
    let lease = store.grant(Duration::from_secs(10)).unwrap();
    store.put("h/a", b"", Expect::Anything, Some(lease)).unwrap();
    store.put("h/b", b"", Expect::Anything, Some(lease)).unwrap();
    store.put("h/b", b"now without a lease", Expect::Anything, None).unwrap();
    let (_, mut watch) = store.watch("h/").unwrap();
    now.store(9, Ordering::Relaxed);
    store.keep_alive(lease).unwrap();
    now.store(18, Ordering::Relaxed);
    assert!(store.get("h/a").unwrap().is_some());
    now.store(19, Ordering::Relaxed);
    assert_eq!(drain(watch.as_mut()), [Change::Delete { key: "h/a".into(), revision: Revision(4) }]);
    assert_eq!(store.keep_alive(lease), Err(StoreError::LeaseEnded));
    assert_eq!(store.put("h/c", b"", Expect::Anything, Some(lease)), Err(StoreError::LeaseEnded));
    assert_eq!(store.list("h/").unwrap().len(), 1);
}

#[test]
fn a_waiting_watch_is_told_by_another_thread_and_by_the_clock() {
    let store = Embedded::default();
    let (_, mut watch) = store.watch("").unwrap();
    let writer = store.clone();
    let thread = thread::spawn(move || {
        // Long enough for a thread that loses its processor.
        let lease = writer.grant(Duration::from_millis(500))?;
        writer.put("k", b"v", Expect::Absent, Some(lease))
    });
    let minute = Duration::from_secs(60);
    let put = watch.next(minute).unwrap();
    assert!(matches!(put, Some(Change::Put(_))) && thread.join().unwrap().is_ok());
    assert!(matches!(watch.next(minute).unwrap(), Some(Change::Delete { .. })));
}

#[test]
fn a_cancelled_watch_waits_no_longer_and_misses_nothing() {
    let store = Embedded::default();
    let (_, mut watch) = store.watch("").unwrap();
    let cancel = watch.cancel();
    thread::spawn(cancel).join().unwrap();
    store.put("k", b"v", Expect::Absent, None).unwrap();
    assert_eq!(watch.next(Duration::from_secs(60)).unwrap(), None);
    assert!(matches!(watch.next(Duration::from_secs(60)).unwrap(), Some(Change::Put(_))));
}

#[test]
fn concurrent_increments_lose_nothing() {
    let store = Embedded::default();
    store.put("n", b"\0", Expect::Absent, None).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..25).for_each(|_| increment(&store)));
        }
    });
    assert_eq!(store.get("n").unwrap().unwrap().value, [100]);
}

fn increment(store: &Embedded) {
    loop {
        let entry = store.get("n").unwrap().unwrap();
        if store.put("n", &[entry.value[0] + 1], Expect::Revision(entry.revision), None).is_ok() {
            return;
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Put { key: u8, value: u8, lease: bool },
    PutIfUnchanged { key: u8, value: u8, stale: bool },
    Delete { key: u8 },
    Pass(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6u8, any::<u8>(), any::<bool>()).prop_map(|(key, value, lease)| Step::Put { key, value, lease }),
        (0..6u8, any::<u8>(), any::<bool>()).prop_map(|(key, value, stale)| Step::PutIfUnchanged { key, value, stale }),
        (0..6u8).prop_map(|key| Step::Delete { key }),
        (0..4u8).prop_map(Step::Pass),
    ]
}

proptest! {
    /// The first listing of a watch with the changes applied to it is the store's content, at every moment.
    #[test]
    fn a_watch_retells_the_store(steps in prop::collection::vec(step(), 1..60)) {
        let (store, now) = manual();
        store.put("p0", b"before", Expect::Absent, None).unwrap();
        store.put("q0", b"elsewhere", Expect::Absent, None).unwrap();
        let (listed, mut watch) = store.watch("p").unwrap();
        let mut replica: BTreeMap<String, Entry> = listed.into_iter().map(|e| (e.key.clone(), e)).collect();
        let mut last = Revision(2);
        for step in steps {
            apply(&store, &now, step);
            for change in drain(watch.as_mut()) {
                let revision = match change {
                    Change::Put(entry) => replica.insert(entry.key.clone(), entry.clone()).map_or(entry.revision, |_| entry.revision),
                    Change::Delete { key, revision } => { prop_assert!(replica.remove(&key).is_some()); revision }
                };
                prop_assert!(revision > last);
                last = revision;
            }
            prop_assert_eq!(store.list("p").unwrap(), replica.values().cloned().collect::<Vec<_>>());
        }
    }
}

fn apply(store: &Embedded, now: &AtomicU64, step: Step) {
    match step {
        Step::Put { key, value, lease } => {
            let lease = lease.then(|| store.grant(Duration::from_secs(3)).unwrap());
            store.put(&format!("p{key}"), &[value], Expect::Anything, lease).unwrap();
        }
        Step::PutIfUnchanged { key, value, stale } => {
            let key = format!("p{key}");
            let revision = store.get(&key).unwrap().map(|e| e.revision);
            let expect = match (revision, stale) {
                (Some(Revision(r)), true) => Expect::Revision(Revision(r + 1)),
                (Some(r), false) => Expect::Revision(r),
                (None, true) => Expect::Revision(Revision(1)),
                (None, false) => Expect::Absent,
            };
            assert_eq!(store.put(&key, &[value], expect, None).is_err(), stale);
        }
        Step::Delete { key } => {
            let key = format!("p{key}");
            let was = store.get(&key).unwrap().is_some();
            assert_eq!(store.delete(&key, Expect::Anything).unwrap(), was);
        }
        Step::Pass(seconds) => {
            now.fetch_add(seconds.into(), Ordering::Relaxed);
        }
    }
}
