//! Tests of the overlay on one host: namespaces, bridges and addresses.

mod given;
mod hosts;

use super::*;
use rdmesh_fabric::{InterfaceName, Isolation, Labels, Quota};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

/// An overlay in a fresh directory, removed again at the end; none (and a line that says why) without root.
struct World {
    overlay: Overlay,
    _directory: tempfile::TempDir,
}

impl World {
    fn new() -> Option<Self> {
        may_make_namespaces().then(|| Self::with_underlay(None))
    }

    fn with_underlay(underlay: Option<Underlay>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let overlay = Overlay::new(StateDir::new(directory.path()), underlay).unwrap();
        Self { overlay, _directory: directory }
    }

    fn namespace(&self, endpoint: &Endpoint) -> Namespace {
        Namespace::open(&self.overlay.state.endpoint_namespace(endpoint)).unwrap().unwrap()
    }

    fn files(&self) -> Vec<String> {
        let mut files = files_in(&self.overlay.state.namespaces()).unwrap();
        files.sort();
        files
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.overlay.clear().unwrap();
        assert_eq!(self.files(), [] as [&str; 0]);
    }
}

fn may_make_namespaces() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: network namespaces need root");
    }
    is_root
}

fn network(name: &str) -> Network {
    let subnets = vec!["10.7.0.0/24".parse().unwrap(), "fd00:7::/64".parse().unwrap()];
    Network { subnets, ..Network::around(name.parse().unwrap(), 7, &[]) }
}

fn endpoint(network: &Network, name: &str, addresses: &[&str]) -> Endpoint {
    Endpoint {
        name: name.parse().unwrap(),
        network: network.name.clone(),
        host: "here".parse().unwrap(),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        quota: Quota::default(),
        allowed_uid: None,
        owner_pid: None,
        isolation: Isolation::Namespace,
        interface: InterfaceName::default(),
        pool: None,
        labels: Labels::default(),
    }
}

/// The interface of endpoints that ask for no other name.
const INTERFACE: &str = "eth0";

fn own_interfaces() -> Vec<String> {
    files_in(Path::new("/sys/class/net")).unwrap()
}

