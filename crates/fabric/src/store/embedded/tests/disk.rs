//! Tests of the embedded store's file.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Everything that `store` holds.
pub(super) fn content(store: &Embedded) -> Vec<(String, Vec<u8>)> {
    store.list("").unwrap().into_iter().map(|entry| (entry.key, entry.value)).collect()
}

/// The file of a store that is killed now, opened by the next process.
fn killed(path: &Path) -> Embedded {
    let left = path.with_extension("left");
    fs::copy(path, &left).unwrap();
    Embedded::open(&left).unwrap()
}

#[test]
fn a_store_is_restored_with_revisions_and_leases() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Embedded::open(&path).unwrap();
    let lease = store.grant(Duration::from_secs(1000)).unwrap();
    store.put("a", b"1", Expect::Absent, None).unwrap();
    store.put("leased", b"2\n\"", Expect::Absent, Some(lease)).unwrap();
    store.put("a", b"3", Expect::Anything, None).unwrap();
    store.put("c", b"", Expect::Anything, None).unwrap();
    assert!(store.delete("c", Expect::Anything).unwrap());
    let (before, revision) = (store.list("").unwrap(), store.state().revision());
    drop(store);
    let store = Embedded::open(&path).unwrap();
    assert_eq!((store.list("").unwrap(), store.state().revision()), (before, revision));
    let long_ago = store.watch_from("", Revision(revision.0 - 1)).err();
    assert_eq!(long_ago, Some(StoreError::Forgotten(Revision(revision.0 - 1))));
    assert!(store.watch_from("", revision).is_ok());
    let next = store.grant(Duration::from_secs(1000)).unwrap();
    assert_ne!(next, lease);
    store.revoke(lease).unwrap();
    assert_eq!(content(&store), [("a".to_owned(), b"3".to_vec())]);
    assert_eq!(content(&killed(&path)), content(&store));
}

#[test]
fn a_router_that_is_killed_leaves_all_of_a_transaction_or_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Embedded::open(&path).unwrap();
    for n in 0..50_u32 {
        let number = n.to_ne_bytes();
        let both = Transaction::default().put("a", &number, None).put(&format!("b{}", n % 7), &number, None);
        store.commit(&both.delete(&format!("b{}", (n + 3) % 7))).unwrap();
        assert_eq!(killed(&path).list("").unwrap(), store.list("").unwrap());
    }
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_journal_of_an_earlier_version_becomes_a_database() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let lines = [
        r#"{"key":"a","value":"1"}"#,
        r#"[{"key":"b","value":"2"},{"key":"a"}]"#,
        r#"{"key":"c","value":"3"}"#,
        // Killed in the middle of a line.
        r#"{"key":"d","val"#,
    ];
    fs::write(&path, lines.join("\n")).unwrap();
    let expected = [("b".to_owned(), b"2".to_vec()), ("c".to_owned(), b"3".to_vec())];
    for _ in 0..2 {
        assert_eq!(content(&Embedded::open(&path).unwrap()), expected);
    }
    fs::write(&path, "neither a journal nor a database").unwrap();
    assert!(Embedded::open(&path).is_err());
}

#[test]
fn a_full_disk_refuses_what_is_new_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Embedded::open(&path).unwrap();
    store.put("a", b"1", Expect::Absent, None).unwrap();
    store.state().disk().fail(true);
    assert!(matches!(store.put("b", b"2", Expect::Absent, None), Err(StoreError::Unavailable(_))));
    assert!(store.grant(Duration::from_secs(1)).is_err());
    assert!(store.get("b").unwrap().is_none());
    assert!(store.delete("a", Expect::Anything).unwrap());
    assert!(store.get("a").unwrap().is_none());
    store.state().disk().fail(false);
    store.put("c", b"3", Expect::Absent, None).unwrap();
    drop(store);
    assert_eq!(content(&Embedded::open(&path).unwrap()), [("c".to_owned(), b"3".to_vec())]);
}
