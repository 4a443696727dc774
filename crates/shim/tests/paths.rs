//! Equivalence of path functions: every libc function that takes a path gives the same result on the tree for `/sys` and on a
//! plain copy of it.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that cargo has built for this test.
fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().parent().unwrap().join("librdmesh.so");
    assert!(path.is_file(), "{} is missing", path.display());
    path
}

/// A tree as the router lays it out.
fn write_tree(root: &Path) {
    let files = [
        ("class/infiniband_verbs/abi_version", "6\n"),
        ("devices/virtual/infiniband/rxe0/node_type", "1: CA\n"),
        ("devices/virtual/infiniband/rxe0/node_guid", "0052:0aff:fe4d:0002\n"),
        ("devices/virtual/infiniband/rxe0/ports/1/gids/0", "fe80::1\n"),
        ("devices/virtual/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
        ("devices/virtual/infiniband_verbs/uverbs0/ibdev", "rxe0\n"),
        ("devices/virtual/infiniband_verbs/uverbs0/dev", "231:192\n"),
        ("devices/virtual/misc/rdma_cm/dev", "10:58\n"),
        ("devices/virtual/rdmesh/rxe0/numa_node", "-1\n"),
    ];
    for (path, content) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let links = [
        ("class/infiniband/rxe0", "../../devices/virtual/infiniband/rxe0"),
        ("class/infiniband_verbs/uverbs0", "../../devices/virtual/infiniband_verbs/uverbs0"),
        ("class/misc/rdma_cm", "../../devices/virtual/misc/rdma_cm"),
        ("dev/char/231:192", "../../devices/virtual/infiniband_verbs/uverbs0"),
        ("dev/char/10:58", "../../devices/virtual/misc/rdma_cm"),
        ("devices/virtual/infiniband/rxe0/subsystem", "../../../../class/infiniband"),
        ("devices/virtual/infiniband/rxe0/device", "../../rdmesh/rxe0"),
        ("devices/virtual/infiniband_verbs/uverbs0/device", "../../rdmesh/rxe0"),
        ("devices/virtual/infiniband_verbs/uverbs0/subsystem", "../../../../class/infiniband_verbs"),
        ("devices/virtual/misc/rdma_cm/subsystem", "../../../../class/misc"),
    ];
    for (path, target) in links {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }
}

fn ask(root: &Path, endpoint: Option<&Path>) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/paths.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(root).env_remove("RDMESH_ENDPOINT").env_remove("LD_PRELOAD").current_dir("/");
    if let Some(endpoint) = endpoint {
        command.env("LD_PRELOAD", library()).env("RDMESH_ENDPOINT", endpoint);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_function_answers_as_on_a_plain_tree() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3 here");
        return;
    }
    let (endpoint, plain) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_tree(&endpoint.path().join("sys"));
    fs::create_dir_all(endpoint.path().join("dev/infiniband")).unwrap();
    drop(UnixListener::bind(endpoint.path().join("verbs.sock")).unwrap());
    write_tree(&plain.path().join("sys"));
    // Directories that every /sys has.
    fs::create_dir_all(plain.path().join("sys/class/net")).unwrap();
    let (expected, found) = (ask(plain.path(), None), ask(Path::new(""), Some(endpoint.path())));
    let differences: Vec<String> = expected
        .lines()
        .zip(found.lines())
        .filter(|(expected, found)| expected != found)
        .map(|(expected, found)| format!("plain   {expected}\nlibrary {found}"))
        .collect();
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    assert_eq!(expected.lines().count(), found.lines().count());
    assert!(expected.lines().count() > 1500, "all has been asked");
}
