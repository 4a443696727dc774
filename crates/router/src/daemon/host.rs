//! Endpoint lifecycle on this host: creation and removal of an endpoint with everything that belongs to it.

use super::capture::Captures;
use super::config::{DaemonConfig, LocalPath};
use super::error::HostError;
use super::keyring::Keyring;
use super::mesh::{Mesh, Targets};
use super::owners::Owners;
use super::restore::{self, Survivor};
use crate::endpoint::{EndpointDir, EndpointId, Library, gid_table};
use crate::io::Faults;
use crate::session::{
    BadIndices, CmTotals, ConnectionInfo, ContextInfo, EndpointSpec, FailedRequestInfo, SessionServer, SessionTotals,
};
use crate::worker::{Mode as WorkerMode, WorkerConfig, WorkerStats, Workers};
use rdmesh_fabric::api::{CreateEndpoint, EndpointInfo, Lifetime, Mode, Netns, Status};
use rdmesh_fabric::store::Embedded;
use rdmesh_fabric::{Endpoint, EndpointRequest, Host as HostRecord, Isolation, Name, Network, Registry, RegistryError};
use rdmesh_nic::{CaptureFilter, Route, WireCounters};
use rdmesh_overlay::{Errors, Overlay, Underlay};
use rdmesh_verbs::{DeviceLimits, Vni};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A running router without its API.
pub struct Host {
    pub(super) config: DaemonConfig,
    started: Instant,
    library: Library,
    pub(super) registry: Registry,
    /// None in a rootless router.
    pub(super) overlay: Option<Arc<Overlay>>,
    /// Dropped before the workers, which it calls: fields are dropped in this order.
    pub(super) mesh: Mesh,
    sessions: SessionServer,
    pub(super) workers: Workers,
    pub(super) faults: Mutex<Option<Faults>>,
    pub(super) captures: Captures,
    pub(super) keyring: Mutex<Keyring>,
    owners: Owners,
    attached: Mutex<Attached>,
}

/// The endpoints that programs can use.
#[derive(Default)]
struct Attached {
    last_id: u32,
    endpoints: BTreeMap<(Name, Name), AttachedEndpoint>,
}

impl Attached {
    fn next_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }
}

struct AttachedEndpoint {
    id: EndpointId,
    endpoint: Endpoint,
    namespace: Option<PathBuf>,
    owner: Option<OwnedFd>,
    directory: EndpointDir,
}

impl Host {
    /// Starts workers and sessions, and serves the endpoints of a router that has died. The state directory must be this
    /// process's alone.
    pub(crate) fn start(config: DaemonConfig) -> Result<Self, HostError> {
        // First: with keys that cannot be used nothing is begun.
        let keyring = Keyring::open(config.state.clone(), config.key.clone().or_else(|| config.peers.key.clone()))?;
        let installed = config.library.clone().map_or_else(Library::find, Ok)?;
        let library = Library::install(&installed, config.state.path())?;
        let underlay = config.io.underlay.map(Underlay::find).transpose()?;
        let overlay = match config.rootless {
            true => None,
            false => Some(Arc::new(Overlay::new(config.state.clone(), underlay)?)),
        };
        let limits = DeviceLimits::default();
        // Zero lets the workers choose by the number of cores.
        let (count, mode, io) = (config.workers.unwrap_or(0), worker_mode(config.mode), config.io);
        let worker_config = WorkerConfig { count, mode, limits, io };
        let started = |what| move |source: rustix::io::Errno| HostError::Start { what, source: source.into() };
        let workers = Workers::start(worker_config)?;
        let sessions =
            SessionServer::start(workers.shards().to_vec(), limits, mode).map_err(started("session server"))?;
        let store = config.state.store();
        let store = Embedded::open(&store).map_err(|source| HostError::Store { path: store, source })?;
        let registry = Registry::new(Arc::new(store));
        let survivors = restore::survivors(&registry, &config.host, overlay.as_deref(), config.io.underlay)?;
        let removed = restore::remove_stale_directories(&config.state, &survivors);
        removed.map_err(|source| HostError::Store { path: config.state.endpoints(), source })?;
        if let Some(address) = config.io.underlay {
            registry.set_host(&HostRecord { name: config.host.clone(), address })?;
        }
        let local = match (config.local_path, config.io.underlay) {
            (LocalPath::Memory, _) => Route::Local,
            (LocalPath::Plain, _) => Route::Outside,
            (LocalPath::Tunnel, underlay) => Route::Host(underlay.ok_or(HostError::NoUnderlay)?),
        };
        let (host, shards, overlay_too) = (config.host.clone(), workers.shards().to_vec(), overlay.clone());
        let targets = Targets { host, shards, overlay: overlay_too, local };
        let mesh =
            Mesh::start(registry.watch()?, targets).map_err(|source| HostError::Start { what: "mesh", source })?;
        let owners = Owners::new().map_err(started("watch over owners"))?;
        let (attached, captures) = (Mutex::default(), Captures::default());
        let (started, faults) = (Instant::now(), Mutex::new(config.io.faults));
        let keyring = Mutex::new(keyring);
        let host = Self {
            config,
            started,
            library,
            registry,
            overlay,
            mesh,
            sessions,
            workers,
            faults,
            captures,
            keyring,
            owners,
            attached,
        };
        if host.config.local_path == LocalPath::Tunnel {
            host.set_key_of_own()?;
        }
        host.set_firewall()?;
        host.restore_keys()?;
        host.restore(survivors)?;
        host.add_peers(&host.config.peers)?;
        Ok(host)
    }

