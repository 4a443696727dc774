//! Endpoint lifecycle on this host: creation and removal of an endpoint with everything that belongs to it.

mod attached;
mod confined;
mod members;
mod orphans;
mod pools;

use super::cluster::Allocator;
use super::config::DaemonConfig;
use super::error::HostError;
use super::mesh::Mesh;
use super::owners::Owners;
use super::policies::Policies;
use super::restore::{self, Survivor};
use crate::daemon::full_name::FullName;
use crate::endpoint::{EndpointDir, EndpointError, EndpointId, Library, gid_table};
use crate::errands::Errands;
use crate::session::{EndpointSpec, QueueRow, SessionServer, StepRow};
use attached::{AttachedEndpoint, RelayedEndpoint};
use members::Members;
use rdmesh_fabric::api::{
    ControlChain, CreateEndpoint, EndpointInfo, Lifetime, MoveDevices, Netns, ScopePolicy, SetChainSteps, TraceChain,
};
use rdmesh_fabric::{
    Endpoint, EndpointRequest, Isolation, Name, Network, PolicyScope, Quota, Registry, RegistryError, default_tenant,
};
use rdmesh_overlay::{Errors, NamespaceId, Overlay};
use rdmesh_relay::Relays;
use rdmesh_streams::table;
use rdmesh_uverbs::session::SOCKET_NAME;
use rdmesh_verbs::Vni;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The endpoints of this host.
pub struct Endpoints {
    config: Arc<DaemonConfig>,
    library: Library,
    registry: Registry,
    /// None in a rootless router.
    overlay: Option<Arc<Overlay>>,
    mesh: Arc<Mesh>,
    /// None where the host is in no cluster.
    allocator: Option<Arc<Allocator>>,
    policies: Policies,
    relays: Relays,
    /// Dropped before the directories: fields are dropped in this order.
    sessions: Arc<SessionServer>,
    owners: Owners,
    attached: Mutex<Attached>,
    /// Those that the endpoints of pools have, by network and pool.
    pool_libraries: Mutex<BTreeMap<FullName, Library>>,
    /// Held by who changes the size of a pool.
    resizing: Mutex<()>,
    /// Control groups of endpoints that were released, until their processes have ended.
    leftovers: Errands,
}

/// The endpoints that programs can use.
#[derive(Default)]
struct Attached {
    last_id: u32,
    endpoints: BTreeMap<FullName, AttachedEndpoint>,
    pools: BTreeMap<FullName, Members>,
}

impl Attached {
    fn next_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }
}

/// A process that asks for an endpoint which goes with it.
#[derive(Clone, Copy)]
struct Caller<'a> {
    pid: i32,
    process: BorrowedFd<'a>,
}

/// Parts of the router that endpoints are made with.
pub(super) struct EndpointParts {
    pub(super) config: Arc<DaemonConfig>,
    pub(super) library: Library,
    pub(super) registry: Registry,
    /// None without privilege.
    pub(super) overlay: Option<Arc<Overlay>>,
    pub(super) mesh: Arc<Mesh>,
    /// None without a cluster.
    pub(super) allocator: Option<Arc<Allocator>>,
    pub(super) sessions: Arc<SessionServer>,
}

impl Endpoints {
    /// No endpoints yet.
    pub(super) fn new(parts: EndpointParts) -> Result<Self, HostError> {
        let EndpointParts { config, library, registry, overlay, mesh, allocator, sessions } = parts;
        let policies = Policies::new(config.host.clone(), registry.clone())?;
        let started = |e: rustix::io::Errno| HostError::Start { what: "watch over owners", source: e.into() };
        let relays = Relays::start().map_err(|e| HostError::Start { what: "relays", source: e.into() })?;
        let pool_libraries = Mutex::default();
        let (owners, attached, resizing) = (Owners::new().map_err(started)?, Mutex::default(), Mutex::default());
        Ok(Self {
            config,
            library,
            registry,
            overlay,
            mesh,
            allocator,
            policies,
            relays,
            sessions,
            owners,
            attached,
            pool_libraries,
            resizing,
            leftovers: Errands::new("rdmesh-cgroup"),
        })
    }

    /// All endpoints, by network and name.
    pub fn all(&self) -> Vec<EndpointInfo> {
        self.attached().endpoints.values().map(AttachedEndpoint::info).collect()
    }

