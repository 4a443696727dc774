//! Threads and descriptors of very many endpoints. A process of its own, because it counts those of the process.
#![allow(clippy::unwrap_used, reason = "all of this is tests")]

use rdmesh_fabric::Quota;
use rdmesh_router::endpoint::EndpointId;
use rdmesh_router::io::IoConfig;
use rdmesh_router::session::{EndpointSpec, SessionServer};
use rdmesh_router::worker::{Mode, WorkerConfig, Workers};
use rdmesh_verbs::{DeviceLimits, Gid, Vni};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::read_dir;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;

const COUNT: u32 = 1000;

fn spec(number: u32) -> EndpointSpec {
    EndpointSpec {
        policy: Default::default(),
        id: EndpointId(number),
        name: format!("e{number}"),
        network: "blue".into(),
        vni: Vni(7),
        gids: vec![Gid::from_ip(Ipv4Addr::from_bits(0x0a07_0000 + number).into())],
        quota: Quota::default(),
        allowed_uid: None,
        namespace: None,
    }
}

fn socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn listener(path: &Path) -> OwnedFd {
    let socket = socket();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    socket
}

/// Threads and descriptors of this process.
fn held() -> [usize; 2] {
    ["/proc/self/task", "/proc/self/fd"].map(|folder| read_dir(folder).unwrap().count())
}

#[test]
fn an_endpoint_takes_its_listener_and_no_thread() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let limits = DeviceLimits::default();
    let config = WorkerConfig { count: 1, mode: Mode::Sleep, limits, io: IoConfig::default() };
    let workers = Workers::start(config).unwrap();
    let sessions = SessionServer::start(workers.shards().to_vec(), limits, Mode::Sleep).unwrap();
    let directory = tempfile::tempdir().unwrap();
    sessions.totals();
    let before = held();
    for number in 0..COUNT {
        sessions.add_endpoint(spec(number), listener(&directory.path().join(number.to_string())));
    }
    // Answered after all that was told before.
    sessions.totals();
    let [threads, descriptors] = held();
    assert_eq!([threads, descriptors - COUNT as usize], before);
    // Each is served all the same.
    for number in [0, COUNT / 2, COUNT - 1] {
        let path = directory.path().join(number.to_string());
        connect(socket(), &SocketAddrUnix::new(path).unwrap()).unwrap();
    }
    while sessions.totals().connections_accepted < 3 {
        std::thread::yield_now();
    }
}
