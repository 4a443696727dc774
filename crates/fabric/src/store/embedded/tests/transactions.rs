//! Tests of transactions, and of watches that continue where others ended, some of them against a model.

use super::disk::content;
use super::*;

/// The contents that a store should have, and the changes that led there.
#[derive(Default)]
struct Model {
    keys: BTreeMap<String, Entry>,
    revision: Revision,
    log: Vec<Change>,
    /// The keys at each revision.
    past: Vec<BTreeMap<String, Entry>>,
}

#[derive(Debug, Clone, Copy)]
enum Condition {
    Absent,
    Present,
    Wrong,
}

#[derive(Debug, Clone)]
enum Step {
    /// Conditions on keys, and new values, or none, for keys.
    Commit { conditions: Vec<(String, Condition)>, values: Vec<(String, Option<u8>)> },
    /// A watch from an earlier revision, dropped after some changes, and another one that continues it.
    Continue { from: u8, taken: usize },
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![Just("p1"), Just("p2"), Just("p3"), Just("q")].prop_map(str::to_owned)
}

fn step() -> impl Strategy<Value = Step> {
    let condition =
        prop_oneof![1 => Just(Condition::Absent), 3 => Just(Condition::Present), 1 => Just(Condition::Wrong)];
    let conditions = prop::collection::vec((key(), condition), 0..3);
    let values = prop::collection::vec((key(), any::<Option<u8>>()), 0..4);
    prop_oneof![
        (conditions, values).prop_map(|(conditions, values)| Step::Commit { conditions, values }),
        (any::<u8>(), 0..6usize).prop_map(|(from, taken)| Step::Continue { from, taken }),
    ]
}

impl Model {
    fn expectation(&self, key: &str, condition: Condition) -> Expect {
        match (condition, self.keys.get(key)) {
            (Condition::Present, Some(entry)) => Expect::Revision(entry.revision),
            (Condition::Present, None) => Expect::Revision(Revision(1)),
            (Condition::Absent, _) => Expect::Absent,
            (Condition::Wrong, _) => Expect::Revision(Revision(self.revision.0 + 1)),
        }
    }

    /// The first key that is not as the conditions say.
    fn conflict(&self, conditions: &[(String, Condition)]) -> Option<String> {
        let holds = |key: &String, condition| match condition {
            Condition::Absent => !self.keys.contains_key(key),
            Condition::Present => self.keys.contains_key(key),
            Condition::Wrong => false,
        };
        conditions.iter().find(|(key, condition)| !holds(key, *condition)).map(|(key, _)| key.clone())
    }

    fn commit(&mut self, values: &BTreeMap<String, Option<u8>>) -> Committed {
        let revision = Revision(self.revision.0 + 1);
        let before = self.log.len();
        for (key, value) in values {
            match value {
                Some(value) => {
                    self.log.push(Change::Put(Entry { key: key.clone(), value: vec![*value], revision, lease: None }))
                }
                None if self.keys.contains_key(key) => self.log.push(Change::Delete { key: key.clone(), revision }),
                None => {}
            }
        }
        let changes = &self.log[before..];
        let deleted = changes.iter().filter(|change| matches!(change, Change::Delete { .. })).count();
        if !changes.is_empty() {
            self.past.push(self.keys.clone());
            self.revision = revision;
        }
        changes.iter().for_each(|change| retell(&mut self.keys, change));
        Committed { revision: self.revision, deleted }
    }

    /// The keys as they were at `revision`.
    fn at(&self, revision: Revision) -> BTreeMap<String, Entry> {
        self.past.get(revision.0 as usize).unwrap_or(&self.keys).clone()
    }
}

fn retell(keys: &mut BTreeMap<String, Entry>, change: &Change) {
    match change {
        Change::Put(entry) => drop(keys.insert(entry.key.clone(), entry.clone())),
        Change::Delete { key, .. } => drop(keys.remove(key)),
    }
}

fn place(change: &Change) -> (&str, Revision) {
    match change {
        Change::Put(entry) => (&entry.key, entry.revision),
        Change::Delete { key, revision } => (key, *revision),
    }
}

