use super::*;
use crate::daemon::{LocalPath, SharedStore};
use crate::io::IoConfig;
use rdmesh_fabric::api::Mode;
use rdmesh_fabric::api::{CreateEndpoint, EndpointInfo, FaultsText, Lifetime, Netns, SetChainSteps};
use rdmesh_fabric::store::Embedded;
use rdmesh_fabric::{Client, ClientError, Isolation, PeerEndpoint, Quota};
use rdmesh_fabric::{Host as HostRecord, Name, Peers};
use std::fs;
use std::net::IpAddr;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use tempfile::TempDir;

/// A router without root in a directory of its own, on a thread.
struct Router {
    directory: TempDir,
    client: Client,
    thread: Option<JoinHandle<Result<(), DaemonError>>>,
}

impl Router {
    fn start() -> Self {
        Self::start_with(config)
    }

    fn start_with(config: fn(&TempDir) -> DaemonConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = config(&directory);
        let client = Client::new(config.state.api_socket());
        let thread = thread::spawn(move || run(config));
        while client.status().is_err() {
            assert!(!thread.is_finished(), "{:?}", thread.join().unwrap());
            thread::yield_now();
        }
        Self { directory, client, thread: Some(thread) }
    }

    fn stop(mut self) -> TempDir {
        self.client.shutdown().unwrap();
        self.thread.take().unwrap().join().unwrap().unwrap();
        self.directory
    }
}

fn config(directory: &TempDir) -> DaemonConfig {
    let library = directory.path().join("installed.so");
    fs::write(&library, "library").unwrap();
    DaemonConfig {
        state: StateDir::new(directory.path().join("state")),
        mode: Mode::Sleep,
        workers: Some(1),
        rootless: true,
        library: Some(library),
        host: "here".parse().unwrap(),
        peers: Peers::default(),
        store: None,
        local_path: LocalPath::Memory,
        key: None,
        firewall: false,
        keeps_endpoints: false,
        io: IoConfig::default(),
        metrics: None,
        events: EventLog::default(),
    }
}

/// The same on a network of hosts, at a loopback address of its own: those below are other tests' of this process.
fn config_with_underlay(directory: &TempDir) -> DaemonConfig {
    static NUMBER: AtomicU8 = AtomicU8::new(200);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let underlay = IpAddr::from([127, high, low, NUMBER.fetch_add(1, Ordering::Relaxed)]);
    let io = IoConfig { underlay: Some(underlay), faults: None, is_insecure: true, ..IoConfig::default() };
    DaemonConfig { io, ..config(directory) }
}

fn request(name: &str) -> CreateEndpoint {
    CreateEndpoint { isolation: Isolation::None, ..CreateEndpoint::new("blue".parse().unwrap(), name.parse().unwrap()) }
}

