//! Pools of this host's endpoints: made before they are needed, acquired, released, and at rest in between.
//!
//! A member is an endpoint like any other, but for its network namespace, which all of its pool share. What it costs is paid when
//! the pool is made and when a member is released; to acquire one changes who has it, and nothing else.

use super::confined;
use super::members::Members;
use super::{Attached, AttachedEndpoint, EndpointId, Endpoints, remove_tables};
use crate::daemon::error::HostError;
use crate::daemon::full_name::FullName;
use crate::daemon::owners::Owners;
use crate::daemon::restore;
use crate::endpoint::Library;
use rdmesh_fabric::api::{AcquireEndpoints, EndpointInfo, Lifetime, PoolInfo, ReleaseEndpoints};
use rdmesh_fabric::{
    Acquisition, Endpoint, EndpointRequest, InterfaceName, Isolation, JoinPool, Labels, Name, Network, Pool,
    RegistryError, Validate,
};
use rdmesh_overlay::{Errors, NamespaceId, check_confinement};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;
use std::time::Instant;

/// The pools among this host's endpoints.
#[derive(Clone, Copy)]
pub struct Pools<'a> {
    endpoints: &'a Endpoints,
}

impl Endpoints {
    /// The pools.
    pub fn pools(&self) -> Pools<'_> {
        Pools { endpoints: self }
    }
}

