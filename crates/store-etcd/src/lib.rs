//! The control plane's [`Store`](rdmesh_fabric::store::Store) over etcd 3.4 and later.
//!
//! The gRPC messages are written out here, those few fields that are used, so that building needs no compiler of protocol
//! definitions. Requests go to one member of the cluster as long as it answers, then to the next one.

#![forbid(unsafe_code)]

mod config;
mod fault;
mod members;
mod proto;
mod store;
mod watch;

pub use config::{ConfigError, EtcdConfig};
pub use store::EtcdStore;