fn status_of<T: std::fmt::Debug>(result: Result<T, ClientError>) -> u16 {
    match result {
        Err(ClientError::Refused { status, .. }) => status,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn endpoints_come_and_go_by_the_api_and_nothing_stays() {
    let router = Router::start();
    let client = &router.client;
    let made = client.create_endpoint(&request("a")).unwrap();
    assert!(made.directory.join("verbs.sock").exists());
    assert_eq!(client.endpoints().unwrap(), std::slice::from_ref(&made));
    assert_eq!(client.endpoint(&made.endpoint.network, &made.endpoint.name).unwrap(), made);
    assert_eq!(client.networks().unwrap().len(), 1);
    assert_eq!(client.status().unwrap().endpoints, 1);
    assert_eq!(client.remove_endpoint(&made.endpoint.network, &made.endpoint.name).unwrap(), made);
    assert!(!made.directory.exists());
    client.create_endpoint(&request("b")).unwrap();
    let directory = router.stop();
    let mut left: Vec<_> =
        fs::read_dir(directory.path().join("state")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["lock"]);
}

#[test]
fn refusals_have_the_right_status() {
    let router = Router::start();
    let client = &router.client;
    let made = client.create_endpoint(&request("a")).unwrap();
    assert_eq!(status_of(client.create_endpoint(&request("a"))), 409);
    let taken = CreateEndpoint { addresses: made.endpoint.addresses, ..request("b") };
    assert_eq!(status_of(client.create_endpoint(&taken)), 409);
    let outside = CreateEndpoint { addresses: vec!["192.0.2.1".parse().unwrap()], ..request("b") };
    assert_eq!(status_of(client.create_endpoint(&outside)), 400);
    let namespace = CreateEndpoint { isolation: Isolation::Namespace, ..request("b") };
    assert_eq!(status_of(client.create_endpoint(&namespace)), 400);
    let (network, nobody) = ("blue".parse().unwrap(), "nobody".parse().unwrap());
    assert_eq!(status_of(client.endpoint(&network, &nobody)), 404);
    assert_eq!(status_of(client.remove_endpoint(&network, &nobody)), 404);
    assert_eq!(client.endpoints().unwrap().len(), 1);
    router.stop();
}

#[test]
fn a_namespace_that_is_given_fits_the_isolation() {
    let directory = tempfile::tempdir().unwrap();
    let host = host(&directory);
    let netns = Some(Netns::Path("/proc/self/ns/net".into()));
    let refused = |request| host.endpoints().create(request, 0).unwrap_err();
    let kept = CreateEndpoint { netns: netns.clone(), ..request("a") };
    assert!(matches!(refused(kept), HostError::NeedlessNetns));
    let missing = CreateEndpoint { isolation: Isolation::Given, ..request("a") };
    assert!(matches!(refused(missing), HostError::MissingNetns));
    let nowhere = CreateEndpoint { interface: Some("net1".parse().unwrap()), ..request("a") };
    assert!(matches!(refused(nowhere), HostError::NeedlessInterface));
    let given = CreateEndpoint { isolation: Isolation::Namespace, netns, ..request("a") };
    assert!(matches!(refused(given), HostError::Rootless));
}

#[test]
fn a_namespace_is_named_by_a_path_or_a_descriptor() {
    let parse = |text: &str| serde_json::from_str::<Netns>(text).unwrap();
    assert_eq!(parse("3"), Netns::Descriptor(3));
    assert_eq!(parse("\"/run/netns/a\""), Netns::Path("/run/netns/a".into()));
}

#[test]
fn cleaning_tries_everything_and_returns_every_error() {
    let directory = tempfile::tempdir().unwrap();
    let state = config(&directory).state;
    let instance = Instance::lock(&state, true).unwrap();
    let obstacles = [state.api_socket(), state.store()];
    obstacles.iter().for_each(|path| fs::create_dir(path).unwrap());
    fs::write(state.keys(), "").unwrap();
    let error = instance.clean().unwrap_err().to_string();
    assert!(obstacles.iter().all(|path| error.contains(&path.display().to_string())), "{error}");
    assert!(!state.keys().exists());
}

#[test]
fn one_state_directory_has_one_router() {
    let router = Router::start();
    let second = run(config(&router.directory));
    assert!(matches!(second, Err(DaemonError::Instance(InstanceError::AlreadyRunning(_)))), "{second:?}");
    assert!(router.client.status().is_ok());
    router.stop();
}

#[test]
fn what_a_killed_router_left_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(&directory);
    let stale = config.state.endpoints().join("blue.a");
    fs::create_dir_all(&stale).unwrap();
    std::os::unix::net::UnixListener::bind(config.state.api_socket()).unwrap();
    let instance = Instance::acquire(&config).unwrap();
    assert!(!stale.exists() && !config.state.api_socket().exists());
    drop(instance);
}

#[test]
fn what_a_killed_router_had_registered_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    let mut owner = process();
    let first = host(&directory);
    let limited = CreateEndpoint { quota: Quota { qps: 7, ..Quota::default() }, vni: Some(9), ..request("a") };
    first.endpoints().create(limited, 0).unwrap();
    let (blue, a) = ("blue".parse::<Name>().unwrap(), "a".parse::<Name>().unwrap());
    let steps = SetChainSteps { per_second: 5 };
    let made = first.endpoints().set_chain_steps(blue.clone(), a.clone(), steps).unwrap();
    assert_eq!((made.endpoint.quota.qps, made.endpoint.quota.chain_steps), (7, 5));
    assert!(first.endpoints().set_chain_steps(blue, "none".parse().unwrap(), steps).is_err());
    let mut dead = process();
    for (name, process) in [("owned", &owner), ("orphan", &dead)] {
        let owned = CreateEndpoint { lifetime: Lifetime::Caller, ..request(name) };
        first.endpoints().create(owned, process.id() as i32).unwrap();
    }
    // Only its store is left.
    drop(first);
    dead.kill().unwrap();
    dead.wait().unwrap();
    let stale = host_endpoints(&directory).join("blue.stale");
    fs::create_dir(&stale).unwrap();
    let second = host(&directory);
    let names: Vec<_> = second.endpoints().all().iter().map(|info| info.endpoint.name.to_string()).collect();
    assert_eq!(names, ["a", "owned"]);
    assert_eq!(second.endpoints().get("blue".parse().unwrap(), "a".parse().unwrap()).unwrap(), made);
    assert!(made.directory.join("verbs.sock").exists() && !stale.exists());
    assert_eq!(second.records().networks().unwrap()[0].vni, 9);
    let next = second.endpoints().create(request("b"), 0).unwrap();
    assert_eq!(next.endpoint.addresses.len(), 1);
    assert_ne!(next.endpoint.addresses, made.endpoint.addresses);
    thread::scope(|scope| {
        scope.spawn(|| second.endpoints().remove_orphans());
        owner.kill().unwrap();
        owner.wait().unwrap();
        while second.endpoints().all().len() > 2 {
            thread::yield_now();
        }
        second.endpoints().stop_watching();
    });
}

