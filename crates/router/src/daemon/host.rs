//! A running router without its API: its parts, how they start, and the order in which they end.

use super::capture::Captures;
use super::cluster::{Agent, Parts};
use super::config::{DaemonConfig, LocalPath};
use super::endpoints::{EndpointParts, Endpoints};
use super::error::HostError;
use super::faults::FaultControl;
use super::interfaces::Interfaces;
use super::keyring::{KeySource, Keyring};
use super::keys::TunnelKeys;
use super::mesh::{Mesh, Targets};
use super::peers::PeerHosts;
use super::probes;
use super::records::Records;
use super::restore::{self, Survivor};
use crate::endpoint::{Library, gid_table};
use crate::session::SessionServer;
use crate::worker::{Mode as WorkerMode, WorkerConfig, WorkerStats, Workers};
use rdmesh_fabric::api::{Mode, PathProbe, ProbePath, Status, StoreState, Tunnel};
use rdmesh_fabric::store::Embedded;
use rdmesh_fabric::{Capabilities, Host as HostRecord, Name, Registry, RegistryError};
use rdmesh_nic::{AccessCounters, CaptureFilter, Route, WireCounters};
use rdmesh_overlay::{Firewall, Overlay, Underlay};
use rdmesh_verbs::{DeviceLimits, Vni};
use std::sync::Arc;
use std::time::Instant;

/// A running router without its API.
pub struct Host {
    /// Ends before what it works on; none where the host is in no cluster.
    agent: Option<Agent>,
    config: Arc<DaemonConfig>,
    started: Instant,
    registry: Registry,
    sessions: Arc<SessionServer>,
    peers: Arc<PeerHosts>,
    endpoints: Arc<Endpoints>,
    records: Records,
    keys: Arc<TunnelKeys>,
    interfaces: Interfaces,
    faults: FaultControl,
    captures: Captures,
    /// Dropped after the others, some of which call them: fields are dropped in this order.
    workers: Arc<Workers>,
}

impl Host {
    /// Starts workers and sessions, and serves the endpoints of a router that has died. The state directory must be this
    /// process's alone.
    pub(crate) fn start(config: DaemonConfig) -> Result<Self, HostError> {
        // First: with keys that cannot be used nothing is begun.
        let keyring = Keyring::open(config.state.clone(), key_source(&config))?;
        let installed = config.library.clone().map_or_else(Library::find, Ok)?;
        let library = Library::install(&installed, config.state.path())?;
        let underlay = config.io.underlay.map(Underlay::find).transpose()?;
        let overlay = match config.rootless {
            true => None,
            false => Some(Arc::new(Overlay::new(config.state.clone(), underlay)?)),
        };
        let (workers, sessions) = start_threads(&config)?;
        let (local, registry, survivors) = open_registry(&config, overlay.as_deref())?;
        let targets = Targets {
            host: config.host.clone(),
            routes: workers.shards()[0].routes().clone(),
            workers: workers.shards().to_vec(),
            overlay: overlay.clone(),
            local: local_route(&config)?,
            is_in_cluster: config.store.is_some(),
        };
        let mesh = Mesh::start(registry.watch()?, targets);
        let mesh = Arc::new(mesh.map_err(|source| HostError::Start { what: "mesh", source })?);
        let config = Arc::new(config);
        let keys = TunnelKeys::new(Arc::clone(&config), registry.clone(), Arc::clone(&workers), keyring);
        let keys = Arc::new(keys);
        let failed = |source| HostError::Start { what: "cluster's thread", source };
        let mut agent = config.store.as_ref().map(|_| Agent::new(registry.clone())).transpose().map_err(failed)?;
        let allocator = agent.as_ref().map(Agent::allocator);
        let endpoints = Arc::new(Endpoints::new(EndpointParts {
            config: Arc::clone(&config),
            library,
            registry: registry.clone(),
            overlay: overlay.clone(),
            mesh: Arc::clone(&mesh),
            allocator: allocator.clone(),
            sessions: Arc::clone(&sessions),
        })?);
        let records = Records::new(registry.clone(), Arc::clone(&endpoints), Arc::clone(&mesh), allocator);
        let peers =
            PeerHosts::new(Arc::clone(&config), registry.clone(), mesh, Arc::clone(&keys), Arc::clone(&endpoints));
        let mut host = Self {
            agent: None,
            started: Instant::now(),
            sessions,
            peers: Arc::new(peers),
            records,
            endpoints,
            keys,
            interfaces: Interfaces::new(registry.clone(), overlay, agent.as_ref().map(Agent::allocator)),
            faults: FaultControl::new(config.io.faults, Arc::clone(&workers)),
            captures: Captures::default(),
            workers,
            config,
            registry,
        };
        host.begin(survivors)?;
        if let Some(agent) = &mut agent {
            host.announce_keys(agent);
            agent.start(host.cluster_parts(local)?).map_err(failed)?;
        }
        host.agent = agent;
        Ok(host)
    }

