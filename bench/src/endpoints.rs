//! Cost of very many endpoints, in the registry and on the threads that serve their sockets.

use crate::results::{Results, Unit};
use rdmesh_fabric::store::Embedded;
use rdmesh_fabric::{Added, DEFAULT_NETWORK, EndpointRequest, InterfaceName, Isolation, Labels, Quota, Registry};
use rdmesh_router::endpoint::{EndpointId, gid_table};
use rdmesh_router::session::{EndpointSpec, SessionServer};
use rdmesh_router::worker::{Mode, WorkerConfig, Workers};
use rdmesh_verbs::{DeviceLimits, Vni};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Group of these figures.
pub(crate) const GROUP: &str = "rdmesh, 1000 endpoints";
/// Names of figures.
pub(crate) const CREATION: &str = "an endpoint, in registry and session";
const REGISTRY: &str = "of this, in the registry";
const REMOVAL: &str = "its removal there";

const COUNT: u32 = 1000;

/// Makes endpoints one after another, without directories and network namespaces, and removes them again.
pub(crate) fn measure(results: &mut Results) {
    // In memory, as a router's state directory in /run is.
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("there is room");
    let listeners: Vec<OwnedFd> = (0..COUNT).map(|n| listener(&directory.path().join(n.to_string()))).collect();
    let store = Embedded::open(&directory.path().join("store")).expect("a store can be made");
    let registry = Registry::new(Arc::new(store));
    let limits = DeviceLimits::default();
    let io = Default::default();
    let workers = Workers::start(WorkerConfig { count: 1, mode: Mode::Adaptive, limits, io }).expect("workers start");
    let sessions =
        SessionServer::start(workers.shards().to_vec(), limits, Mode::Adaptive).expect("the session thread starts");
    let requests: Vec<EndpointRequest> = (0..COUNT).map(request).collect();
    let begin = Instant::now();
    let mut in_registry = Duration::ZERO;
    let mut specs = Vec::with_capacity(COUNT as usize);
    for ((number, request), listener) in (1..).zip(requests).zip(listeners) {
        let begin = Instant::now();
        let added = registry.add_endpoint(request).expect("there is room");
        in_registry += begin.elapsed();
        let spec = spec(number, &added);
        sessions.add_endpoint(spec.clone(), listener);
        specs.push(spec);
    }
    // Answered after all that was told before.
    sessions.totals();
    results.add(GROUP, CREATION, Unit::Microseconds, each(begin.elapsed()));
    results.add(GROUP, REGISTRY, Unit::Microseconds, each(in_registry));
    let begin = Instant::now();
    for EndpointSpec { id, name, network, .. } in specs {
        sessions.remove_endpoint(id);
        let [network, name] = [network, name].map(|name| name.parse().expect("it is a name"));
        registry.remove_endpoint(&network, &name).expect("it is there");
    }
    results.add(GROUP, REMOVAL, Unit::Microseconds, each(begin.elapsed()));
}

fn request(number: u32) -> EndpointRequest {
    let name = |text: &str| text.parse().expect("it is a name");
    EndpointRequest {
        name: name(&format!("e{number}")),
        network: name(DEFAULT_NETWORK),
        vni: None,
        host: name("here"),
        addresses: Vec::new(),
        quota: Quota::default(),
        allowed_uid: None,
        owner_pid: None,
        isolation: Isolation::None,
        interface: InterfaceName::default(),
        pool: None,
        labels: Labels::default(),
    }
}

fn spec(number: u32, added: &Added) -> EndpointSpec {
    EndpointSpec {
        policy: Default::default(),
        id: EndpointId(number),
        name: added.endpoint.name.to_string(),
        network: added.network.name.to_string(),
        vni: Vni(added.network.vni),
        gids: gid_table(&added.endpoint),
        quota: added.endpoint.quota,
        allowed_uid: None,
        namespace: None,
    }
}

/// A listening socket, as there is one in each endpoint's directory.
fn listener(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("there are descriptors");
    bind(&socket, &SocketAddrUnix::new(path).expect("a short path")).expect("it is new");
    listen(&socket, 128).expect("it is bound");
    socket
}

/// Microseconds for each endpoint, where all took `time`.
fn each(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / f64::from(COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_made_and_removed() {
        let mut results = Results::new("adaptive", 1);
        measure(&mut results);
        let figures = [CREATION, REGISTRY, REMOVAL].map(|name| results.median(GROUP, name));
        eprintln!("{figures:?}");
        assert!(figures.iter().all(Option::is_some));
    }
}