#[test]
fn a_dead_routers_peers_are_restored_where_they_can_be_reached() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(host_endpoints(&directory)).unwrap();
    let config = config_with_underlay(&directory);
    let there: Name = "there".parse().unwrap();
    let remote = |address: &str| PeerEndpoint {
        network: "blue".parse().unwrap(),
        vni: Some(7),
        addresses: vec![address.parse().unwrap()],
        link: None,
    };
    let first = Host::start(config.clone()).unwrap();
    first.peers().set(HostRecord::new(there.clone(), "192.0.2.2".parse().unwrap()), None).unwrap();
    first.peers().add_endpoint(&there, remote("10.7.0.9")).unwrap();
    let before = first.peers().all().unwrap();
    drop(first);
    let second = Host::start(config.clone()).unwrap();
    assert_eq!(second.peers().all().unwrap(), before);
    drop(second);
    // A file says how it is now.
    let mut changed = before;
    changed.hosts[0].endpoints = vec![remote("10.7.0.10")];
    let third = Host::start(DaemonConfig { peers: changed.clone(), ..config.clone() }).unwrap();
    assert_eq!(third.peers().all().unwrap(), changed);
    drop(third);
    let alone = Host::start(DaemonConfig { io: IoConfig::default(), peers: Peers::default(), ..config }).unwrap();
    assert_eq!(alone.peers().all().unwrap(), Peers::default());
}

/// A process that stays until it is told to go.
fn process() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

fn host(directory: &TempDir) -> Host {
    let config = config(directory);
    fs::create_dir_all(config.state.endpoints()).unwrap();
    Host::start(config).unwrap()
}

#[test]
fn an_endpoint_whose_owner_is_dead_does_not_stand_in_the_way() {
    let directory = tempfile::tempdir().unwrap();
    let host = host(&directory);
    let address = vec!["10.7.0.2".parse().unwrap()];
    let (mut first, mut second) = (process(), process());
    let create = |name: &str, owner: &Child| {
        let owned = CreateEndpoint { lifetime: Lifetime::Caller, addresses: address.clone(), ..request(name) };
        host.endpoints().create(owned, owner.id() as i32)
    };
    create("a", &first).unwrap();
    assert!(matches!(create("a", &second), Err(HostError::Registry(_))));
    assert!(matches!(create("b", &second), Err(HostError::Registry(_))));
    first.kill().unwrap();
    first.wait().unwrap();
    let new = create("b", &second).unwrap();
    assert_eq!(host.endpoints().all(), [new] as [EndpointInfo; 1]);
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn an_endpoint_goes_when_its_owner_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let host = host(&directory);
    let mut owner = process();
    let made = host
        .endpoints()
        .create(CreateEndpoint { lifetime: Lifetime::Caller, ..request("a") }, owner.id() as i32)
        .unwrap();
    host.endpoints().create(request("stays"), 0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| host.endpoints().remove_orphans());
        owner.kill().unwrap();
        owner.wait().unwrap();
        while made.directory.exists() {
            thread::yield_now();
        }
        host.endpoints().stop_watching();
    });
    let left = host.endpoints().all();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].endpoint.name.as_str(), "stays");
}