impl Pools<'_> {
    /// All pools, by network and name.
    pub fn all(&self) -> Vec<PoolInfo> {
        let mut attached = self.endpoints.attached();
        let now = Instant::now();
        attached.pools.values_mut().for_each(|members| members.wake(now));
        attached.pools.values().map(|members| self.pool_info(members)).collect()
    }

    /// Makes a pool, or changes its size and its time of rest.
    pub fn set(&self, pool: Pool) -> Result<PoolInfo, HostError> {
        pool.validate().map_err(RegistryError::Invalid)?;
        if self.endpoints.overlay.is_none() {
            return Err(HostError::Rootless);
        }
        if !pool.shares_addresses {
            let unconfined = |source| HostError::Unconfined { name: pool.name.clone(), source };
            check_confinement().map_err(unconfined)?;
        }
        let _resizing = self.endpoints.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let key = FullName::new(pool.network.clone(), pool.name.clone());
        let is_new = {
            let mut attached = self.endpoints.attached();
            let known = attached.pools.get(&key).map(|members| &members.pool);
            let is_new = known.is_none();
            // All but its size and its time of rest.
            let is_same =
                |known: &Pool| *known == Pool { size: known.size, rest_seconds: known.rest_seconds, ..pool.clone() };
            if !known.is_none_or(is_same) {
                return Err(HostError::PoolDiffers(pool.name));
            }
            // Before its endpoints: those without a pool are not restored.
            self.endpoints.registry.set_pool(&pool)?;
            let members = attached.pools.entry(key.clone()).or_insert_with(|| Members::new(pool.clone()));
            members.pool = pool.clone();
            is_new
        };
        match self.resize(&key, &pool) {
            Ok(()) => {}
            Err(error) if is_new => {
                return Err(Errors::join(error, self.dissolve(&mut self.endpoints.attached(), &key)));
            }
            Err(error) => return Err(error),
        }
        let attached = self.endpoints.attached();
        let members = attached.pools.get(&key).ok_or_else(|| no_such(&key))?;
        tracing::info!(network = %key.network, name = %key.name, size = members.count(), "pool is ready");
        Ok(self.pool_info(members))
    }

    /// Removes a pool of which no endpoint is acquired.
    pub fn remove(&self, network: Name, name: Name) -> Result<PoolInfo, HostError> {
        let _resizing = self.endpoints.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut attached, key) = (self.endpoints.attached(), FullName::new(network, name));
        let members = attached.pools.get(&key).ok_or_else(|| no_such(&key))?;
        if !members.acquired.is_empty() {
            return Err(HostError::PoolInUse { name: key.name, acquired: members.acquired.len() });
        }
        let info = self.pool_info(members);
        self.dissolve(&mut attached, &key)?;
        tracing::info!(network = %key.network, name = %key.name, "pool removed");
        Ok(info)
    }

    /// Gives endpoints of a pool to a program: as many as are asked for, or none.
    pub fn acquire(
        &self,
        network: Name,
        pool: Name,
        request: &AcquireEndpoints,
        caller: i32,
    ) -> Result<Vec<EndpointInfo>, HostError> {
        let key = FullName::new(network, pool);
        if request.enters && (request.count != 1 || request.lifetime != Lifetime::Caller) {
            return Err(HostError::EntersOne);
        }
        let unwatchable = |e: rustix::io::Errno| HostError::Owner { pid: caller, source: e.into() };
        let owner = match request.lifetime {
            Lifetime::Caller => Some(Owners::open(caller).map_err(unwatchable)?),
            Lifetime::Persistent => None,
        };
        let identity = owner.as_ref().map(|_| restore::identity(caller)).transpose();
        let identity = identity.map_err(|source| HostError::Owner { pid: caller, source })?;
        let mut attached = self.endpoints.attached();
        let Attached { endpoints, pools, .. } = &mut *attached;
        let members = pools.get_mut(&key).ok_or_else(|| no_such(&key))?;
        let asked = request.count as usize;
        let names = members.take(asked, Instant::now()).ok_or_else(|| {
            let (ready, resting) = (members.ready.len(), members.resting.len());
            HostError::PoolEmpty { name: key.name.clone(), ready, resting, asked }
        })?;
        let place = match names.first() {
            Some(name) if request.enters && !members.pool.shares_addresses => {
                confined::place(&key.network, name, caller).map(Some)
            }
            _ => Ok(None),
        };
        let recorded = place.and_then(|cgroup| {
            let by = Acquisition { owner: identity.map(|identity| (caller, identity)), cgroup };
            self.endpoints.registry.acquire(&key.network, &names, &by)?;
            Ok(by.cgroup)
        });
        let place = match recorded {
            Ok(place) => place,
            Err(error) => {
                members.take_back(names);
                return Err(error);
            }
        };
        let hand_over = |name: &Name| {
            let endpoint = endpoints.get_mut(&key.beside(name.clone())).ok_or_else(|| no_such(&key))?;
            if let Some(owner) = &owner {
                self.hand_over(endpoint, owner.as_fd(), caller).map_err(unwatchable)?;
            }
            Ok(endpoint.info())
        };
        let acquired: Result<Vec<EndpointInfo>, HostError> = names.iter().map(hand_over).collect();
        let acquired = match (acquired, place) {
            (Ok(_), Some(place)) => {
                // The kernel's part takes a millisecond, for which no other has to wait.
                drop(attached);
                let confined = self.endpoints.confined().move_in(&key.network, &names[0], place, caller);
                attached = self.endpoints.attached();
                confined.map(|info| vec![info])
            }
            (acquired, _) => acquired,
        };
        acquired.map_err(|error| {
            let given_back = names.into_iter().map(|name| self.rest(&mut attached, &key.beside(name)));
            Errors::join(error, Errors::all(given_back))
        })
    }

    /// An endpoint goes with process `pid` from now on, which `owner` is.
    fn hand_over(&self, endpoint: &mut AttachedEndpoint, owner: BorrowedFd<'_>, pid: i32) -> rustix::io::Result<()> {
        // An endpoint has a descriptor of its own: closing it ends the watch.
        let own = rustix::io::fcntl_dupfd_cloexec(owner, 0)?;
        self.endpoints.owners.watch(own.as_fd(), endpoint.id)?;
        endpoint.belong_to(pid, own);
        Ok(())
    }

    /// Gives endpoints of a pool back to it. Their devices are closed, and they rest for a while.
    pub fn release(&self, network: Name, pool: Name, request: ReleaseEndpoints) -> Result<PoolInfo, HostError> {
        let key = FullName::new(network, pool);
        let refusal = {
            let attached = self.endpoints.attached();
            let members = attached.pools.get(&key).ok_or_else(|| no_such(&key))?;
            request.names.iter().find(|name| !members.acquired.contains(*name)).cloned()
        };
        if let Some(name) = refusal {
            return Err(HostError::NotAcquired { name, pool: key.name });
        }
        // One by one: others must not wait for all of them.
        let rest = |name| self.rest(&mut self.endpoints.attached(), &key.beside(name));
        Errors::all(request.names.into_iter().map(rest))?;
        let attached = self.endpoints.attached();
        let members = attached.pools.get(&key).ok_or_else(|| no_such(&key))?;
        Ok(self.pool_info(members))
    }

    /// Ends what is left of the last user of an endpoint of a pool, and makes its device anew. One that is not acquired, by now,
    /// stays as it is.
    pub(super) fn rest(&self, attached: &mut Attached, key: &FullName) -> Result<(), HostError> {
        let pool = attached.endpoints.get(key).and_then(|endpoint| endpoint.endpoint.pool.as_ref());
        let pool = pool.map(|pool| key.beside(pool.name.clone()));
        if !pool.as_ref().and_then(|pool| attached.pools.get(pool)).is_some_and(|of| of.acquired.contains(&key.name)) {
            return Ok(());
        }
        let Some(old) = attached.endpoints.remove(key) else { return Ok(()) };
        self.endpoints.sessions.remove_endpoint(old.id);
        let AttachedEndpoint { mut endpoint, network, namespace, directory, confinement, .. } = old;
        drop(directory);
        self.endpoints.confined().end(key, confinement);
        endpoint.owner_pid = None;
        let released = self.endpoints.registry.release(&key.network, &key.name).map_err(HostError::from);
        let id = EndpointId(attached.next_id());
        let opened = released.and_then(|()| self.endpoints.open(id, &endpoint, &network, namespace, None));
        let members = pool.and_then(|pool| attached.pools.get_mut(&pool));
        match (opened, members) {
            (Ok(opened), Some(members)) => {
                members.rest(key.name.clone(), Instant::now());
                attached.endpoints.insert(key.clone(), opened);
                Ok(())
            }
            (opened, members) => {
                if let Some(members) = members {
                    members.acquired.remove(&key.name);
                }
                let forgotten = self.endpoints.forget(&endpoint);
                Errors::all([opened.map(|opened| self.endpoints.sessions.remove_endpoint(opened.id)), forgotten])
            }
        }
    }

    /// Serves the pools of a router that has died, whose endpoints are attached by now. Those that nobody has acquired rest: how
    /// long ago they were released, nobody knows.
    pub(super) fn restore(&self) -> Result<(), HostError> {
        let mut attached = self.endpoints.attached();
        let Attached { endpoints, pools, .. } = &mut *attached;
        let restored = self.endpoints.registry.pools()?.into_iter();
        pools.extend(restored.map(|pool| (FullName::new(pool.network.clone(), pool.name.clone()), Members::new(pool))));
        let (now, mut orphans, mut strays) = (Instant::now(), Vec::new(), Vec::new());
        for (key, endpoint) in endpoints.iter_mut() {
            let Some(pool) = endpoint.endpoint.pool.clone() else { continue };
            let Some(members) = pools.get_mut(&key.beside(pool.name)) else {
                strays.push(key.clone());
                continue;
            };
            let number = key.name.as_str().rsplit_once('-').and_then(|(_, number)| number.parse().ok());
            members.last_number = members.last_number.max(number.unwrap_or(0));
            if endpoint.endpoint.addresses.contains(&pool.link) {
                members.first = Some((key.name.clone(), pool.link));
            }
            match self.endpoints.registry.acquisition(&endpoint.endpoint)? {
                None => members.rest_anew(key.name.clone(), now),
                Some(Acquisition { owner, cgroup }) => {
                    members.acquired.insert(key.name.clone());
                    endpoint.confinement = cgroup.and_then(|cgroup| confined::adopt(cgroup, owner.is_some()));
                    let Some((pid, identity)) = owner else { continue };
                    match restore::living_owner(pid, Some(&identity)) {
                        Some(process) if self.endpoints.owners.watch(process.as_fd(), endpoint.id).is_ok() => {
                            endpoint.belong_to(pid, process);
                        }
                        _ => orphans.push(key.clone()),
                    }
                }
            }
        }
        // What a router has left that died while it removed a pool.
        let is_broken = |members: &&Members| members.first.is_none();
        let broken: Vec<_> = pools.values().filter(is_broken).map(|members| members.pool.clone()).collect();
        let released = Errors::all(orphans.iter().map(|key| self.rest(&mut attached, key)));
        let broken =
            broken.into_iter().map(|pool| self.dissolve(&mut attached, &FullName::new(pool.network, pool.name)));
        let dissolved = Errors::all(broken);
        let removed = strays.into_iter().map(|key| self.remove_members(&mut attached, &key.network, &[key.name]));
        Errors::all([released, dissolved, Errors::all(removed)])
    }

    /// Removes a pool with all of its endpoints.
    pub(super) fn dissolve(&self, attached: &mut Attached, key: &FullName) -> Result<(), HostError> {
        let Some(members) = attached.pools.remove(key) else { return Ok(()) };
        let names: Vec<Name> = members.all().cloned().collect();
        let first = members.first.as_ref().and_then(|(name, _)| attached.endpoints.get(&key.beside(name.clone())));
        let namespace = first.and_then(|first| NamespaceId::of(first.namespace.as_deref()?));
        // The interface goes first, with the addresses of all.
        let unlinked = match (first.map(|first| first.endpoint.clone()), &self.endpoints.overlay) {
            (Some(first), Some(overlay)) => overlay.remove_endpoint(&first).map_err(HostError::from),
            _ => Ok(()),
        };
        let removed = self.remove_members(attached, &key.network, &names);
        self.forget_library(key);
        remove_tables(namespace);
        Errors::all([unlinked, removed, Ok(self.endpoints.registry.forget_pool(&key.network, &key.name)?)])
    }

    /// Makes and removes endpoints until the pool has its size, but for those that are in use.
    fn resize(&self, key: &FullName, pool: &Pool) -> Result<(), HostError> {
        loop {
            let mut attached = self.endpoints.attached();
            self.endpoints.remove_dead(&mut attached, |_| false)?;
            let members = attached.pools.get_mut(key).ok_or_else(|| no_such(key))?;
            let (count, size) = (members.count(), pool.size as usize);
            if count > size {
                let names = members.shrink(count - size);
                let gone = names.iter().filter_map(|name| attached.endpoints.get(&key.beside(name.clone())));
                let gone: Vec<Endpoint> = gone.map(|gone| gone.endpoint.clone()).collect();
                let unlinked = self.endpoints.overlay.as_ref().map_or(Ok(()), |overlay| overlay.remove_members(&gone));
                let removed = self.remove_members(&mut attached, &key.network, &names);
                return Errors::all([unlinked.map_err(HostError::from), removed]);
            }
            if count == size {
                return Ok(());
            }
            let names = members.next_names((size - count).min(BATCH))?;
            // What waits for the store must not keep others.
            drop(attached);
            self.grow(key, pool, names)?;
        }
    }

    /// Makes endpoints with these names.
    fn grow(&self, key: &FullName, pool: &Pool, names: Vec<Name>) -> Result<(), HostError> {
        let mut requests = Vec::with_capacity(names.len());
        for name in names {
            let addresses = match &self.endpoints.allocator {
                Some(allocator) => allocator.take(&pool.network, None, &name, &[]),
                None => Ok(Vec::new()),
            };
            match addresses {
                Ok(addresses) => requests.push((name, addresses)),
                Err(error) => {
                    self.give_back(&pool.network, requests);
                    return Err(error);
                }
            }
        }
        let taken = requests.clone();
        let grown = self.make_members(key, pool, requests);
        match &self.endpoints.allocator {
            Some(allocator) if grown.is_ok() => allocator.publish(),
            _ if grown.is_err() => self.give_back(&pool.network, taken),
            _ => {}
        }
        grown
    }

    fn give_back(&self, network: &Name, taken: Vec<(Name, Vec<IpAddr>)>) {
        if let Some(allocator) = &self.endpoints.allocator {
            taken.into_iter().for_each(|(name, addresses)| allocator.give_back(network, &name, addresses));
        }
    }

    fn make_members(&self, key: &FullName, pool: &Pool, requests: Vec<(Name, Vec<IpAddr>)>) -> Result<(), HostError> {
        let mut attached = self.endpoints.attached();
        let link = attached.pools.get(key).and_then(|members| members.first.as_ref()).map(|(_, link)| *link);
        let mut made = Vec::with_capacity(requests.len());
        let registered = self.register_members(&attached, pool, link, requests, &mut made);
        let opened = registered.and_then(|network| {
            let overlay = self.endpoints.overlay.as_ref().ok_or(HostError::Rootless)?;
            let namespace = overlay.add_members(&network, &made)?;
            for endpoint in &made {
                let id = EndpointId(attached.next_id());
                let opened = self.endpoints.open(id, endpoint, &network, Some(namespace.clone()), None)?;
                attached.endpoints.insert(FullName::of(endpoint), opened);
            }
            Ok(())
        });
        match opened {
            Ok(()) => {
                let members = attached.pools.get_mut(key).ok_or_else(|| no_such(key))?;
                let first = made.first().map(|first| (first.name.clone(), first.link()));
                members.first = members.first.take().or(first);
                members.ready.extend(made.into_iter().map(|endpoint| endpoint.name));
                Ok(())
            }
            Err(error) => {
                let names: Vec<Name> = made.iter().map(|endpoint| endpoint.name.clone()).collect();
                let unlinked = match (&self.endpoints.overlay, made.first()) {
                    (Some(overlay), Some(first)) if link.is_none() => overlay.remove_endpoint(first),
                    (Some(overlay), _) => overlay.remove_members(&made),
                    (None, _) => Ok(()),
                };
                let removed = self.remove_members(&mut attached, &key.network, &names);
                Err(Errors::join(error, Errors::all([unlinked.map_err(HostError::from), removed])))
            }
        }
    }

    /// Adds endpoints to the registry, and waits until all of this host know them; `made` has those that were added.
    fn register_members(
        &self,
        attached: &Attached,
        pool: &Pool,
        mut link: Option<IpAddr>,
        requests: Vec<(Name, Vec<IpAddr>)>,
        made: &mut Vec<Endpoint>,
    ) -> Result<Network, HostError> {
        let mut last = None;
        for (name, addresses) in requests {
            self.endpoints.check_tenant(&pool.network, attached.endpoints.values())?;
            let added = self.endpoints.registry.add_endpoint(EndpointRequest {
                name,
                network: pool.network.clone(),
                vni: None,
                host: self.endpoints.config.host.clone(),
                addresses,
                quota: pool.quota,
                allowed_uid: pool.allowed_uid,
                owner_pid: None,
                isolation: Isolation::Pool,
                interface: InterfaceName::default(),
                labels: Labels::default(),
                pool: Some(JoinPool { name: pool.name.clone(), link }),
            })?;
            link = link.or_else(|| added.endpoint.pool.as_ref().map(|pool| pool.link));
            made.push(added.endpoint);
            last = Some((added.network, added.revision));
        }
        let (network, revision) = last.ok_or(RegistryError::NoAddress)?;
        self.endpoints.mesh.wait_for(revision);
        Ok(network)
    }

    /// Removes endpoints of a pool whose addresses the interface no longer has.
    fn remove_members(&self, attached: &mut Attached, network: &Name, names: &[Name]) -> Result<(), HostError> {
        for name in names {
            let key = FullName::new(network.clone(), name.clone());
            if let Some(gone) = attached.endpoints.remove(&key) {
                self.endpoints.confined().end(&key, gone.confinement);
                self.endpoints.sessions.remove_endpoint(gone.id);
                self.endpoints.policies.forget(network, name);
            }
        }
        // A commit each would wait for the disk as often.
        let forget = |names: &[Name]| {
            for removed in self.endpoints.registry.remove_endpoints(network, names)? {
                if let Some(allocator) = &self.endpoints.allocator {
                    allocator.release(removed);
                }
            }
            Ok(())
        };
        Errors::all(names.chunks(FORGOTTEN_AT_ONCE).map(forget))
    }

    /// The preload library of an endpoint: its own copy, or its pool's.
    pub(super) fn library_of(&self, endpoint: &Endpoint) -> Result<Library, HostError> {
        let Some(pool) = &endpoint.pool else { return Ok(self.endpoints.library.clone()) };
        let key = FullName::new(endpoint.network.clone(), pool.name.clone());
        let mut libraries = self.endpoints.pool_libraries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = libraries.get(&key) {
            return Ok(library.clone());
        }
        let library =
            self.endpoints.library.shared(self.endpoints.config.state.pool_library(&key.network, &key.name))?;
        Ok(libraries.entry(key).or_insert(library).clone())
    }

    fn forget_library(&self, key: &FullName) {
        let mut libraries = self.endpoints.pool_libraries.lock().unwrap_or_else(PoisonError::into_inner);
        if libraries.remove(key).is_some() {
            // What cannot be removed now is replaced with the next pool of that name.
            let library = self.endpoints.config.state.pool_library(&key.network, &key.name);
            let _ = library.parent().map(std::fs::remove_dir_all);
        }
    }

    fn pool_info(&self, members: &Members) -> PoolInfo {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let Pool { network, name, .. } = &members.pool;
        PoolInfo {
            pool: members.pool.clone(),
            ready: count(members.ready.len()),
            acquired: count(members.acquired.len()),
            resting: count(members.resting.len()),
            namespace: self.endpoints.config.state.pool_namespace(network, name),
        }
    }
}

fn no_such(FullName { network, name }: &FullName) -> HostError {
    HostError::NoSuchPool { name: name.clone(), network: network.clone() }
}

/// Endpoints that are made together: others that are made or acquired wait for no more than these.
const BATCH: usize = 16;
/// Endpoints that leave the registry in one transaction.
const FORGOTTEN_AT_ONCE: usize = 64;
