use super::*;
use rdmesh_fabric::{InterfaceName, Isolation, Labels, Quota};
use rustix::net::connect;

fn endpoint(addresses: &[&str], isolation: Isolation) -> Endpoint {
    Endpoint {
        name: "a".parse().unwrap(),
        network: "blue".parse().unwrap(),
        host: "here".parse().unwrap(),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        quota: Quota::default(),
        allowed_uid: None,
        owner_pid: None,
        isolation,
        interface: InterfaceName::default(),
        pool: None,
        labels: Labels::default(),
    }
}

/// A library (its content does not matter here) in `directory`.
fn library(directory: &Path) -> Library {
    let installed = directory.join("installed");
    fs::write(&installed, "library").unwrap();
    fs::write(directory.join(SOCKETS_LIBRARY_NAME), "sockets").unwrap();
    Library::install(&installed, directory).unwrap()
}

fn sysfs(directory: &EndpointDir, file: &str) -> String {
    fs::read_to_string(directory.path().join("sys/class/infiniband/rxe0").join(file)).unwrap()
}

#[test]
fn the_directory_has_all_that_a_program_needs_and_goes_when_dropped() {
    let temp = tempfile::tempdir().unwrap();
    let library = library(temp.path());
    let path = temp.path().join("blue.a");
    let (directory, _listener) =
        EndpointDir::create(&path, &endpoint(&["10.7.0.2"], Isolation::Namespace), &library).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&client, &SocketAddrUnix::new(path.join(SOCKET_NAME)).unwrap()).unwrap();
    assert_eq!(fs::read(path.join(LIBRARY_NAME)).unwrap(), b"library");
    assert_eq!(fs::read(path.join(SOCKETS_LIBRARY_NAME)).unwrap(), b"sockets");
    assert_eq!(sysfs(&directory, "node_type"), "1: CA\n");
    assert_eq!(sysfs(&directory, "ports/1/hw_counters/duplicate_request"), "", "files do not count");
    assert!(path.join("dev/infiniband/rdma_cm").is_file() && path.join("dev/infiniband/uverbs0").is_file());
    drop(directory);
    assert!(!path.exists());
}

