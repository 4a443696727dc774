//! Configuration of a router.

use super::cluster::SharedStore;
use crate::events::EventLog;
use crate::io::IoConfig;
use rdmesh_fabric::api::Mode;
use rdmesh_fabric::{Name, Peers, StateDir, TunnelKey};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Configuration of a router.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// The directory of its files.
    pub state: StateDir,
    /// Waiting strategy of its workers.
    pub mode: Mode,
    /// Worker threads; none: chosen from the number of cores.
    pub workers: Option<usize>,
    /// Whether it does without network namespaces, and so without root.
    pub rootless: bool,
    /// The preload library to give to endpoints; none: the one that is installed with this program.
    pub library: Option<PathBuf>,
    /// Name of this host, by which others know it.
    pub host: Name,
    /// The other hosts, and their endpoints.
    pub peers: Peers,
    /// The store of the cluster that it joins; needs an underlay.
    pub store: Option<SharedStore>,
    /// Whether only the router and the kernel may send to other hosts' routers from here.
    pub firewall: bool,
    /// Whether its endpoints stay for the next router when a signal ends it.
    pub keeps_endpoints: bool,
    /// A secret that all hosts of the mesh have; none: with a store, the hosts have key pairs.
    pub key: Option<TunnelKey>,
    /// The network.
    pub io: IoConfig,
    /// Path between endpoints of this host.
    pub local_path: LocalPath,
    /// TCP address at which everybody may read the metrics; none: the API's socket has them.
    pub metrics: Option<SocketAddr>,
    /// Where its log's events are kept, as a layer of the log.
    pub events: EventLog,
}

impl DaemonConfig {
    /// Whether hosts authenticate each other by key pairs, whose public halves are in the cluster's store.
    pub fn has_key_pair(&self) -> bool {
        self.store.is_some() && self.key.is_none() && !self.io.is_insecure
    }
}

/// Path between endpoints of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalPath {
    /// Through shared memory.
    #[default]
    Memory,
    /// As if they were on different hosts; needs an underlay. For tests.
    Tunnel,
    /// By plain RoCEv2, as external peers. For tests.
    Plain,
}