proptest! {
    /// A transaction changes all or nothing, and a watcher that follows the changes, with interruptions, sees the store.
    #[test]
    fn transactions_and_watches_are_the_models(steps in prop::collection::vec(step(), 1..60)) {
        let (store, mut model) = (Embedded::default(), Model::default());
        for step in steps {
            match step {
                Step::Commit { conditions, values } => {
                    let mut transaction = Transaction::default();
                    for (key, condition) in &conditions {
                        transaction = transaction.expect(key, model.expectation(key, *condition));
                    }
                    for (key, value) in &values {
                        transaction = match value {
                            Some(value) => transaction.put(key, &[*value], None),
                            None => transaction.delete(key),
                        };
                    }
                    let expected = match model.conflict(&conditions) {
                        Some(key) => Err(StoreError::Conflict(key)),
                        None => Ok(model.commit(&values.into_iter().collect())),
                    };
                    prop_assert_eq!(store.commit(&transaction), expected);
                }
                Step::Continue { from, taken } => {
                    let from = Revision(u64::from(from) % (model.revision.0 + 1));
                    let mut replica = model.at(from);
                    let mut watch = store.watch_from("p", from).unwrap();
                    for _ in 0..taken {
                        watch.next(Duration::ZERO).unwrap().iter().for_each(|change| retell(&mut replica, change));
                    }
                    let mut rest = store.watch_from("p", watch.revision()).unwrap();
                    drain(rest.as_mut()).iter().for_each(|change| retell(&mut replica, change));
                    prop_assert_eq!(rest.revision(), model.revision);
                    replica.retain(|key, _| key.starts_with('p'));
                    prop_assert_eq!(store.list("p").unwrap(), replica.into_values().collect::<Vec<_>>());
                    let all = drain(store.watch_from("p", from).unwrap().as_mut());
                    let meant = |change: &&Change| place(change).0.starts_with('p') && place(change).1 > from;
                    prop_assert_eq!(all, model.log.iter().filter(meant).cloned().collect::<Vec<_>>());
                }
            }
            prop_assert_eq!(store.list("").unwrap(), model.keys.values().cloned().collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_watch_inside_a_transaction_continues_before_it() {
    let store = Embedded::default();
    let before = store.put("a", b"", Expect::Absent, None).unwrap();
    let both = Transaction::default().put("b", b"1", None).put("c", b"2", None).delete("a");
    assert_eq!(store.commit(&both), Ok(Committed { revision: Revision(before.0 + 1), deleted: 1 }));
    let mut watch = store.watch_from("", before).unwrap();
    for revision in [before, before, Revision(before.0 + 1)] {
        assert!(watch.next(Duration::ZERO).unwrap().is_some());
        assert_eq!(watch.revision(), revision);
    }
}

#[test]
fn what_is_long_ago_is_forgotten() {
    let store = Embedded::default();
    let put = |n: u32| store.put("k", &n.to_ne_bytes(), Expect::Anything, None).unwrap();
    let first = put(0);
    let last = (0..10_000).map(put).max().unwrap();
    for revision in [Revision(0), first, Revision(last.0 + 1)] {
        assert_eq!(store.watch_from("", revision).err(), Some(StoreError::Forgotten(revision)));
    }
    let mut watch = store.watch_from("", Revision(last.0 - 100)).unwrap();
    assert_eq!(drain(watch.as_mut()).len(), 100);
}

#[test]
fn the_keys_of_a_lease_go_at_once() {
    let (store, now) = manual();
    let lease = store.grant(Duration::from_secs(1)).unwrap();
    let keys = Transaction::default().put("a", b"", Some(lease)).put("b", b"", Some(lease));
    let made = store.commit(&keys).unwrap().revision;
    now.store(1, Ordering::Relaxed);
    let gone = drain(store.watch_from("", made).unwrap().as_mut());
    assert_eq!(gone.iter().map(place).collect::<Vec<_>>(), ["a", "b"].map(|key| (key, Revision(made.0 + 1))));
    assert_eq!(store.commit(&keys.delete("a").put("c", b"", None)), Err(StoreError::LeaseEnded));
    assert_eq!(store.list("").unwrap(), []);
}

#[test]
fn a_full_disk_refuses_all_of_a_transaction() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(&directory.path().join("store")).unwrap();
    store.put("a", b"1", Expect::Absent, None).unwrap();
    store.state().disk().fail(true);
    let both = Transaction::default().delete("a").put("b", b"2", None);
    assert!(matches!(store.commit(&both), Err(StoreError::Unavailable(_))));
    assert_eq!(content(&store), [("a".to_owned(), b"1".to_vec())]);
}