#[test]
fn an_endpoint_that_cannot_be_made_leaves_no_trace() {
    let directory = tempfile::tempdir().unwrap();
    let host = host(&directory);
    fs::remove_dir(host_endpoints(&directory)).unwrap();
    assert!(matches!(host.endpoints().create(request("a"), 0), Err(HostError::Endpoint(_))));
    fs::create_dir(host_endpoints(&directory)).unwrap();
    let made = host.endpoints().create(request("a"), 0).unwrap();
    assert_eq!(made.endpoint.addresses, ["10.78.0.2".parse::<IpAddr>().unwrap()]);
}

fn host_endpoints(directory: &TempDir) -> PathBuf {
    config(directory).state.endpoints()
}

#[test]
fn peers_are_added_and_removed_by_the_api() {
    let router = Router::start_with(config_with_underlay);
    let client = &router.client;
    let there: Name = "there".parse().unwrap();
    let address = "192.0.2.2".parse().unwrap();
    let remote = PeerEndpoint {
        network: "blue".parse().unwrap(),
        vni: Some(7),
        addresses: vec!["10.7.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
        link: None,
    };
    assert_eq!(status_of(client.add_peer_endpoint(&there, &remote)), 404);
    client.set_peer(&there, address, None).unwrap();
    assert_eq!(client.add_peer_endpoint(&there, &remote).unwrap(), remote);
    assert_eq!(client.peers().unwrap().hosts[0].endpoints, std::slice::from_ref(&remote));
    let taken = CreateEndpoint { addresses: vec!["10.7.0.2".parse().unwrap()], ..request("a") };
    assert_eq!(status_of(client.create_endpoint(&taken)), 409);
    assert_eq!(status_of(client.create_endpoint(&CreateEndpoint { vni: Some(8), ..request("a") })), 409);
    assert_eq!(client.create_endpoint(&request("a")).unwrap().endpoint.addresses.len(), 2);
    assert_eq!(client.endpoints().unwrap().len(), 1);
    assert_eq!(client.remove_peer_endpoint(&there, &remote.network, remote.addresses[1]).unwrap(), remote);
    assert_eq!(client.remove_peer(&there).unwrap().address, address);
    assert_eq!(client.peers().unwrap(), Peers::default());
    assert_eq!(status_of(client.remove_peer(&there)), 404);
    router.stop();
}

#[test]
fn peers_that_cannot_be_are_refused() {
    let router = Router::start_with(config_with_underlay);
    let set =
        |name: &str, address: &str| router.client.set_peer(&name.parse().unwrap(), address.parse().unwrap(), None);
    assert_eq!(status_of(set("here", "192.0.2.2")), 400);
    assert_eq!(status_of(set("there", "2001:db8::2")), 400);
    let own = router.client.status().unwrap().underlay.unwrap().to_string();
    assert_eq!(status_of(set("there", &own)), 409);
    router.stop();
    let alone = Router::start();
    assert_eq!(status_of(alone.client.set_peer(&"there".parse().unwrap(), "192.0.2.2".parse().unwrap(), None)), 400);
    alone.stop();
}

#[test]
fn all_hosts_may_have_the_same_peers_file() {
    let directory = tempfile::tempdir().unwrap();
    let text = |own: &str| -> Peers {
        let hosts = r#"{ "hosts": [
            { "name": "here", "address": "OWN",
              "endpoints": [{ "network": "blue", "vni": 7, "addresses": ["10.7.0.2"] }] },
            { "name": "there", "address": "192.0.2.2",
              "endpoints": [{ "network": "blue", "addresses": ["10.7.0.3"] }] } ] }"#;
        hosts.replace("OWN", own).parse().unwrap()
    };
    fs::create_dir_all(host_endpoints(&directory)).unwrap();
    let config = config_with_underlay(&directory);
    let own = config.io.underlay.unwrap().to_string();
    let wrong = DaemonConfig { peers: text("192.0.2.1"), ..config.clone() };
    assert!(matches!(Host::start(wrong), Err(HostError::OwnAddress { .. })));
    let host = Host::start(DaemonConfig { peers: text(&own), ..config }).unwrap();
    let peers = host.peers().all().unwrap();
    assert_eq!((peers.hosts.len(), peers.hosts[0].endpoints[0].vni), (1, Some(7)));
    let made = host.endpoints().create(request("a"), 0).unwrap();
    assert_eq!(made.endpoint.addresses, ["10.7.0.2".parse::<IpAddr>().unwrap()]);
}