#[test]
fn endpoints_of_a_network_reach_each_other_and_those_of_another_do_not() {
    let Some(world) = World::new() else { return };
    let before = own_interfaces();
    let (blue, red) = (network("blue"), network("red"));
    let [a, b] = [("a", "10.7.0.2"), ("b", "10.7.0.3")].map(|(name, ip)| endpoint(&blue, name, &[ip]));
    let stranger = endpoint(&red, "c", &["10.7.0.4"]);
    for e in [&a, &b] {
        world.overlay.add_endpoint(&blue, e).unwrap();
    }
    world.overlay.add_endpoint(&red, &stranger).unwrap();

    let listener = world.namespace(&b).run(|| TcpListener::bind(("10.7.0.3", 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    let stream = world.namespace(&a).run(move || TcpStream::connect(("10.7.0.3", port))).unwrap();
    assert_eq!(stream.local_addr().unwrap().ip(), "10.7.0.2".parse::<IpAddr>().unwrap());
    let timeout = std::time::Duration::from_millis(200);
    let target = format!("10.7.0.3:{port}").parse().unwrap();
    assert!(world.namespace(&stranger).run(move || TcpStream::connect_timeout(&target, timeout)).is_err());
    assert_eq!(own_interfaces(), before);
}

#[test]
fn adding_twice_keeps_what_is_there() {
    let Some(world) = World::new() else { return };
    let blue = network("blue");
    let a = endpoint(&blue, "a", &["10.7.0.2", "fd00:7::2"]);
    let file = world.overlay.add_endpoint(&blue, &a).unwrap();
    let inode = file.metadata().unwrap().ino();
    assert_eq!(world.overlay.add_endpoint(&blue, &a).unwrap(), file);
    assert_eq!(file.metadata().unwrap().ino(), inode);
    for address in &a.addresses {
        let address = *address;
        world.namespace(&a).run(move || UdpSocket::bind((address, 0))).unwrap();
    }
}

#[test]
fn an_endpoint_can_be_made_again_at_once_while_an_old_process_lingers() {
    let Some(world) = World::new() else { return };
    let blue = network("blue");
    let a = endpoint(&blue, "a", &["10.7.0.2"]);
    world.overlay.add_endpoint(&blue, &a).unwrap();
    let lingering = world.namespace(&a);
    world.overlay.remove_endpoint(&a).unwrap();
    assert_eq!(world.files(), [] as [&str; 0]);
    world.overlay.add_endpoint(&blue, &a).unwrap();
    assert_eq!(lingering.run(|| Links::open()?.find(INTERFACE)).unwrap(), None);
    assert!(world.namespace(&a).run(|| Links::open()?.find(INTERFACE)).unwrap().is_some());
}

#[test]
fn removing_twice_is_no_error_and_the_network_goes_last() {
    let Some(world) = World::new() else { return };
    let blue = network("blue");
    let [a, b] = [("a", "10.7.0.2"), ("b", "10.7.0.3")].map(|(name, ip)| endpoint(&blue, name, &[ip]));
    world.overlay.add_endpoint(&blue, &a).unwrap();
    world.overlay.add_endpoint(&blue, &b).unwrap();
    world.overlay.remove_endpoint(&a).unwrap();
    world.overlay.remove_endpoint(&a).unwrap();
    assert_eq!(world.files(), ["blue", "blue.b"]);
    world.overlay.remove_endpoint(&b).unwrap();
    assert_eq!(world.files(), [] as [&str; 0]);
}

#[test]
fn the_interface_has_the_derived_addresses() {
    let Some(world) = World::new() else { return };
    let blue = network("blue");
    let a = endpoint(&blue, "a", &["10.7.0.2"]);
    world.overlay.add_endpoint(&blue, &a).unwrap();
    let local: String = mac_of(&a).link_local().octets().iter().map(|b| format!("{b:02x}")).collect();
    // The kernel assigns it some time after it has seen the carrier.
    let begin = Instant::now();
    loop {
        let listed = world.namespace(&a).run(|| fs::read_to_string("/proc/thread-self/net/if_inet6")).unwrap();
        if listed.contains(&local) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{listed}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_a_dead_router_left_is_taken_over() {
    let Some(world) = World::new() else { return };
    let (blue, red) = (network("blue"), Network { vni: 8, ..network("red") });
    let [a, b] = [("a", "10.7.0.2"), ("b", "10.7.0.3")].map(|(name, ip)| endpoint(&blue, name, &[ip]));
    let c = endpoint(&red, "c", &["10.7.0.4"]);
    world.overlay.add_endpoint(&blue, &a).unwrap();
    world.overlay.add_endpoint(&blue, &b).unwrap();
    world.overlay.add_endpoint(&red, &c).unwrap();
    let lingering = world.namespace(&b);
    fs::write(world.overlay.state.namespaces().join("blue.half-made"), "").unwrap();
    let inode = |endpoint: &Endpoint| world.overlay.state.endpoint_namespace(endpoint).metadata().unwrap().ino();
    let before = inode(&a);
    let next = Overlay::new(world.overlay.state.clone(), None).unwrap();
    next.take_over(std::slice::from_ref(&blue), std::slice::from_ref(&a)).unwrap();
    assert_eq!(world.files(), ["blue", "blue.a"]);
    assert_eq!(inode(&a), before);
    // A process that is still in the namespace of `b` is cut off at once.
    assert_eq!(lingering.run(|| Links::open()?.find(INTERFACE)).unwrap(), None);
    next.add_endpoint(&blue, &a).unwrap();
    next.add_endpoint(&blue, &b).unwrap();
    let listener = world.namespace(&a).run(|| TcpListener::bind(("10.7.0.2", 0))).unwrap();
    let address = listener.local_addr().unwrap();
    world.namespace(&b).run(move || TcpStream::connect(address)).unwrap();
    next.take_over(std::slice::from_ref(&blue), &[]).unwrap();
    assert_eq!(world.files(), [] as [&str; 0]);
}

#[test]
fn teardown_does_all_it_can_and_returns_every_error() {
    let Some(world) = World::new() else { return };
    let blue = network("blue");
    let a = endpoint(&blue, "a", &["10.7.0.2"]);
    world.overlay.add_endpoint(&blue, &a).unwrap();
    // A directory cannot be removed as a file can.
    let obstacles = ["first.x", "second.x"].map(|name| world.overlay.state.namespaces().join(name));
    obstacles.iter().for_each(|path| fs::create_dir(path).unwrap());
    let error = world.overlay.clear().unwrap_err().to_string();
    assert_eq!(error.matches("os error 21").count(), 2, "{error}");
    assert_eq!(world.files(), ["first.x", "second.x"]);
    obstacles.iter().for_each(|path| fs::remove_dir(path).unwrap());
}
