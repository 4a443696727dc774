//! Distribution of the registry's contents: routes to the workers, locations of other hosts to the overlay.

use crate::endpoint::gid_table;
use crate::worker::ShardHandle;
use rdmesh_fabric::store::{Cancel, Revision};
use rdmesh_fabric::{Endpoint, Name, Topology, TopologyWatch};
use rdmesh_nic::{Route, Routes};
use rdmesh_overlay::Overlay;
use rdmesh_verbs::Vni;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
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
    /// The workers.
    pub(super) shards: Vec<ShardHandle>,
    /// The kernel's part of the networks.
    pub(super) overlay: Option<Arc<Overlay>>,
    /// The route to endpoints of this host.
    pub(super) local: Route,
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
    let seed = RandomState::new().build_hasher().finish();
    let mut known = Routes::default();
    loop {
        let hosts = hosts(watch.topology());
        let routes = routes(watch.topology(), &hosts, (&targets.host, targets.local), seed);
        if routes != known {
            let routes = Arc::new(routes);
            targets.shards.iter().for_each(|shard| shard.set_routes(Arc::clone(&routes)));
            known = Routes::clone(&routes);
        }
        if let Some(overlay) = &targets.overlay {
            let elsewhere = watch.topology().endpoints().filter(|endpoint| endpoint.host != targets.host);
            let placed = elsewhere.filter_map(|endpoint| Some((endpoint, *hosts.get(&endpoint.host)?)));
            if let Err(error) = overlay.set_remote(placed) {
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
                tracing::error!(%error, "other hosts are no longer followed");
                return false;
            }
        }
    }
    false
}

fn hosts(topology: &Topology) -> HashMap<Name, IpAddr> {
    topology.hosts().map(|host| (host.name.clone(), host.address)).collect()
}

/// Every address that an endpoint answers to, of those whose host is known.
fn routes(topology: &Topology, hosts: &HashMap<Name, IpAddr>, (own, local): (&Name, Route), seed: u64) -> Routes {
    let vnis: HashMap<&Name, Vni> = topology.networks().map(|network| (&network.name, Vni(network.vni))).collect();
    let route = |endpoint: &Endpoint| match hosts.get(&endpoint.host) {
        _ if endpoint.host == *own => Some(local),
        host => host.copied().map(Route::Host),
    };
    let mut routes = Routes::new(seed);
    for endpoint in topology.endpoints() {
        let (Some(&vni), Some(route)) = (vnis.get(&endpoint.network), route(endpoint)) else { continue };
        for gid in gid_table(endpoint).into_iter().filter(|gid| !gid.is_zero()) {
            routes.insert(vni, gid, route);
        }
    }
    routes
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_fabric::store::Embedded;
    use rdmesh_fabric::{EndpointRequest, Host, Isolation, PeerEndpoint, Quota, Registry};
    use rdmesh_verbs::Gid;

    fn gid(address: &str) -> Gid {
        Gid::from_ip(address.parse().unwrap())
    }

    #[test]
    fn every_address_of_an_endpoint_leads_to_its_host() {
        let registry = Registry::new(Arc::new(Embedded::default()));
        let (here, there): (Name, Name) = ("here".parse().unwrap(), "there".parse().unwrap());
        let address = "192.0.2.2".parse().unwrap();
        registry.set_host(&Host { name: there.clone(), address }).unwrap();
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
            })
            .unwrap();
        let addresses = vec!["10.7.0.3".parse().unwrap(), "fd00::3".parse().unwrap()];
        registry.add_peer_endpoint(&there, PeerEndpoint { network, vni: None, addresses }).unwrap();
        let watch = registry.watch().unwrap();
        let routes = routes(watch.topology(), &hosts(watch.topology()), (&here, Route::Local), 7);
        for local in ["10.7.0.2", "fd00::2", "fe80::52:aff:fe07:2"] {
            assert_eq!(routes.find(Vni(7), gid(local)), Route::Local, "{local}");
        }
        for remote in ["10.7.0.3", "fd00::3", "fe80::52:aff:fe07:3"] {
            assert_eq!(routes.find(Vni(7), gid(remote)), Route::Host(address), "{remote}");
        }
        assert_eq!(routes.hosts(Vni(7)), [address]);
        assert_eq!(routes.find(Vni(7), gid("10.7.0.4")), Route::Outside);
        assert_eq!(routes.find(Vni(8), gid("10.7.0.2")), Route::Outside);
    }
}