    /// One endpoint.
    pub fn get(&self, network: Name, name: Name) -> Result<EndpointInfo, HostError> {
        let key = FullName::new(network, name);
        let attached = self.attached();
        attached.endpoints.get(&key).map(AttachedEndpoint::info).ok_or_else(|| no_such(&key))
    }

    /// Counters of the endpoints' relays.
    pub(crate) fn relayed(&self) -> Vec<RelayedEndpoint> {
        self.attached().endpoints.values().map(AttachedEndpoint::relayed).collect()
    }

    /// Number of endpoints.
    pub(super) fn count(&self) -> usize {
        self.attached().endpoints.len()
    }

    /// The preload library that they have.
    pub(super) fn library(&self) -> &Path {
        self.library.path()
    }

    /// Serves the endpoints of a router that has died again. One that cannot be is removed, and the log says why.
    pub(super) fn restore(&self, survivors: Vec<Survivor>) -> Result<(), HostError> {
        for Survivor { endpoint, owner } in survivors {
            let FullName { network, name } = FullName::of(&endpoint);
            match self.take_in(&endpoint, owner) {
                Ok(()) => tracing::info!(%network, %name, "endpoint restored"),
                Err(error) => {
                    tracing::error!(%network, %name, %error, "cannot restore endpoint");
                    self.forget(&endpoint)?;
                }
            }
        }
        self.pools().restore()
    }

    /// Makes an endpoint for process `caller`, or lets it take over one that lingers.
    pub fn create(&self, mut request: CreateEndpoint, caller: i32) -> Result<EndpointInfo, HostError> {
        if isolation(&request)?.has_interface() && self.overlay.is_none() {
            return Err(HostError::Rootless);
        }
        if let Some(info) = self.make_room(&request, caller)? {
            return Ok(info);
        }
        let Some(allocator) = &self.allocator else { return self.make(request, caller) };
        // While nothing is locked: it may wait for the store.
        let CreateEndpoint { network, vni, name, addresses, .. } = &request;
        request.addresses = allocator.take(network, *vni, name, addresses)?;
        let (network, name, addresses) = (request.network.clone(), request.name.clone(), request.addresses.clone());
        let made = self.make(request, caller);
        match &made {
            Ok(_) => allocator.publish(),
            Err(_) => allocator.give_back(&network, &name, addresses),
        }
        made
    }

    /// Ends what a new endpoint comes after; the endpoint where one lingers that `caller` takes over.
    fn make_room(&self, request: &CreateEndpoint, caller: i32) -> Result<Option<EndpointInfo>, HostError> {
        let mut attached = self.attached();
        self.remove_dead(&mut attached, |endpoint| {
            // Unless the new one is to have its name or an address of it.
            let Endpoint { network, name, addresses, .. } = &endpoint.endpoint;
            let is_in_the_way = *network == request.network
                && (*name == request.name || request.addresses.iter().any(|address| addresses.contains(address)));
            !is_in_the_way && endpoint.is_delivering()
        })?;
        if request.lifetime != Lifetime::Caller {
            return Ok(None);
        }
        let process = owner(caller)?;
        self.settle_lingering(&mut attached, request, Caller { pid: caller, process: process.as_fd() })
    }