    /// The cluster is to be told of this host's public keys.
    fn announce_keys(&self, agent: &Agent) {
        if let Some(public_keys) = self.keys.public_keys() {
            agent.allocator().set_public_keys(public_keys);
        }
    }

    /// Restores what a router that has died had, and takes in what is configured.
    fn begin(&self, survivors: Vec<Survivor>) -> Result<(), HostError> {
        if self.config.local_path == LocalPath::Tunnel {
            self.keys.set_own()?;
        }
        self.log_security();
        set_firewall(&self.config)?;
        self.keys.restore()?;
        self.endpoints.restore(survivors)?;
        self.interfaces.restore()?;
        self.peers.add_all(&self.config.peers)
    }

    /// Says once what packets to and from other hosts prove.
    fn log_security(&self) {
        if self.config.io.underlay.is_none() {
            return;
        }
        if self.config.io.is_insecure {
            tracing::warn!("--underlay-security none: RDMA packets that come with another host's address are believed");
        }
        if !self.config.rootless {
            tracing::info!(
                "plain IP between endpoints of different hosts goes over VXLAN, outside the seal: it proves no sender"
            );
        }
    }

    /// State of the thread that follows the cluster.
    fn cluster_parts(&self, local: Arc<Embedded>) -> Result<Parts, HostError> {
        let store = self.config.store.clone().ok_or(HostError::NotJoined)?;
        let address = self.config.io.underlay.ok_or(HostError::NoUnderlay)?;
        let is_authenticated = !self.config.io.is_insecure;
        let capabilities = Capabilities { is_authenticated, carries_ip: !self.config.rootless, has_attached: false };
        let host = HostRecord { capabilities, ..HostRecord::new(self.config.host.clone(), address) };
        let (registry, peers, endpoints) =
            (self.registry.clone(), Arc::clone(&self.peers), Arc::clone(&self.endpoints));
        Ok(Parts { store, local, host, registry, peers, endpoints })
    }

    /// Replaces this host's key pair, and lets the cluster know; returns the state of the tunnel.
    pub fn rotate_key(&self) -> Result<Tunnel, HostError> {
        let agent = self.agent.as_ref().ok_or(HostError::NoKeysInStore)?;
        self.keys.renew_identity()?;
        self.announce_keys(agent);
        self.keys.tunnel()
    }

    /// The endpoints of this host.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// The operator's records.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// The other hosts.
    pub fn peers(&self) -> &PeerHosts {
        &self.peers
    }

    /// The keys of the tunnel, and its state.
    pub fn tunnel_keys(&self) -> &TunnelKeys {
        &self.keys
    }

    /// The attached interfaces.
    pub fn interfaces(&self) -> &Interfaces {
        &self.interfaces
    }

    /// The injected faults.
    pub fn faults(&self) -> &FaultControl {
        &self.faults
    }

    /// The programs' sessions.
    pub fn sessions(&self) -> &SessionServer {
        &self.sessions
    }

    /// The captures.
    pub fn captures(&self) -> &Captures {
        &self.captures
    }

    /// Begins to capture the packets of an endpoint; returns the number of the capture.
    pub fn start_capture(&self, network: Name, name: Name, snap_len: u32) -> Result<u32, HostError> {
        let endpoint = self.endpoints.get(network, name)?.endpoint;
        let network = self.registry.network(&endpoint.network, None, &[])?;
        let gids = gid_table(&endpoint).into_iter().filter(|gid| !gid.is_zero()).collect();
        let filter = CaptureFilter { vni: Vni(network.vni), gids, snap_len: snap_len as usize };
        Ok(self.captures.start(self.workers.shards(), &filter))
    }

    /// Removes a network that nothing of this host or its cluster is on.
    pub fn remove_network(&self, name: &Name) -> Result<(), HostError> {
        if let Some(interface) = self.interfaces.all(name)?.first() {
            let what = format!("interface `{interface}` of this host");
            return Err(RegistryError::NetworkInUse { network: name.clone(), what }.into());
        }
        self.records.remove_network(name)?;
        tracing::info!(network = %name, "network removed");
        Ok(())
    }