    /// The captures.
    pub fn captures(&self) -> &Captures {
        &self.captures
    }

    /// Begins to capture the packets of an endpoint; returns the number of the capture.
    pub fn start_capture(&self, network: Name, name: Name, snap_len: u32) -> Result<u32, HostError> {
        let endpoint = self.endpoint(network, name)?.endpoint;
        let network = self.registry.network(&endpoint.network, None, &[])?;
        let gids = gid_table(&endpoint).into_iter().filter(|gid| !gid.is_zero()).collect();
        let filter = CaptureFilter { vni: Vni(network.vni), gids, snap_len: snap_len as usize };
        Ok(self.captures.start(self.workers.shards(), &filter))
    }

    /// Serves the endpoints of a router that has died again. One that cannot be is removed, and the log says why.
    fn restore(&self, survivors: Vec<Survivor>) -> Result<(), HostError> {
        for Survivor { endpoint, owner } in survivors {
            let (network, name) = (endpoint.network.clone(), endpoint.name.clone());
            match self.take_in(&endpoint, owner) {
                Ok(()) => tracing::info!(%network, %name, "endpoint restored"),
                Err(error) => {
                    tracing::error!(%network, %name, %error, "an endpoint cannot be restored");
                    self.forget(&endpoint)?;
                }
            }
        }
        Ok(())
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
            library: self.library.path().to_owned(),
            endpoints: self.attached().endpoints.len(),
            contexts: self.sessions.snapshot().len(),
        }
    }

    /// All networks.
    pub fn networks(&self) -> Result<Vec<Network>, HostError> {
        Ok(self.registry.networks()?)
    }

    /// All endpoints, by network and name.
    pub fn endpoints(&self) -> Vec<EndpointInfo> {
        self.attached().endpoints.values().map(AttachedEndpoint::info).collect()
    }

    /// One endpoint.
    pub fn endpoint(&self, network: Name, name: Name) -> Result<EndpointInfo, HostError> {
        let key = (network, name);
        let attached = self.attached();
        attached.endpoints.get(&key).map(AttachedEndpoint::info).ok_or_else(|| no_such(&key))
    }

    /// All open contexts.
    pub fn contexts(&self) -> Vec<ContextInfo> {
        self.sessions.snapshot()
    }

    /// All `rdma_cm_id`s.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.sessions.connections()
    }

    /// Recent failed requests of programs.
    pub fn failed_requests(&self) -> Vec<FailedRequestInfo> {
        self.sessions.failed_requests()
    }

    /// Indices beyond the ends of their queues, for each endpoint.
    pub fn bad_indices(&self) -> Vec<BadIndices> {
        self.sessions.bad_indices()
    }

    /// Counts and counters of rdma_cm.
    pub fn cm_totals(&self) -> CmTotals {
        self.sessions.cm_totals()
    }

    /// Counters of the sessions.
    pub fn session_totals(&self) -> SessionTotals {
        self.sessions.totals()
    }

    /// Counters of each worker.
    pub fn worker_stats(&self) -> Vec<WorkerStats> {
        self.workers.shards().iter().map(|shard| shard.stats()).collect()
    }

    /// Packet counters of each worker's engine.
    pub fn wire_counters(&self) -> Vec<WireCounters> {
        self.workers.shards().iter().map(|shard| shard.call(|shard| shard.engine().wire_counters())).collect()
    }

    /// Makes an endpoint for process `caller`.
    pub fn create_endpoint(&self, request: CreateEndpoint, caller: i32) -> Result<EndpointInfo, HostError> {
        let isolation = isolation(&request)?;
        if isolation.has_interface() && self.overlay.is_none() {
            return Err(HostError::Rootless);
        }
        let owned = request.lifetime == Lifetime::Caller;
        let unwatchable = |source: io::Error| HostError::Owner { pid: caller, source };
        let owner = if owned { Some(Owners::open(caller).map_err(|e| unwatchable(e.into()))?) } else { None };
        let mut attached = self.attached();
        self.remove_dead(&mut attached)?;
        let added = self.registry.add_endpoint(EndpointRequest {
            name: request.name,
            network: request.network,
            vni: request.vni,
            host: self.config.host.clone(),
            addresses: request.addresses,
            quota: request.quota,
            allowed_uid: request.allowed_uid,
            owner_pid: owned.then_some(caller),
            isolation,
        })?;
        let (endpoint, network) = (added.endpoint, added.network);
        if owned {
            // The endpoint of a caller that has ended already is removed soon.
            let _ = restore::identity(caller).map(|own| self.registry.set_owner(&network.name, &endpoint.name, &own));
        }
        // Another endpoint may be waiting to reach it already.
        self.mesh.wait_for(added.revision);
        let adopted = request.netns.map_or(Ok(()), |netns| self.adopt(&endpoint, netns, caller));
        match adopted.and_then(|()| self.serve(&mut attached, &endpoint, &network, owner)) {
            Ok(info) => {
                tracing::info!(network = %info.endpoint.network, name = %info.endpoint.name, "endpoint added");
                Ok(info)
            }
            Err(error) => Err(Errors::join(error, self.forget(&endpoint))),
        }
    }

    /// Removes an endpoint: its contexts are closed, its namespace and its directory go. Returns what it was.
    pub fn remove_endpoint(&self, network: Name, name: Name) -> Result<EndpointInfo, HostError> {
        self.remove(&mut self.attached(), &(network, name))
    }

    /// Removes endpoints as their owners end, until [`Host::stop_watching`].
    pub(crate) fn remove_orphans(&self) {
        while let Some(id) = self.owners.next() {
            if let Err(error) = self.remove_orphan(id) {
                tracing::warn!(%error, "removing an endpoint whose owner has ended");
            }
        }
    }

    /// Ends [`Host::remove_orphans`].
    pub(crate) fn stop_watching(&self) {
        self.owners.stop();
    }

    /// Removes the endpoint `id`, unless it is gone already.
    fn remove_orphan(&self, id: EndpointId) -> Result<(), HostError> {
        let mut attached = self.attached();
        let key = attached.endpoints.iter().find(|(_, e)| e.id == id).map(|(key, _)| key.clone());
        key.map_or(Ok(()), |key| self.remove(&mut attached, &key).map(drop))
    }

    /// Removes all endpoints.
    pub(crate) fn clear(&self) -> Result<(), HostError> {
        let mut attached = self.attached();
        let keys: Vec<_> = attached.endpoints.keys().cloned().collect();
        Errors::all(keys.iter().map(|key| self.remove(&mut attached, key).map(drop)))
    }

    /// Removes endpoints whose owners have ended a moment ago.
    pub(crate) fn forget_dead(&self) -> Result<(), HostError> {
        self.remove_dead(&mut self.attached())
    }

    /// Removes endpoints whose owners have ended a moment ago: their names and addresses are free again.
    fn remove_dead(&self, attached: &mut Attached) -> Result<(), HostError> {
        let dead = attached.endpoints.iter().filter(|(_, endpoint)| endpoint.is_orphan());
        let keys: Vec<_> = dead.map(|(key, _)| key.clone()).collect();
        Errors::all(keys.iter().map(|key| self.remove(attached, key).map(drop)))
    }

    /// Serves an endpoint that a router which has died had registered.
    pub(super) fn take_in(&self, endpoint: &Endpoint, owner: Option<OwnedFd>) -> Result<(), HostError> {
        let network = self.registry.network(&endpoint.network, None, &endpoint.addresses)?;
        self.serve(&mut self.attached(), endpoint, &network, owner).map(drop)
    }

    /// Takes the network namespace that process `caller` gives to `endpoint`.
    fn adopt(&self, endpoint: &Endpoint, netns: Netns, caller: i32) -> Result<(), HostError> {
        let file = match netns {
            Netns::Descriptor(number) => PathBuf::from(format!("/proc/{caller}/fd/{number}")),
            Netns::Path(path) => path,
        };
        let overlay = self.overlay.as_ref().ok_or(HostError::Rootless)?;
        overlay.adopt(endpoint, &file).map_err(HostError::Given)
    }

    /// Opens `endpoint`, which is registered, to programs.
    fn serve(
        &self,
        attached: &mut Attached,
        endpoint: &Endpoint,
        network: &Network,
        owner: Option<OwnedFd>,
    ) -> Result<EndpointInfo, HostError> {
        let id = EndpointId(attached.next_id());
        let unwatchable =
            |e: rustix::io::Errno| HostError::Owner { pid: endpoint.owner_pid.unwrap_or_default(), source: e.into() };
        owner.as_ref().map_or(Ok(()), |owner| self.owners.watch(owner.as_fd(), id)).map_err(unwatchable)?;
        let made = self.attach(id, endpoint, network, owner)?;
        let info = made.info();
        attached.endpoints.insert((endpoint.network.clone(), endpoint.name.clone()), made);
        Ok(info)
    }

    fn attach(
        &self,
        id: EndpointId,
        endpoint: &Endpoint,
        network: &Network,
        owner: Option<OwnedFd>,
    ) -> Result<AttachedEndpoint, HostError> {
        let namespace = match (&self.overlay, endpoint.isolation) {
            (Some(overlay), Isolation::Namespace | Isolation::Given) => Some(overlay.add_endpoint(network, endpoint)?),
            _ => None,
        };
        let path = self.config.state.endpoint(endpoint);
        let (directory, listener) = EndpointDir::create(&path, endpoint, &self.library)?;
        let spec = EndpointSpec {
            id,
            name: endpoint.name.to_string(),
            network: endpoint.network.to_string(),
            vni: Vni(network.vni),
            gids: gid_table(endpoint),
            quota: endpoint.quota,
            allowed_uid: endpoint.allowed_uid,
        };
        self.sessions.add_endpoint(spec, listener);
        Ok(AttachedEndpoint { id, endpoint: endpoint.clone(), namespace, owner, directory })
    }

    fn remove(&self, attached: &mut Attached, key: &(Name, Name)) -> Result<EndpointInfo, HostError> {
        let removed = attached.endpoints.remove(key).ok_or_else(|| no_such(key))?;
        self.sessions.remove_endpoint(removed.id);
        let info = removed.info();
        drop(removed);
        self.forget(&info.endpoint)?;
        tracing::info!(network = %key.0, name = %key.1, "endpoint removed");
        Ok(info)
    }

    /// Removes what is kept of an endpoint elsewhere: its namespace, and its place in the registry.
    pub(super) fn forget(&self, endpoint: &Endpoint) -> Result<(), HostError> {
        let unlinked = match (&self.overlay, endpoint.isolation) {
            (Some(overlay), Isolation::Namespace | Isolation::Given) => overlay.remove_endpoint(endpoint),
            _ => Ok(()),
        };
        let removed = self.registry.remove_endpoint(&endpoint.network, &endpoint.name);
        Errors::all([unlinked.map_err(HostError::from), removed.map(drop).map_err(HostError::from)])
    }

    fn attached(&self) -> MutexGuard<'_, Attached> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AttachedEndpoint {
    fn info(&self) -> EndpointInfo {
        EndpointInfo {
            endpoint: self.endpoint.clone(),
            directory: self.directory.path().to_owned(),
            namespace: self.namespace.clone(),
        }
    }

    /// Whether the process that it goes with has ended.
    fn is_orphan(&self) -> bool {
        let Some(owner) = &self.owner else { return false };
        let mut fds = [PollFd::from_borrowed_fd(owner.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

/// The isolation that a request asks for. A namespace that is given needs no further word.
fn isolation(request: &CreateEndpoint) -> Result<Isolation, HostError> {
    match (request.isolation, &request.netns) {
        (Isolation::None, Some(_)) => Err(HostError::NeedlessNetns),
        (Isolation::Given, None) => Err(HostError::MissingNetns),
        (_, Some(_)) => Ok(Isolation::Given),
        (isolation, None) => Ok(isolation),
    }
}

fn no_such((network, name): &(Name, Name)) -> HostError {
    RegistryError::NoSuchEndpoint { name: name.clone(), network: network.clone() }.into()
}

fn worker_mode(mode: Mode) -> WorkerMode {
    match mode {
        Mode::Spin => WorkerMode::Spin,
        Mode::Adaptive => WorkerMode::Adaptive,
        Mode::Sleep => WorkerMode::Sleep,
    }
}
