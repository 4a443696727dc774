//! The store over etcd: conformance, members that are killed, connections that are lost.

use rdmesh_fabric::store::{Change, Changes, Expect, Revision, Store, StoreError, Transaction, conformance, settle};
use rdmesh_store_etcd::EtcdStore;
use rdmesh_tests::etcd::{Etcd, Proxy, Security, in_network};
use std::time::Duration;

fn store(url: &str) -> EtcdStore {
    EtcdStore::new(&url.parse().expect("an address")).expect("its files")
}

/// A put under the condition that nothing has changed `key` since.
fn change(key: &str, value: u32, before: Revision) -> Transaction {
    let expect = if before == Revision::default() { Expect::Absent } else { Expect::Revision(before) };
    Transaction::default().expect(key, expect).put(key, value.to_string().as_bytes(), None)
}

fn value(change: &Change) -> u32 {
    let Change::Put(entry) = change else { panic!("{change:?}") };
    std::str::from_utf8(&entry.value).expect("text").parse().expect("a number")
}

#[test]
fn etcd_conforms() {
    in_network(|| async {
        let etcd = Etcd::start(1, Security::None);
        conformance::all(&store(&etcd.url()), "").await;
    });
}

#[test]
fn three_members_with_tls_and_a_password_conform() {
    in_network(|| async {
        let etcd = Etcd::start(3, Security::TlsAndPassword);
        conformance::all(&store(&etcd.url()), "").await;
        let members = "127.0.0.1:2379,127.0.0.1:2389";
        for user in ["root:wrong", "nobody:secret"] {
            let refused = store(&etcd.url_of(members, user)).list("", None).await;
            assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
        }
        let plain = store(&format!("etcd://root:secret@{members}?timeout=1")).list("", None).await;
        assert!(matches!(plain, Err(StoreError::Unavailable(_))), "{plain:?}");
    });
}

/// Follows a prefix through all failures, and returns the values until `last`.
async fn follow(store: &EtcdStore, prefix: &str, last: u32) -> Vec<u32> {
    let (mut values, mut revision) = (Vec::new(), Revision::default());
    let mut watch: Option<Box<dyn Changes>> = None;
    while values.last() != Some(&last) {
        let Some(open) = &mut watch else {
            match store.watch(prefix, revision).await {
                Ok(again) => watch = Some(again),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            continue;
        };
        match open.next().await {
            Ok(batch) => values.extend(batch.changes.iter().map(value)),
            Err(error) => {
                assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
                revision = open.revision();
                watch = None;
            }
        }
    }
    values
}

#[test]
fn members_are_killed_and_no_change_is_lost_or_made_twice() {
    in_network(|| async {
        const LAST: u32 = 60;
        let mut etcd = Etcd::start(3, Security::None);
        let (writer, reader) = (store(&etcd.url()), store(&etcd.url()));
        let watch = tokio::spawn(async move { follow(&reader, "n/", LAST).await });
        let mut revision = Revision::default();
        for n in 1..=LAST {
            match n % 20 {
                5 => etcd.kill(n as usize / 20),
                15 => etcd.restart(n as usize / 20),
                _ => {}
            }
            revision = loop {
                match settle(&writer, &change("n/k", n, revision)).await {
                    Ok(committed) => break committed.revision,
                    // No leader for a moment; the value says whether it was made after all.
                    Err(StoreError::Unavailable(_) | StoreError::OutcomeUnknown(_)) => {}
                    Err(StoreError::Conflict(_)) => {
                        let entry = writer.get("n/k").await.unwrap().unwrap();
                        assert_eq!(entry.value, n.to_string().as_bytes());
                        break entry.revision;
                    }
                    Err(error) => panic!("{error}"),
                }
            };
        }
        assert_eq!(watch.await.unwrap(), (1..=LAST).collect::<Vec<_>>());
    });
}

#[test]
fn an_answer_that_is_lost_leaves_no_doubt_in_the_end() {
    in_network(|| async {
        let etcd = Etcd::start(1, Security::None);
        let proxy = Proxy::start(etcd.port(0)).await;
        let (near, direct) = (store(&format!("etcd://127.0.0.1:{}?timeout=1", proxy.port())), store(&etcd.url()));
        let first = near.commit(&change("k", 1, Revision::default())).await.unwrap().revision;
        proxy.swallow(true);
        let passed = proxy.passed();
        let lost = near.commit(&change("k", 2, first)).await;
        assert!(matches!(lost, Err(StoreError::OutcomeUnknown(_))), "{lost:?}");
        assert!(proxy.passed() > passed, "the request has left");
        // Sent again while answers are lost still: the first one counts.
        let settling = tokio::spawn({
            let near = near.clone();
            async move { settle(&near, &change("k", 2, first)).await }
        });
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.swallow(false);
        proxy.cut();
        let settled = settling.await.unwrap();
        let entry = direct.get("k").await.unwrap().unwrap();
        assert_eq!(entry.value, b"2");
        match settled {
            Ok(committed) => assert_eq!(committed.revision, entry.revision),
            // The caller's first attempt was made before `settle` began, which then cannot know whose it is.
            Err(error) => assert_eq!(error, StoreError::Conflict("k".into())),
        }
        // With the whole of it under `settle` there is one change, whatever was lost.
        proxy.swallow(true);
        let transaction = change("k", 3, entry.revision);
        let settling = tokio::spawn(async move { settle(&near, &transaction).await });
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxy.swallow(false);
        proxy.cut();
        let settled = settling.await.unwrap().unwrap();
        let last = direct.get("k").await.unwrap().unwrap();
        assert_eq!((last.value, last.revision), (b"3".to_vec(), settled.revision));
        let past = direct.list("k", Some(Revision(settled.revision.0 - 1))).await.unwrap();
        assert_eq!(past.entries[0].revision, entry.revision, "it was made once");
    });
}

#[test]
fn a_watch_whose_connection_is_cut_misses_nothing() {
    in_network(|| async {
        const LAST: u32 = 200;
        let etcd = Etcd::start(1, Security::None);
        let proxy = Proxy::start(etcd.port(0)).await;
        let (near, direct) = (store(&format!("etcd://127.0.0.1:{}?timeout=1", proxy.port())), store(&etcd.url()));
        let watch = tokio::spawn(async move { follow(&near, "n/", LAST).await });
        let mut revision = Revision::default();
        for n in 1..=LAST {
            revision = direct.commit(&change("n/k", n, revision)).await.unwrap().revision;
            if n % 17 == 0 {
                proxy.cut();
            }
        }
        assert_eq!(watch.await.unwrap(), (1..=LAST).collect::<Vec<_>>());
    });
}

#[test]
fn a_store_that_is_away_says_so_and_comes_back() {
    in_network(|| async {
        let mut etcd = Etcd::start(1, Security::None);
        let store = store(&etcd.url());
        let lease = store.grant(Duration::from_secs(600)).await.unwrap();
        store.commit(&Transaction::default().put("k", b"1", Some(lease))).await.unwrap();
        etcd.kill(0);
        assert!(matches!(store.get("k").await, Err(StoreError::Unavailable(_))));
        let write = store.commit(&Transaction::default().put("k", b"2", None)).await;
        assert!(matches!(write, Err(StoreError::Unavailable(_))), "{write:?}");
        etcd.restart(0);
        assert_eq!(store.get("k").await.unwrap().unwrap().lease, Some(lease));
        store.keep_alive(lease).await.unwrap();
    });
}
