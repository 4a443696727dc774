//! Distribution of the registry's contents: routes and access rules to the workers, locations of other hosts to the overlay.

use super::access;
use crate::endpoint::gid_table;
use crate::routes::SharedRoutes;
use crate::worker::ShardHandle;
use rdmesh_fabric::store::{Cancel, Revision};
use rdmesh_fabric::{Endpoint, Name, Topology, TopologyWatch};
use rdmesh_nic::Route;
use rdmesh_overlay::Overlay;
use rdmesh_verbs::{Gid, Vni};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A thread that follows the registry. Dropping it ends the thread.
pub(super) struct Mesh {
    progress: Arc<Progress>,
    cancel: Cancel,
    thread: Option<JoinHandle<()>>,
}

/// Progress of the thread.
#[derive(Default)]
struct Progress {
    /// None when it has ended.
    done: Mutex<Option<Revision>>,
    changed: Condvar,
    stop: AtomicBool,
}

/// Receivers of the registry's contents.
pub(super) struct Targets {
    /// Name of this host.
    pub(super) host: Name,
    /// The routes of the workers.
    pub(super) routes: SharedRoutes,
    /// The workers.
    pub(super) workers: Vec<ShardHandle>,
    /// The kernel's part of the networks.
    pub(super) overlay: Option<Arc<Overlay>>,
    /// The route to endpoints of this host.
    pub(super) local: Route,
    /// Whether other hosts' endpoints come from a store. Who was told of them by hand was perhaps not told of all.
    pub(super) is_in_cluster: bool,
}

impl Mesh {
    /// Starts to follow.
    pub(super) fn start(watch: TopologyWatch, targets: Targets) -> io::Result<Self> {
        let progress = Arc::new(Progress::default());
        *progress.lock() = Some(Revision::default());
        let cancel = watch.cancel();
        let told = Arc::clone(&progress);
        let thread = thread::Builder::new().name("rdmesh-mesh".to_owned()).spawn(move || {
            follow(watch, &targets, &told);
            told.tell(None);
        })?;
        Ok(Self { progress, cancel, thread: Some(thread) })
    }

    /// Waits until the registry's state at `revision` is in effect.
    pub(super) fn wait_for(&self, revision: Revision) {
        let mut done = self.progress.lock();
        while done.is_some_and(|done| done < revision) {
            done = self.progress.changed.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.progress.stop.store(true, Ordering::Release);
        (self.cancel)();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl Progress {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Revision>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, done: Option<Revision>) {
        *self.lock() = done;
        self.changed.notify_all();
    }
}

fn follow(mut watch: TopologyWatch, targets: &Targets, progress: &Progress) {
    let mut placed = Placed::default();
    loop {
        let hosts = hosts(watch.topology());
        // First: a new address is not reachable before its rules hold.
        set_rules(watch.topology(), targets);
        filter_ip(watch.topology(), targets);
        placed.update(watch.topology(), &hosts, targets);
        if let Some(overlay) = &targets.overlay {
            let elsewhere = watch.topology().endpoints().filter(|endpoint| endpoint.host != targets.host);
            let placed = elsewhere.filter_map(|endpoint| Some((endpoint, *hosts.get(&endpoint.host)?)));
            let complete = watch.topology().networks().filter(|network| network.is_complete && targets.is_in_cluster);
            let complete = complete.map(|network| network.name.clone()).collect();
            if let Err(error) = overlay.set_remote(placed, &complete) {
                tracing::warn!(%error, "IP between hosts may not work");
            }
        }
        progress.tell(Some(watch.revision()));
        if !has_changed(&mut watch, progress) {
            return;
        }
    }
}

/// Waits for a change; false when there is to be no more waiting.
fn has_changed(watch: &mut TopologyWatch, progress: &Progress) -> bool {
    // Asked each time: a cancellation that came together with a change does not end the next wait.
    while !progress.stop.load(Ordering::Acquire) {
        match watch.follow(DAY) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "cannot follow other hosts any longer");
                return false;
            }
        }
    }
    false
}

fn hosts(topology: &Topology) -> HashMap<Name, IpAddr> {
    topology.hosts().map(|host| (host.name.clone(), host.address)).collect()
}

/// Changes the access rules, if they are others by now.
fn set_rules(topology: &Topology, targets: &Targets) {
    let before = Arc::clone(targets.routes.current().access());
    let mut rules = before.cleared();
    access::add_rules(&mut rules, topology, &targets.host);
    if rules != *before {
        targets.routes.change(|routes| routes.set_access(Arc::new(rules)));
        // Queue pairs that are no longer allowed end, also on a worker that sleeps.
        for worker in &targets.workers {
            // One that has ended has no queue pairs.
            let _ = worker.try_call(|_| ());
        }
    }
}

/// Has the networks' bridges filter IP as the groups say that cover it.
fn filter_ip(topology: &Topology, targets: &Targets) {
    let Some(overlay) = &targets.overlay else { return };
    if let Err(error) = overlay.set_filters(&access::guarded(topology, &targets.host)) {
        tracing::error!(%error, "IP is not filtered as security groups say, will try again with the next change");
    }
}

/// The endpoints that have routes, by network and name.
#[derive(Default)]
struct Placed {
    networks: HashMap<Name, HashMap<Name, Location>>,
    round: u64,
}

/// Location and addresses of an endpoint in the last round of updates in which it was there.
struct Location {
    addresses: Vec<IpAddr>,
    vni: Vni,
    route: Route,
    gids: Vec<Gid>,
    round: u64,
}

