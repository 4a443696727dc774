//! The embedded store as a cluster's.

use crate::store::{Embedded, conformance};

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
}

#[test]
fn a_store_in_memory_conforms() {
    run(conformance::all(&Embedded::default(), ""));
}

#[test]
fn a_store_in_a_file_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(&directory.path().join("store")).unwrap();
    run(conformance::all(&store, ""));
}
