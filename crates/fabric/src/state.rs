//! Where a router keeps its files.

use crate::{Endpoint, Name};
use std::env;
use std::path::{Path, PathBuf};

/// Name of the API socket in the state directory.
pub const API_SOCKET: &str = "api.sock";
/// Where programs in their own mount namespace, and containers, find their endpoint's directory.
pub const ENDPOINT_MOUNT: &str = "/run/rdmesh/endpoint";

/// A router's state directory and the paths in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// The directory `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The directory that is used when none is named: `$RDMESH_STATE`, `/run/rdmesh` for root, and for others
    /// `$XDG_RUNTIME_DIR/rdmesh` or `/tmp/rdmesh-<uid>`.
    pub fn default_for(uid: u32) -> Self {
        let var = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        Self(match (var("RDMESH_STATE"), uid, var("XDG_RUNTIME_DIR")) {
            (Some(state), _, _) => state,
            (None, 0, _) => "/run/rdmesh".into(),
            (None, _, Some(runtime)) => runtime.join("rdmesh"),
            (None, uid, None) => format!("/tmp/rdmesh-{uid}").into(),
        })
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The API's socket.
    pub fn api_socket(&self) -> PathBuf {
        self.0.join(API_SOCKET)
    }

    /// The log of a router in the background.
    pub fn log(&self) -> PathBuf {
        self.0.join("router.log")
    }

    /// The file whose lock says that a router runs.
    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// The directory of all endpoints' directories.
    pub fn endpoints(&self) -> PathBuf {
        self.0.join("endpoints")
    }

    /// The directory of `endpoint`.
    pub fn endpoint(&self, endpoint: &Endpoint) -> PathBuf {
        self.endpoints().join(endpoint.directory_name())
    }

    /// The directory of network namespaces.
    pub fn namespaces(&self) -> PathBuf {
        self.0.join("netns")
    }

    /// The network namespace of `endpoint`.
    pub fn endpoint_namespace(&self, endpoint: &Endpoint) -> PathBuf {
        self.namespaces().join(endpoint.directory_name())
    }

    /// The network namespace that holds the bridge of `network`.
    pub fn network_namespace(&self, network: &Name) -> PathBuf {
        self.namespaces().join(network.as_str())
    }
}
