//! Tests of network namespaces that are given to endpoints.

use super::*;

/// A namespace of another's, in a file.
struct Given {
    file: PathBuf,
    _directory: tempfile::TempDir,
}

impl Given {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("given");
        Namespace::ensure(&file).unwrap();
        Self { file, _directory: directory }
    }

    fn namespace(&self) -> Namespace {
        Namespace::open(&self.file).unwrap().unwrap()
    }

    fn has_interface(&self) -> bool {
        Links::of(&self.namespace()).unwrap().find(INTERFACE).unwrap().is_some()
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        Namespace::remove(&self.file).unwrap();
    }
}

fn given_endpoint(network: &Network, name: &str, address: &str) -> Endpoint {
    Endpoint { isolation: Isolation::Given, ..endpoint(network, name, &[address]) }
}

#[test]
fn a_given_namespace_is_connected_and_stays_when_the_endpoint_goes() {
    let Some(world) = World::new() else { return };
    let (blue, given) = (network("blue"), Given::new());
    let a = given_endpoint(&blue, "a", "10.7.0.2");
    let b = endpoint(&blue, "b", &["10.7.0.3"]);
    world.overlay.adopt(&a, &given.file).unwrap();
    world.overlay.add_endpoint(&blue, &a).unwrap();
    world.overlay.add_endpoint(&blue, &b).unwrap();
    let listener = given.namespace().run(|| TcpListener::bind(("10.7.0.2", 0))).unwrap();
    let address = listener.local_addr().unwrap();
    world.namespace(&b).run(move || TcpStream::connect(address)).unwrap();
    world.overlay.remove_endpoint(&a).unwrap();
    assert_eq!(world.files(), ["blue", "blue.b"]);
    assert!(!given.has_interface());
    assert!(given.namespace().run(|| Links::open()?.find("lo")).unwrap().is_some());
}

#[test]
fn a_descriptor_names_a_given_namespace() {
    let Some(world) = World::new() else { return };
    let (blue, given) = (network("blue"), Given::new());
    let open = fs::File::open(&given.file).unwrap();
    let a = given_endpoint(&blue, "a", "10.7.0.2");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    world.overlay.adopt(&a, Path::new(&path)).unwrap();
    world.overlay.add_endpoint(&blue, &a).unwrap();
    assert!(given.has_interface());
}

#[test]
fn a_later_router_goes_on_with_a_given_namespace() {
    let Some(world) = World::new() else { return };
    let (blue, given) = (network("blue"), Given::new());
    let a = given_endpoint(&blue, "a", "10.7.0.2");
    world.overlay.adopt(&a, &given.file).unwrap();
    world.overlay.add_endpoint(&blue, &a).unwrap();
    let next = Overlay::new(world.overlay.state.clone(), None).unwrap();
    next.take_over(std::slice::from_ref(&blue), std::slice::from_ref(&a)).unwrap();
    assert!(given.has_interface());
    next.add_endpoint(&blue, &a).unwrap();
    assert!(given.has_interface());
    // One that it no longer holds is not replaced by a new one.
    next.remove_endpoint(&a).unwrap();
    assert!(next.add_endpoint(&blue, &a).unwrap_err().to_string().contains("held no longer"));
    assert_eq!(world.files(), [] as [&str; 0]);
}

#[test]
fn clearing_takes_the_interface_out_of_a_given_namespace_at_once() {
    let Some(world) = World::new() else { return };
    let (blue, given) = (network("blue"), Given::new());
    let a = given_endpoint(&blue, "a", "10.7.0.2");
    world.overlay.adopt(&a, &given.file).unwrap();
    world.overlay.add_endpoint(&blue, &a).unwrap();
    world.overlay.clear().unwrap();
    assert!(!given.has_interface());
}

#[test]
fn an_interface_of_the_same_name_is_left_alone() {
    let Some(world) = World::new() else { return };
    let (blue, given) = (network("blue"), Given::new());
    Links::of(&given.namespace()).unwrap().apply(Changes::default().ensure_bridge(INTERFACE)).unwrap();
    let a = given_endpoint(&blue, "a", "10.7.0.2");
    world.overlay.adopt(&a, &given.file).unwrap();
    let error = world.overlay.add_endpoint(&blue, &a).unwrap_err();
    assert!(error.is_conflict());
    let error = error.to_string();
    assert!(error.contains("it has an interface `eth0` already: choose another name with --interface"), "{error}");
    assert!(given.has_interface());
    assert_eq!(world.files(), [] as [&str; 0]);
}

#[test]
fn the_interface_has_the_name_that_was_asked_for() {
    let Some(world) = World::new() else { return };
    let (blue, given) = (network("blue"), Given::new());
    let mut inside = Links::of(&given.namespace()).unwrap();
    inside.apply(Changes::default().ensure_bridge(INTERFACE)).unwrap();
    let a = Endpoint { interface: "net1".parse().unwrap(), ..given_endpoint(&blue, "a", "10.7.0.2") };
    world.overlay.adopt(&a, &given.file).unwrap();
    // Again, as after a restart.
    for _ in 0..2 {
        world.overlay.add_endpoint(&blue, &a).unwrap();
    }
    let mut mtu = |name| inside.find(name).unwrap().map(|link| link.mtu);
    assert_eq!((mtu("net1"), mtu(INTERFACE)), (Some(MTU_ALONE), Some(1500)));
    given.namespace().run(|| TcpListener::bind(("10.7.0.2", 0))).unwrap();
    // The packets of a network become smaller, those of other interfaces do not.
    inside.apply(Changes::default().set_mtu("net1", 1400)).unwrap();
    let mut bridge = Bridge::open(&world.overlay.state.network_namespace(&blue.name)).unwrap().unwrap();
    world.overlay.tune(&blue, &mut bridge, &BTreeMap::new()).unwrap();
    let mut mtu = |name| inside.find(name).unwrap().map(|link| link.mtu);
    assert_eq!((mtu("net1"), mtu(INTERFACE)), (Some(MTU_ALONE), Some(1500)));
    world.overlay.remove_endpoint(&a).unwrap();
    let mut mtu = |name| inside.find(name).unwrap().map(|link| link.mtu);
    assert_eq!((mtu("net1"), mtu(INTERFACE)), (None, Some(1500)));
}

#[test]
fn what_is_no_other_network_namespace_is_refused() {
    let Some(world) = World::new() else { return };
    let a = given_endpoint(&network("blue"), "a", "10.7.0.2");
    let refusal = |path: &str| world.overlay.adopt(&a, Path::new(path)).unwrap_err().to_string();
    assert!(refusal("/dev/null").contains("it is no namespace"));
    assert!(refusal("/proc/self/ns/uts").contains("it is no network namespace"));
    assert!(refusal("/proc/self/ns/net").contains("the router's own"));
    assert!(refusal("/nowhere").contains("os error 2"));
    assert_eq!(world.files(), [] as [&str; 0]);
}