impl Placed {
    /// Changes the routes of the endpoints that have come, gone or changed: every address that an endpoint answers to, of those
    /// whose host is known, leads to that host.
    fn update(&mut self, topology: &Topology, hosts: &HashMap<Name, IpAddr>, targets: &Targets) {
        self.round += 1;
        let vnis: HashMap<&Name, Vni> = topology.networks().map(|network| (&network.name, Vni(network.vni))).collect();
        let route = |endpoint: &Endpoint| match hosts.get(&endpoint.host) {
            _ if endpoint.host == targets.host => Some(targets.local),
            host => host.copied().map(Route::Host),
        };
        let mut come = Vec::new();
        for endpoint in topology.endpoints() {
            let (Some(&vni), Some(route)) = (vnis.get(&endpoint.network), route(endpoint)) else { continue };
            if !self.keep(endpoint, vni, route) {
                let gids = gid_table(endpoint).into_iter().filter(|gid| !gid.is_zero()).collect();
                let addresses = endpoint.addresses.clone();
                come.push((endpoint, Location { addresses, vni, route, gids, round: self.round }));
            }
        }
        let gone = self.forget();
        if come.is_empty() && gone.is_empty() {
            return;
        }
        targets.routes.change(|routes| {
            // Another endpoint may have an address that one had before.
            gone.iter().for_each(|location| location.gids.iter().for_each(|gid| routes.remove(location.vni, *gid)));
            come.iter().for_each(|(_, location)| {
                location.gids.iter().for_each(|gid| routes.insert(location.vni, *gid, location.route));
            });
        });
        for (endpoint, location) in come {
            self.networks.entry(endpoint.network.clone()).or_default().insert(endpoint.name.clone(), location);
        }
    }

    /// Whether an endpoint is where it was, with the same addresses: then it stays.
    fn keep(&mut self, endpoint: &Endpoint, vni: Vni, route: Route) -> bool {
        let Self { networks, round } = self;
        let location = networks.get_mut(&endpoint.network).and_then(|network| network.get_mut(&endpoint.name));
        let is_same = |location: &&mut Location| {
            location.vni == vni && location.route == route && location.addresses == endpoint.addresses
        };
        location.filter(is_same).map(|location| location.round = *round).is_some()
    }

    /// Takes out what has not been seen in this round.
    fn forget(&mut self) -> Vec<Location> {
        let Self { networks, round } = self;
        networks
            .values_mut()
            .flat_map(|network| network.extract_if(|_, location| location.round != *round))
            .map(|(_, location)| location)
            .collect()
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_fabric::store::Embedded;
    use rdmesh_fabric::{EndpointRequest, Host, InterfaceName, Isolation, Labels, PeerEndpoint, Quota, Registry};

    fn gid(address: &str) -> Gid {
        Gid::from_ip(address.parse().unwrap())
    }

    #[test]
    fn every_address_of_an_endpoint_leads_to_its_host() {
        let registry = Registry::new(Arc::new(Embedded::default()));
        let (here, there): (Name, Name) = ("here".parse().unwrap(), "there".parse().unwrap());
        let address = "192.0.2.2".parse().unwrap();
        registry.set_host(&Host::new(there.clone(), address)).unwrap();
        let network: Name = "blue".parse().unwrap();
        registry
            .add_endpoint(EndpointRequest {
                name: "a".parse().unwrap(),
                network: network.clone(),
                vni: Some(7),
                host: here.clone(),
                addresses: vec!["10.7.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
                quota: Quota::default(),
                allowed_uid: None,
                owner_pid: None,
                isolation: Isolation::None,
                interface: InterfaceName::default(),
                pool: None,
                labels: Labels::default(),
            })
            .unwrap();
        let addresses = vec!["10.7.0.3".parse().unwrap(), "fd00::3".parse().unwrap()];
        registry.add_peer_endpoint(&there, PeerEndpoint { network, vni: None, addresses, link: None }).unwrap();
        let watch = registry.watch().unwrap();
        let routes = SharedRoutes::default();
        let targets = Targets {
            host: here.clone(),
            routes: routes.clone(),
            workers: Vec::new(),
            overlay: None,
            local: Route::Local,
            is_in_cluster: false,
        };
        let mut placed = Placed::default();
        placed.update(watch.topology(), &hosts(watch.topology()), &targets);
        let first = routes.current();
        placed.update(watch.topology(), &hosts(watch.topology()), &targets);
        assert!(Arc::ptr_eq(&first, &routes.current()), "nothing has changed");
        let routes = first;
        for local in ["10.7.0.2", "fd00::2", "fe80::52:aff:fe07:2"] {
            assert_eq!(routes.find(Vni(7), gid(local)), Route::Local, "{local}");
        }
        for remote in ["10.7.0.3", "fd00::3", "fe80::52:aff:fe07:3"] {
            assert_eq!(routes.find(Vni(7), gid(remote)), Route::Host(address), "{remote}");
        }
        assert_eq!(routes.hosts(Vni(7)), [address]);
        assert_eq!(routes.find(Vni(7), gid("10.7.0.4")), Route::External);
        assert_eq!(routes.find(Vni(8), gid("10.7.0.2")), Route::External);
        // Without the other host its endpoints are out of reach; those of this one stay.
        placed.update(watch.topology(), &HashMap::new(), &targets);
        let later = targets.routes.current();
        assert_eq!(later.find(Vni(7), gid("10.7.0.3")), Route::External);
        assert_eq!((later.find(Vni(7), gid("10.7.0.2")), later.hosts(Vni(7)).len()), (Route::Local, 0));
        assert_eq!(routes.find(Vni(7), gid("10.7.0.3")), Route::Host(address), "a reader keeps its version");
    }
}