#[test]
fn gids_are_written_as_the_kernel_does() {
    let temp = tempfile::tempdir().unwrap();
    let library = library(temp.path());
    let (directory, _listener) = EndpointDir::create(
        &temp.path().join("blue.a"),
        &endpoint(&["10.7.0.2", "fd00::2"], Isolation::Namespace),
        &library,
    )
    .unwrap();
    assert_eq!(sysfs(&directory, "ports/1/gids/0"), "fe80:0000:0000:0000:0052:0aff:fe07:0002\n");
    assert_eq!(sysfs(&directory, "ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a07:0002\n");
    assert_eq!(sysfs(&directory, "ports/1/gids/2"), "fd00:0000:0000:0000:0000:0000:0000:0002\n");
    assert_eq!(sysfs(&directory, "ports/1/gids/15"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
    assert_eq!(sysfs(&directory, "ports/1/gid_attrs/types/2"), "RoCE v2\n");
    assert_eq!(sysfs(&directory, "ports/1/gid_attrs/ndevs/2"), "eth0\n");
    assert_eq!(sysfs(&directory, "node_guid"), "0052:0aff:fe07:0002\n");
}

#[test]
fn the_device_leads_to_its_interface() {
    let temp = tempfile::tempdir().unwrap();
    let library = library(temp.path());
    let create = |name: &str, addresses: &[&str], isolation| {
        EndpointDir::create(&temp.path().join(name), &endpoint(addresses, isolation), &library).unwrap().0
    };
    let interfaces = |directory: &EndpointDir, device: &str| -> Vec<_> {
        let net = directory.path().join("sys/class").join(device).join("device/net");
        fs::read_dir(net).into_iter().flatten().map(|entry| entry.unwrap().file_name()).collect()
    };
    let made = create("made", &["10.7.0.2"], Isolation::Namespace);
    assert_eq!(interfaces(&made, "infiniband/rxe0"), ["eth0"]);
    assert_eq!(interfaces(&made, "infiniband_verbs/uverbs0"), ["eth0"]);
    assert_eq!(sysfs(&made, "parent"), "eth0\n");
    let hosts = create("hosts", &["127.0.0.1"], Isolation::None);
    assert_eq!(interfaces(&hosts, "infiniband/rxe0"), ["lo"]);
    assert_eq!(sysfs(&hosts, "ports/1/gid_attrs/ndevs/1"), "lo\n");
    let unknown = create("unknown", &["192.0.2.77"], Isolation::None);
    assert!(interfaces(&unknown, "infiniband/rxe0").is_empty(), "a container's interface is not known");
    assert_eq!(sysfs(&unknown, "device/numa_node"), "-1\n");
}

/// As the kernel's rdma_rxe shows it (`find /sys/class/infiniband* /sys/devices/virtual/infiniband*` with one device).
#[test]
fn links_lead_where_the_kernels_lead() {
    let temp = tempfile::tempdir().unwrap();
    let library = library(temp.path());
    let (directory, _listener) =
        EndpointDir::create(&temp.path().join("x"), &endpoint(&["10.7.0.2"], Isolation::None), &library).unwrap();
    let root = directory.path().join("sys");
    for (link, target, class) in [
        ("class/infiniband/rxe0", "../../devices/virtual/infiniband/rxe0", "infiniband"),
        ("class/infiniband_verbs/uverbs0", "../../devices/virtual/infiniband_verbs/uverbs0", "infiniband_verbs"),
        ("class/misc/rdma_cm", "../../devices/virtual/misc/rdma_cm", "misc"),
        ("dev/char/231:192", "../../devices/virtual/infiniband_verbs/uverbs0", "infiniband_verbs"),
        ("dev/char/10:58", "../../devices/virtual/misc/rdma_cm", "misc"),
    ] {
        assert_eq!(fs::read_link(root.join(link)).unwrap(), Path::new(target), "{link}");
        assert_eq!(
            fs::canonicalize(root.join(link).join("subsystem")).unwrap(),
            fs::canonicalize(root.join("class").join(class)).unwrap(),
            "{link}"
        );
    }
    assert_eq!(sysfs(&directory, "uevent"), "NAME=rxe0\n");
    let event = fs::read_to_string(root.join("dev/char/10:58/uevent")).unwrap();
    assert_eq!(event, "MAJOR=10\nMINOR=58\nDEVNAME=infiniband/rdma_cm\nDEVMODE=0666\n");
}

#[test]
fn the_connection_manager_has_a_version_and_a_number() {
    let temp = tempfile::tempdir().unwrap();
    let library = library(temp.path());
    let (directory, _listener) =
        EndpointDir::create(&temp.path().join("x"), &endpoint(&["10.7.0.2"], Isolation::None), &library).unwrap();
    let read = |name: &str| fs::read_to_string(directory.path().join("sys/class/misc/rdma_cm").join(name)).unwrap();
    assert_eq!((read("abi_version"), read("dev")), ("4\n".to_owned(), "10:58\n".to_owned()));
}

#[test]
fn an_interface_is_named_only_where_it_is_known() {
    let temp = tempfile::tempdir().unwrap();
    let library = library(temp.path());
    let (directory, _listener) =
        EndpointDir::create(&temp.path().join("x"), &endpoint(&["10.7.0.2"], Isolation::None), &library).unwrap();
    assert!(!directory.path().join("sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs").exists());
}

#[test]
fn a_path_that_no_socket_can_have_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let library = library(temp.path());
    let long = temp.path().join("x".repeat(100));
    let result = EndpointDir::create(&long, &endpoint(&["10.7.0.2"], Isolation::None), &library);
    assert!(matches!(result, Err(EndpointError::PathTooLong(_))));
    assert!(!long.exists());
}

#[test]
fn a_directory_that_a_dead_router_left_stays_the_same_with_new_contents() {
    use std::os::unix::fs::MetadataExt;
    let temp = tempfile::tempdir().unwrap();
    let library = library(temp.path());
    let path = temp.path().join("blue.a");
    let (endpoint, inode) = (endpoint(&["10.7.0.2"], Isolation::None), || fs::metadata(&path).unwrap().ino());
    let (left, listener) = EndpointDir::create(&path, &endpoint, &library).unwrap();
    let before = inode();
    std::mem::forget(left);
    drop(listener);
    let tree = path.join(SYSFS_NAME);
    fs::write(tree.join("stale"), "").unwrap();
    // A link that root in a container could have made there, to have the router write to the host's files.
    let precious = temp.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    for link in ["librdmesh.new", "librdmesh.so", "sys.new", "dev/infiniband/uverbs0", "verbs.sock.new"] {
        let _ = fs::remove_file(path.join(link));
        std::os::unix::fs::symlink(&precious, path.join(link)).unwrap();
    }
    let (directory, _listener) = EndpointDir::create(&path, &endpoint, &library).unwrap();
    assert_eq!(inode(), before);
    assert!(!tree.join("stale").exists() && path.join(LIBRARY_NAME).exists());
    let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&client, &SocketAddrUnix::new(path.join(SOCKET_NAME)).unwrap()).unwrap();
    let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["dev", "librdmesh-sockets.so", "librdmesh.so", "streams.sock", "sys", "verbs.sock"]);
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    drop(directory);
    assert!(!path.exists());
}