    /// Measures the path from the endpoint `name` of `network` to another endpoint's address.
    pub fn probe_path(&self, network: Name, name: Name, order: &ProbePath) -> Result<Vec<PathProbe>, HostError> {
        let endpoint = self.endpoints.get(network, name)?.endpoint;
        let network = self.registry.network(&endpoint.network, None, &[])?;
        probes::run(self.workers.shards(), &endpoint, &network, self.config.io.underlay, order)
    }

    /// The router as a whole.
    pub fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            host: self.config.host.clone(),
            underlay: self.config.io.underlay,
            state_dir: self.config.state.path().to_owned(),
            rootless: self.config.rootless,
            mode: self.config.mode,
            workers: self.workers.shards().len(),
            library: self.endpoints.library().to_owned(),
            endpoints: self.endpoints.count(),
            contexts: self.sessions.snapshot().len(),
            store: self.store(),
        }
    }

    fn store(&self) -> Option<StoreState> {
        let (store, agent) = (self.config.store.as_ref()?, self.agent.as_ref()?);
        Some(agent.allocator().store_state(store.access().clone()))
    }

    /// Counters of each worker.
    pub fn worker_stats(&self) -> Vec<WorkerStats> {
        self.workers.shards().iter().map(|shard| shard.stats()).collect()
    }

    /// Packet counters of each worker's engine.
    pub fn wire_counters(&self) -> Vec<WireCounters> {
        self.workers.shards().iter().map(|shard| shard.call(|shard| shard.engine().wire_counters())).collect()
    }

    /// Counts of what security groups have prevented, in each worker's engine.
    pub fn access_counters(&self) -> Vec<AccessCounters> {
        self.workers.shards().iter().map(|shard| shard.call(|shard| shard.engine().access_counters())).collect()
    }
}

/// Opens the registry, in its file, with the endpoints of a router that has died.
fn open_registry(
    config: &DaemonConfig,
    overlay: Option<&Overlay>,
) -> Result<(Arc<Embedded>, Registry, Vec<Survivor>), HostError> {
    let store = config.state.store();
    let store = Embedded::open(&store).map_err(|source| HostError::Store { path: store, source })?;
    let local = Arc::new(store);
    let registry = Registry::new(Arc::<Embedded>::clone(&local));
    let survivors = restore::survivors(&registry, &config.host, overlay, config.io.underlay)?;
    let removed = restore::remove_stale_directories(&config.state, &survivors);
    removed.map_err(|source| HostError::Store { path: config.state.endpoints(), source })?;
    if let Some(address) = config.io.underlay {
        registry.set_host(&HostRecord::new(config.host.clone(), address))?;
    }
    Ok((local, registry, survivors))
}

fn key_source(config: &DaemonConfig) -> KeySource {
    match config.has_key_pair() {
        true => KeySource::Identity,
        false => KeySource::Operator(config.key.clone().or_else(|| config.peers.key.clone())),
    }
}

fn worker_mode(mode: Mode) -> WorkerMode {
    match mode {
        Mode::Spin => WorkerMode::Spin,
        Mode::Adaptive => WorkerMode::Adaptive,
        Mode::Sleep => WorkerMode::Sleep,
    }
}

/// The threads that serve devices and those that serve programs' commands.
fn start_threads(config: &DaemonConfig) -> Result<(Arc<Workers>, Arc<SessionServer>), HostError> {
    let limits = DeviceLimits::default();
    // Zero lets the workers choose by the number of cores.
    let (count, mode, io) = (config.workers.unwrap_or(0), worker_mode(config.mode), config.io);
    let workers = Workers::start(WorkerConfig { count, mode, limits, io })?;
    let sessions = SessionServer::start(workers.shards().to_vec(), limits, mode);
    let sessions = sessions.map_err(|e| HostError::Start { what: "session server", source: e.into() })?;
    Ok((Arc::new(workers), Arc::new(sessions)))
}

/// The route between endpoints of this host.
fn local_route(config: &DaemonConfig) -> Result<Route, HostError> {
    Ok(match (config.local_path, config.io.underlay) {
        (LocalPath::Memory, _) => Route::Local,
        (LocalPath::Plain, _) => Route::External,
        (LocalPath::Tunnel, underlay) => Route::Host(underlay.ok_or(HostError::NoUnderlay)?),
    })
}

/// Installs the configured firewall rules, or removes those of a router that has died.
fn set_firewall(config: &DaemonConfig) -> Result<(), HostError> {
    let firewall = Firewall::new(config.state.path());
    match (config.firewall, config.rootless) {
        (true, _) => Ok(firewall.install()?),
        (false, false) => Ok(firewall.remove()?),
        (false, true) => Ok(()),
    }
}
