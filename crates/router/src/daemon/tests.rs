use super::*;
use rdmesh_fabric::api::{CreateEndpoint, EndpointInfo, Lifetime};
use rdmesh_fabric::{Client, ClientError, Isolation, Quota};
use std::fs;
use std::process::{Child, Command};
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
    }
}

fn request(name: &str) -> CreateEndpoint {
    CreateEndpoint {
        name: name.parse().unwrap(),
        network: "blue".parse().unwrap(),
        addresses: Vec::new(),
        quota: Quota::default(),
        allowed_uid: None,
        lifetime: Lifetime::Persistent,
        isolation: Isolation::None,
    }
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
        host.create_endpoint(owned, owner.id() as i32)
    };
    create("a", &first).unwrap();
    assert!(matches!(create("a", &second), Err(HostError::Registry(_))));
    assert!(matches!(create("b", &second), Err(HostError::Registry(_))));
    first.kill().unwrap();
    first.wait().unwrap();
    let new = create("b", &second).unwrap();
    assert_eq!(host.endpoints(), [new] as [EndpointInfo; 1]);
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn an_endpoint_goes_when_its_owner_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let host = host(&directory);
    let mut owner = process();
    let made =
        host.create_endpoint(CreateEndpoint { lifetime: Lifetime::Caller, ..request("a") }, owner.id() as i32).unwrap();
    host.create_endpoint(request("stays"), 0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| host.remove_orphans());
        owner.kill().unwrap();
        owner.wait().unwrap();
        while made.directory.exists() {
            thread::yield_now();
        }
        host.stop_watching();
    });
    let left = host.endpoints();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].endpoint.name.as_str(), "stays");
}

#[test]
fn an_endpoint_that_cannot_be_made_leaves_no_trace() {
    let directory = tempfile::tempdir().unwrap();
    let host = host(&directory);
    fs::remove_dir(host_endpoints(&directory)).unwrap();
    assert!(matches!(host.create_endpoint(request("a"), 0), Err(HostError::Endpoint(_))));
    fs::create_dir(host_endpoints(&directory)).unwrap();
    let made = host.create_endpoint(request("a"), 0).unwrap();
    assert_eq!(made.endpoint.addresses, ["10.78.0.2".parse::<std::net::IpAddr>().unwrap()]);
}

fn host_endpoints(directory: &TempDir) -> PathBuf {
    config(directory).state.endpoints()
}
