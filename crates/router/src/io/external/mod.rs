//! External paths: plain RoCEv2 to machines outside rdmesh, from the programs' own network namespaces.
//!
//! * [`ExternalPaths`]: the table of namespaces that have sockets.
//! * [`ExternalSockets`]: the sockets of one namespace.
//! * [`mod@probe`]: the check that the kernel supports plain RoCEv2.

mod paths;
mod probe;
mod sockets;

pub use paths::{ExternalPath, ExternalPathWatcher, ExternalPaths, Terms, Uplink};
pub use probe::{ProbeError, probe};
pub use sockets::{ExternalPathError, ExternalSockets, Interface};
pub(crate) use sockets::{find_interface, open_namespace};
#[cfg(test)]
pub(super) use {probe::cut_to_identification, sockets::NamespaceKey};