#[test]
fn an_underlay_that_this_host_does_not_have_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let io = IoConfig {
        underlay: Some("192.0.2.1".parse().unwrap()),
        faults: None,
        is_insecure: true,
        ..IoConfig::default()
    };
    fs::create_dir_all(host_endpoints(&directory)).unwrap();
    let started = Host::start(DaemonConfig { io, ..config(&directory) });
    assert!(matches!(started, Err(HostError::Underlay(_))));
}

#[test]
fn faults_are_set_and_shown() {
    let router = Router::start();
    let set = |text: &str| router.client.set_faults(&FaultsText { faults: Some(text.to_owned()) });
    assert_eq!(router.client.faults().unwrap().faults, None);
    let faults = set("loss=1%,seed=7").unwrap();
    assert_eq!(router.client.faults().unwrap(), faults);
    assert_eq!(status_of(set("los=1%")), 400);
    assert_eq!(router.client.set_faults(&FaultsText::default()).unwrap().faults, None);
    router.stop();
}

/// Two routers that share a store find each other's endpoints, without a word about peers.
#[test]
fn routers_of_one_store_find_each_other() {
    let store = Embedded::default();
    let start = |name: &str, directory: &TempDir| {
        let store = Some(SharedStore::new(store.clone(), Default::default(), Default::default()));
        let config = config_with_underlay(directory);
        fs::create_dir_all(config.state.endpoints()).unwrap();
        Host::start(DaemonConfig { host: name.parse().unwrap(), store, ..config }).unwrap()
    };
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (a, b) = (start("a", &directories[0]), start("b", &directories[1]));
    let made = [(&a, "on-a"), (&b, "on-b")].map(|(host, name)| {
        // Until the host has joined, endpoints are refused.
        let made = wait_for(|| match host.endpoints().create(request(name), 0) {
            Err(HostError::NotJoined) => None,
            made => Some(made.unwrap()),
        });
        made.endpoint
    });
    assert_ne!(made[0].addresses, made[1].addresses);
    let sees = |host: &Host| {
        let peers = host.peers().all().unwrap().hosts;
        peers.into_iter().flat_map(|peer| peer.endpoints).map(|endpoint| endpoint.addresses).collect::<Vec<_>>()
    };
    wait_for(|| (sees(&a) == [made[1].addresses.clone()]).then_some(()));
    wait_for(|| (sees(&b) == [made[0].addresses.clone()]).then_some(()));
    let (network, name) = (made[1].network.clone(), made[1].name.clone());
    b.endpoints().remove(network.clone(), name.clone()).unwrap();
    wait_for(|| sees(&a).is_empty().then_some(()));
    // Made again on the other host, it has the address that it had.
    let again = CreateEndpoint { addresses: made[1].addresses.clone(), ..request(name.as_str()) };
    let moved = wait_for(|| a.endpoints().create(CreateEndpoint { ..again.clone() }, 0).ok());
    assert_eq!(moved.endpoint.addresses, made[1].addresses);
    // A router that is killed leaves its endpoints, and the next one goes on with them.
    drop(a);
    let a = start("a", &directories[0]);
    assert_eq!(a.endpoints().all().len(), 2);
    b.endpoints().create(request("back"), 0).unwrap();
    wait_for(|| (sees(&b).len() == 2).then_some(()));
    a.endpoints().clear().unwrap();
    drop(a);
    wait_for(|| sees(&b).is_empty().then_some(()));
}

fn wait_for<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(value) = condition() {
            return value;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("waited in vain");
}
