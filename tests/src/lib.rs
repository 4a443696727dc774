//! Harness of the whole-system tests: a router for each test, programs in its endpoints, and cleanup.
//!
//! The tests use the built product (`target/tested`, or the folder that `RDMESH_BIN` names) as a user would: through
//! the `rdmesh` program. What they start is killed when it goes out of scope.

mod cluster;
mod compile;
pub mod docker;
pub mod etcd;
mod flow;
pub mod forge;
pub mod guest;
mod hosts;
pub mod kubernetes;
mod lab;
pub mod machine;
pub mod methods;
pub mod modules;
pub mod mpi;
mod namespace;
mod pair;
pub mod parameters;
mod peer;
mod perftest;
pub mod podman;
mod program;
mod runtime;
mod shared_folder;
pub mod software;
pub mod suite;
pub mod system;
pub mod trace;
mod wait;
mod wire;

pub use cluster::{Cluster, Site};
pub use compile::{chain_program, example, helper, mpi_programs, sanitized_helper, socket_cases};
pub use flow::{Flow, FlowOptions, Poured};
pub use hosts::Hosts;
pub use lab::{Endpoint, Lab, Options};
pub use machine::Machine;
pub use namespace::Namespace;
pub use pair::Pair;
pub use peer::Peer;
pub use perftest::{Row, bandwidth_rows, latency_rows};
pub use program::{Output, Program};
pub use runtime::runtime_for;
pub use shared_folder::SharedFolder;
pub use system::HugePages;
pub use wait::{TICK, until};
pub use wire::inside;

use std::path::{Path, PathBuf};

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_owned()
}

/// Whether the long forms of tests are asked for: `./dev test --all`.
pub fn all() -> bool {
    std::env::var_os("RDMESH_TEST_ALL").is_some()
}

/// A file of the built product. Panics where it is missing.
pub fn product(name: &str) -> PathBuf {
    let dir = std::env::var_os("RDMESH_BIN").map_or_else(|| root().join("target/tested"), PathBuf::from);
    let path = dir.join(name);
    assert!(path.exists(), "{} is missing: run `./dev test PART`, or `./dev build` and set RDMESH_BIN", path.display());
    path
}