    fn make(&self, request: CreateEndpoint, caller: i32) -> Result<EndpointInfo, HostError> {
        let isolation = isolation(&request)?;
        let owned = request.lifetime == Lifetime::Caller;
        let owner = if owned { Some(owner(caller)?) } else { None };
        let mut attached = self.attached();
        let quota = self.quota(&request)?;
        self.check_tenant(&request.network, attached.endpoints.values())?;
        let added = self.registry.add_endpoint(EndpointRequest {
            name: request.name,
            network: request.network,
            vni: request.vni,
            host: self.config.host.clone(),
            addresses: request.addresses,
            quota,
            allowed_uid: request.allowed_uid,
            owner_pid: owned.then_some(caller),
            isolation,
            interface: request.interface.unwrap_or_default(),
            pool: None,
            labels: request.labels,
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

    /// Deals with an endpoint of the name that is asked for whose owner has ended, and which is kept for devices that outlive their
    /// programs: `caller` takes it over where it asks for that and may, else it is removed.
    fn settle_lingering(
        &self,
        attached: &mut Attached,
        request: &CreateEndpoint,
        caller: Caller<'_>,
    ) -> Result<Option<EndpointInfo>, HostError> {
        let key = FullName::new(request.network.clone(), request.name.clone());
        let Some(endpoint) = attached.endpoints.get_mut(&key).filter(|endpoint| endpoint.is_orphan()) else {
            return Ok(None);
        };
        if !request.take_over {
            tracing::warn!(network = %key.network, name = %key.name, "devices that outlived their programs are ended for a new endpoint");
            return self.remove_attached(attached, &key).map(|_| None);
        }
        if let Some(why) = endpoint.refusal(request, caller.pid) {
            return Err(HostError::Lingering { name: key.name, network: key.network, why });
        }
        let unwatchable = |e: rustix::io::Errno| HostError::Owner { pid: caller.pid, source: e.into() };
        let owner = rustix::io::fcntl_dupfd_cloexec(caller.process, 0).map_err(unwatchable)?;
        self.owners.watch(owner.as_fd(), endpoint.id).map_err(unwatchable)?;
        (endpoint.owner, endpoint.ending) = (Some(owner), None);
        endpoint.endpoint.owner_pid = Some(caller.pid);
        let _ = restore::identity(caller.pid).map(|own| self.registry.set_owner(&key.network, &key.name, &own));
        tracing::info!(network = %key.network, name = %key.name, "endpoint taken over");
        Ok(Some(endpoint.info()))
    }

    /// Moves the devices of an endpoint to another worker, or only those of process `pid`. Returns how many there are.
    pub fn move_devices(&self, network: Name, name: Name, to: MoveDevices) -> Result<usize, HostError> {
        let key = FullName::new(network, name);
        let id = self.attached().endpoints.get(&key).map(|endpoint| endpoint.id).ok_or_else(|| no_such(&key))?;
        Ok(self.sessions.move_devices(id, to.pid, to.worker as usize)?)
    }

    /// Stops, resumes or ends a group of managed queues of an endpoint.
    pub fn control_chain(&self, network: Name, name: Name, order: ControlChain) -> Result<(), HostError> {
        let key = FullName::new(network, name);
        let id = self.attached().endpoints.get(&key).map(|endpoint| endpoint.id).ok_or_else(|| no_such(&key))?;
        Ok(self.sessions.control_chain(id, order)?)
    }

    /// Ends the devices of an endpoint that have outlived their programs, or only one of them. Returns how many there were.
    pub fn end_lingering(&self, network: Name, name: Name, device: Option<u32>) -> Result<usize, HostError> {
        let key = FullName::new(network, name);
        let mut attached = self.attached();
        let id = attached.endpoints.get(&key).map(|endpoint| endpoint.id).ok_or_else(|| no_such(&key))?;
        let ended = self.sessions.end_lingering(id, device);
        // An endpoint whose owner has ended was there for them only.
        self.remove_dead(&mut attached, |_| false).map(|()| ended)
    }

    /// The queues of a group of managed queues of an endpoint, with their slots.
    pub fn inspect_chain(
        &self,
        network: Name,
        name: Name,
        device: u32,
        group: u32,
    ) -> Result<Vec<QueueRow>, HostError> {
        let key = FullName::new(network, name);
        let id = self.attached().endpoints.get(&key).map(|endpoint| endpoint.id).ok_or_else(|| no_such(&key))?;
        Ok(self.sessions.inspect_chain(id, device, group)?)
    }

    /// Records the requests that a group of managed queues executes, and returns those that were recorded.
    pub fn trace_chain(&self, network: Name, name: Name, trace: TraceChain) -> Result<Vec<StepRow>, HostError> {
        let key = FullName::new(network, name);
        let id = self.attached().endpoints.get(&key).map(|endpoint| endpoint.id).ok_or_else(|| no_such(&key))?;
        Ok(self.sessions.trace_chain(id, trace)?)
    }

    /// Sets the budget of steps of an endpoint's chains, on devices that are open too.
    pub fn set_chain_steps(&self, network: Name, name: Name, steps: SetChainSteps) -> Result<EndpointInfo, HostError> {
        let key = FullName::new(network, name);
        let mut attached = self.attached();
        let endpoint = attached.endpoints.get_mut(&key).ok_or_else(|| no_such(&key))?;
        let quota = Quota { chain_steps: steps.per_second, ..endpoint.endpoint.quota };
        endpoint.endpoint = self.registry.set_quota(&key.network, &key.name, quota)?;
        self.sessions.set_chain_steps(endpoint.id, steps.per_second);
        Ok(endpoint.info())
    }

    /// All policies, by scope.
    pub fn policies(&self) -> Vec<ScopePolicy> {
        let all = self.policies.all().into_iter();
        all.map(|(scope, policy)| ScopePolicy { scope, policy: Some(policy) }).collect()
    }

    /// Sets the policy of a scope, or removes it. Rates, priorities and weights hold at once, quotas for endpoints to come.
    pub fn set_policy(&self, ScopePolicy { scope, policy }: ScopePolicy) -> Result<(), HostError> {
        let attached = self.attached();
        let is_removal = policy.is_none();
        if !self.policies.set(scope.clone(), policy)? && is_removal {
            return Err(HostError::NoSuchPolicy(scope));
        }
        for endpoint in attached.endpoints.values() {
            self.sessions.set_policy(endpoint.id, self.policies.of(&endpoint.network, &endpoint.endpoint));
        }
        Ok(())
    }

    /// An error where a network's tenant has as many endpoints here as it may.
    fn check_tenant<'a>(
        &self,
        network: &Name,
        mut here: impl Iterator<Item = &'a AttachedEndpoint>,
    ) -> Result<(), HostError> {
        let name = self.registry.find_network(network)?.map_or_else(default_tenant, |network| network.tenant);
        let tenant = self.registry.tenants()?.into_iter().find(|tenant| tenant.name == name);
        let Some(most) = tenant.and_then(|tenant| tenant.max_endpoints_per_host) else { return Ok(()) };
        let last = here.by_ref().filter(|endpoint| endpoint.network.tenant == name).nth(most as usize - 1);
        last.map_or(Ok(()), |_| Err(RegistryError::TooManyEndpoints(name).into()))
    }

    /// The quota of an endpoint that is asked for: what its policy allows, at most.
    fn quota(&self, request: &CreateEndpoint) -> Result<Quota, HostError> {
        if !self.policies.has_any() {
            return Ok(request.quota);
        }
        let known = self.registry.networks()?.into_iter().find(|network| network.name == request.network);
        let tenant = known.map_or_else(default_tenant, |network| network.tenant);
        let allowed = self.policies.effective(&tenant, &request.network, &request.name).quota;
        Ok(allowed.map_or(request.quota, |allowed| request.quota.within(allowed)))
    }

    /// Removes an endpoint: its contexts are closed, its namespace and its directory go. Returns what it was.
    pub fn remove(&self, network: Name, name: Name) -> Result<EndpointInfo, HostError> {
        let (mut attached, key) = (self.attached(), FullName::new(network, name));
        if let Some(pool) = attached.endpoints.get(&key).and_then(|attached| attached.endpoint.pool.as_ref()) {
            return Err(HostError::OfPool { name: key.name, pool: pool.name.clone() });
        }
        self.remove_attached(&mut attached, &key)
    }

    /// Removes all endpoints.
    pub(crate) fn clear(&self) -> Result<(), HostError> {
        let mut attached = self.attached();
        let pools: Vec<_> = attached.pools.keys().cloned().collect();
        let cleared = Errors::all(pools.iter().map(|key| self.pools().dissolve(&mut attached, key)));
        let keys: Vec<_> = attached.endpoints.keys().cloned().collect();
        Errors::all([cleared, Errors::all(keys.iter().map(|key| self.remove_attached(&mut attached, key).map(drop)))])
    }

    /// Serves an endpoint that a router which has died had registered.
    fn take_in(&self, endpoint: &Endpoint, owner: Option<OwnedFd>) -> Result<(), HostError> {
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
        attached.endpoints.insert(FullName::of(endpoint), made);
        Ok(info)
    }

    fn attach(
        &self,
        id: EndpointId,
        endpoint: &Endpoint,
        network: &Network,
        owner: Option<OwnedFd>,
    ) -> Result<AttachedEndpoint, HostError> {
        let namespace = match (&self.overlay, endpoint.isolation.has_interface()) {
            (Some(overlay), true) => Some(overlay.add_endpoint(network, endpoint)?),
            _ => None,
        };
        self.open(id, endpoint, network, namespace, owner)
    }

    /// Makes the device of an endpoint whose namespace is ready.
    fn open(
        &self,
        id: EndpointId,
        endpoint: &Endpoint,
        network: &Network,
        namespace: Option<PathBuf>,
        owner: Option<OwnedFd>,
    ) -> Result<AttachedEndpoint, HostError> {
        let path = self.config.state.endpoint(endpoint);
        let library = self.pools().library_of(endpoint)?;
        let (directory, listeners) = EndpointDir::create(&path, endpoint, &library)?;
        let spec = EndpointSpec {
            id,
            name: endpoint.name.to_string(),
            network: endpoint.network.to_string(),
            vni: Vni(network.vni),
            gids: gid_table(endpoint),
            quota: endpoint.quota,
            policy: self.policies.of(network, endpoint),
            allowed_uid: endpoint.allowed_uid,
            namespace: namespace.clone(),
        };
        self.sessions.add_endpoint(spec, listeners.verbs);
        let failed = |e: rustix::io::Errno| EndpointError::Io { path: path.clone(), source: e.into() };
        let relay = self.relays.add(&path.join(SOCKET_NAME), listeners.streams).map_err(failed)?;
        let owner_uid = endpoint.owner_pid.and_then(restore::user);
        let (endpoint, network) = (endpoint.clone(), network.clone());
        Ok(AttachedEndpoint {
            id,
            endpoint,
            network,
            namespace,
            owner,
            owner_uid,
            relay,
            ending: None,
            confinement: None,
            directory,
        })
    }

    fn remove_attached(&self, attached: &mut Attached, key: &FullName) -> Result<EndpointInfo, HostError> {
        let removed = attached.endpoints.remove(key).ok_or_else(|| no_such(key))?;
        self.sessions.remove_endpoint(removed.id);
        self.policies.forget(&key.network, &key.name);
        let info = removed.info();
        let namespace = removed.namespace.as_deref().and_then(NamespaceId::of);
        drop(removed);
        self.forget(&info.endpoint)?;
        if info.endpoint.isolation == Isolation::Namespace {
            remove_tables(namespace);
        }
        tracing::info!(network = %key.network, name = %key.name, "endpoint removed");
        Ok(info)
    }

    /// Removes what is kept of an endpoint elsewhere: its namespace, and its place in the registry.
    fn forget(&self, endpoint: &Endpoint) -> Result<(), HostError> {
        let unlinked = match (&self.overlay, endpoint.isolation) {
            (Some(overlay), Isolation::Pool) => overlay.remove_members(std::slice::from_ref(endpoint)),
            (Some(overlay), Isolation::Namespace | Isolation::Given) => overlay.remove_endpoint(endpoint),
            _ => Ok(()),
        };
        let removed = self.registry.remove_endpoint(&endpoint.network, &endpoint.name);
        if let Some(allocator) = &self.allocator {
            allocator.release(endpoint.clone());
        }
        Errors::all([unlinked.map_err(HostError::from), removed.map(drop).map_err(HostError::from)])
    }

    /// Removes a network without endpoints and pools from the registry, with the policies of endpoints that it had. None is made
    /// meanwhile.
    pub(super) fn remove_network(&self, name: &Name) -> Result<(), HostError> {
        let _attached = self.attached();
        self.registry.remove_network(name)?;
        let is_its = |scope: &PolicyScope| matches!(scope, PolicyScope::Endpoint { network, .. } if network == name);
        let mut left = self.policies.all().into_iter().map(|(scope, _)| scope).filter(is_its);
        Ok(left.try_for_each(|scope| self.policies.set(scope, None).map(drop))?)
    }

    fn attached(&self) -> MutexGuard<'_, Attached> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the tables of accelerated programs in `/dev/shm` that are of a namespace which the router has ended.
fn remove_tables(namespace: Option<NamespaceId>) {
    let removed = namespace.map_or(Ok(()), |namespace| table::remove_all(namespace.inode()));
    if let Err(error) = removed {
        tracing::warn!(%error, "cannot remove what accelerated programs have left in /dev/shm");
    }
}

/// The process that an endpoint goes with.
fn owner(pid: i32) -> Result<OwnedFd, HostError> {
    Owners::open(pid).map_err(|e| HostError::Owner { pid, source: e.into() })
}

/// The isolation that a request asks for. A namespace that is given needs no further word.
fn isolation(request: &CreateEndpoint) -> Result<Isolation, HostError> {
    match (request.isolation, &request.netns) {
        (Isolation::None, _) if request.interface.is_some() => Err(HostError::NeedlessInterface),
        (Isolation::None, Some(_)) => Err(HostError::NeedlessNetns),
        (Isolation::Given, None) => Err(HostError::MissingNetns),
        (Isolation::Pool, _) => Err(HostError::MissingPool),
        (_, Some(_)) => Ok(Isolation::Given),
        (isolation, None) => Ok(isolation),
    }
}

fn no_such(FullName { network, name }: &FullName) -> HostError {
    RegistryError::NoSuchEndpoint { name: name.clone(), network: network.clone() }.into()
}
