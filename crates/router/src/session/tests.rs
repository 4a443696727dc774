//! Tests of what goes on while a lookup for one tenant takes its time.

#[allow(dead_code, reason = "the tests of sessions use all of it")]
#[path = "../../tests/session/client.rs"]
mod client;

use super::account::Account;
use super::*;
use crate::errands::Job;
use crate::io::IoConfig;
use crate::worker::{WorkerConfig, Workers};
use client::Client;
use rdmesh_fabric::Quota;
use rdmesh_nic::Route;
use rdmesh_uverbs::abi::{
    AllocPd, CmHeader, CreateId, CreateIdResponse, DestroyId, EventResponse, GetEvent, RegMr, ResolveIp, cm_command,
    number,
};
use rdmesh_uverbs::page::CONTEXT_PAGE_LEN;
use rdmesh_uverbs::ring::QueueFile;
use rdmesh_uverbs::session::{RequestHeader, RequestKind, Segment, SegmentKind, VERSION};
use rdmesh_uverbs::shared::SharedMemory;
use rdmesh_verbs::{Gid, Vni};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::pipe::PipeFlags;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel as channel_of};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Fields are dropped in this order: the server before the workers that it calls.
struct World {
    server: SessionServer,
    workers: Workers,
    directory: tempfile::TempDir,
}

/// Keeps the lookups of an endpoint from beginning until its sender is dropped.
struct Held(Receiver<()>);

impl Job for Held {
    fn step(&mut self) -> bool {
        let _ = self.0.recv();
        false
    }
}

impl World {
    fn new() -> Self {
        let limits = DeviceLimits::default();
        let config = WorkerConfig { count: 1, mode: Mode::Adaptive, limits, io: IoConfig::default() };
        let workers = Workers::start(config).unwrap();
        let server = SessionServer::start(workers.shards().to_vec(), limits, Mode::Adaptive).unwrap();
        Self { server, workers, directory: tempfile::tempdir().unwrap() }
    }

    /// Endpoint `n`, 10.7.0.n.
    fn endpoint(&self, n: u8) -> PathBuf {
        let spec = EndpointSpec {
            policy: Default::default(),
            id: EndpointId(n.into()),
            name: format!("e{n}"),
            network: "blue".into(),
            vni: Vni(7),
            gids: vec![gid(n)],
            quota: Quota::default(),
            allowed_uid: None,
            namespace: None,
        };
        let path = self.directory.path().join(format!("{n}.sock"));
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 64).unwrap();
        self.server.add_endpoint(spec, listener);
        path
    }

    fn account(&self, n: u8) -> Account {
        self.server.sessions.ask(|answer| Control::Account(EndpointId(n.into()), answer)).unwrap()
    }

    fn hold_lookups(&self, n: u8) -> Sender<()> {
        let (release, released) = channel_of();
        self.account(n).seeker().errands.add(0, Held(released));
        release
    }

    /// Checks that another endpoint's program opens a device, makes objects and resolves an address.
    fn others_go_on(&self, n: u8) {
        let path = self.endpoint(n);
        let mut client = Client::device(&path);
        let (pd, (cq, _ring)) = (client.alloc_pd(), client.create_cq(4));
        client.create_qp(pd, cq, 2);
        self.resolving(&path, n);
    }

    /// A channel, and its identifier that has resolved the endpoint's own address.
    fn resolving(&self, path: &Path, n: u8) -> (Client, u32) {
        self.workers.shards()[0].routes().change(|routes| routes.insert(Vni(7), gid(n), Route::Local));
        let mut channel = Client::connect(path);
        channel.call(RequestKind::OpenCm, &[], &[], None).unwrap();
        let create = CreateId { ps: 0x106, qp_type: 2, ..Default::default() };
        let id = cm(&mut channel, cm_command::CREATE_ID, &create, size_of::<CreateIdResponse>());
        let id = CreateIdResponse::read_from_bytes(&id).unwrap().id;
        let mut dst_addr = [0; 28];
        dst_addr[..2].copy_from_slice(&2u16.to_ne_bytes());
        dst_addr[4..8].copy_from_slice(&[10, 7, 0, n]);
        cm(&mut channel, cm_command::RESOLVE_IP, &ResolveIp { src_addr: [0; 28], dst_addr, id, timeout_ms: 1000 }, 0);
        (channel, id)
    }
}

fn gid(n: u8) -> Gid {
    Gid::from_ip(Ipv4Addr::new(10, 7, 0, n).into())
}

fn cm(client: &mut Client, cmd: u32, command: &(impl IntoBytes + Immutable), room: usize) -> Vec<u8> {
    let header = CmHeader { cmd, in_len: command.as_bytes().len() as u16, out_len: room as u16 };
    let bytes = [header.as_bytes(), command.as_bytes()].concat();
    client.call(RequestKind::Cm, &bytes, &[], None).unwrap().response
}

fn is_answered(client: &Client) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&client.socket, PollFlags::IN)], Some(&now)).unwrap() > 0
}

fn header(kind: RequestKind, command_len: usize, segments: u32) -> RequestHeader {
    RequestHeader { version: VERSION, kind: kind as u32, command_len: command_len as u32, segments }
}

#[test]
fn a_namespace_that_answers_late_delays_its_own_program_only() {
    let world = World::new();
    let path = world.endpoint(1);
    let held = world.hold_lookups(1);
    let mut slow = Client::connect(&path);
    let (_page, page) = SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap();
    let queues = QueueFile::memfd().unwrap();
    let open = header(RequestKind::Open, 0, 0);
    let fds = [page.as_fd(), queues.as_fd()];
    rdmesh_uverbs::session::send(slow.socket.as_fd(), &[std::io::IoSlice::new(open.as_bytes())], &fds).unwrap();
    world.others_go_on(2);
    assert!(!is_answered(&slow));
    drop(held);
    slow.receive().unwrap();
}

#[test]
fn a_process_whose_memory_opens_late_delays_itself_only() {
    let world = World::new();
    let path = world.endpoint(1);
    let mut slow = Client::device(&path);
    let pd_handle = slow.alloc_pd();
    let held = world.hold_lookups(1);
    let memory = vec![0u8; 4096];
    let (start, length) = (memory.as_ptr() as u64, memory.len() as u64);
    let request = RegMr { start, length, hca_va: start, pd_handle, access_flags: 1, ..Default::default() };
    let body = client::plain(number::REG_MR, &request, &[], 12);
    let segment = Segment { addr: start, len: length, kind: SegmentKind::Private as u32, reserved: 0, offset: 0 };
    let message = [header(RequestKind::Verbs, body.len(), 1).as_bytes(), &body, segment.as_bytes()].concat();
    slow.send(&message, None).unwrap();
    world.others_go_on(2);
    assert!(!is_answered(&slow));
    drop(held);
    slow.receive().unwrap();
    // Its memory is known from then on.
    let held = world.hold_lookups(1);
    slow.send(&message, None).unwrap();
    slow.receive().unwrap();
    drop(held);
}

#[test]
fn a_channel_that_looks_for_its_way_delays_its_own_program_only() {
    let world = World::new();
    let path = world.endpoint(1);
    let mut slow = Client::connect(&path);
    slow.call(RequestKind::OpenCm, &[], &[], None).unwrap();
    let create = CreateId { ps: 0x106, qp_type: 2, ..Default::default() };
    let id = cm(&mut slow, cm_command::CREATE_ID, &create, size_of::<CreateIdResponse>());
    let id = CreateIdResponse::read_from_bytes(&id).unwrap().id;
    let held = world.hold_lookups(1);
    let mut dst_addr = [0; 28];
    dst_addr[..2].copy_from_slice(&2u16.to_ne_bytes());
    dst_addr[4..8].copy_from_slice(&[192, 0, 2, 1]);
    let resolve = ResolveIp { src_addr: [0; 28], dst_addr, id, timeout_ms: 1000 };
    let command = CmHeader { cmd: cm_command::RESOLVE_IP, in_len: size_of::<ResolveIp>() as u16, out_len: 0 };
    let body = [command.as_bytes(), resolve.as_bytes()].concat();
    slow.send(&[header(RequestKind::Cm, body.len(), 0).as_bytes(), &body].concat(), None).unwrap();
    world.others_go_on(2);
    assert!(!is_answered(&slow));
    drop(held);
    // There is no way out: its namespace has no interface with the endpoint's address.
    assert_eq!(slow.receive().err(), Some(io::Errno::NETUNREACH));
}

#[test]
fn a_command_can_be_refused_where_it_takes_events_away() {
    let world = World::new();
    let path = world.endpoint(1);
    let (mut channel, id) = world.resolving(&path, 1);
    let destroy = DestroyId { id, ..Default::default() };
    let command = CmHeader { cmd: cm_command::DESTROY_ID, in_len: size_of::<DestroyId>() as u16, out_len: 4 };
    let body = [command.as_bytes(), destroy.as_bytes()].concat();
    for _ in 0..2 {
        assert_eq!(channel.call(RequestKind::CmUnlessEvents, &body, &[], None).err(), Some(io::Errno::AGAIN));
    }
    cm(&mut channel, cm_command::GET_EVENT, &GetEvent { response: 0 }, size_of::<EventResponse>());
    let answer = channel.call(RequestKind::CmUnlessEvents, &body, &[], None).unwrap();
    assert_eq!(answer.response, 1u32.to_ne_bytes(), "one event was read");
}

/// The session thread waits for a worker; rdma_cm has a thread of its own.
#[test]
fn rdma_cm_goes_on_while_a_command_is_executed() {
    let world = World::new();
    let path = world.endpoint(1);
    let mut device = Client::device(&path);
    let mut channel = Client::connect(&path);
    channel.call(RequestKind::OpenCm, &[], &[], None).unwrap();
    let shard = world.workers.shards()[0].clone();
    let ((release, released), (entered, is_held)) = (channel_of::<()>(), channel_of());
    let holder = std::thread::spawn(move || {
        shard.call(move |_| {
            entered.send(()).unwrap();
            let _ = released.recv();
        });
    });
    is_held.recv().unwrap();
    let body = client::plain(number::ALLOC_PD, &AllocPd::default(), &[], 4);
    device.send(&[header(RequestKind::Verbs, body.len(), 0).as_bytes(), &body].concat(), None).unwrap();
    let create = CreateId { ps: 0x106, qp_type: 2, ..Default::default() };
    cm(&mut channel, cm_command::CREATE_ID, &create, size_of::<CreateIdResponse>());
    assert!(!is_answered(&device));
    drop(release);
    device.receive().unwrap();
    holder.join().unwrap();
}

/// More descriptors than may wait to be closed: the program waits, and is not thrown out.
#[test]
fn a_program_waits_for_the_descriptors_that_it_sent() {
    let world = World::new();
    let mut client = Client::device(&world.endpoint(1));
    let disposal = world.account(1).disposal().clone();
    let (release, released) = channel_of();
    disposal.hold_closer(Held(released));
    let (read_end, _write_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    let body = client::plain(number::ALLOC_PD, &AllocPd::default(), &[], 4);
    let message = [header(RequestKind::Verbs, body.len(), 0).as_bytes(), &body].concat();
    while !disposal.is_full() {
        client.send(&message, Some(read_end.as_fd())).unwrap();
        client.receive().unwrap();
        // The descriptor goes after the answer, and before anything else.
        world.server.totals();
    }
    client.send(&message, None).unwrap();
    world.others_go_on(2);
    assert!(!is_answered(&client));
    drop(release);
    client.receive().unwrap();
    assert_eq!(world.server.totals().connections_dropped, 0);
}

/// A descriptor may be the last of very much memory, or of a file whose maker has a say in how long it takes to close.
#[test]
fn descriptors_of_a_refused_command_are_closed_on_another_thread() {
    let world = World::new();
    let mut client = Client::connect(&world.endpoint(1));
    let (release, released) = channel_of();
    world.account(1).disposal().hold_closer(Held(released));
    let (read_end, write_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    // A command on a connection without a context.
    let body = client::plain(number::ALLOC_PD, &AllocPd::default(), &[], 4);
    let message = [header(RequestKind::Verbs, body.len(), 0).as_bytes(), &body].concat();
    client.send(&message, Some(write_end.as_fd())).unwrap();
    drop(write_end);
    assert!(client.receive().is_err());
    drop(client);
    world.others_go_on(2);
    let is_open = || io::read(&read_end, &mut [0; 1]) == Err(io::Errno::AGAIN);
    assert!(is_open(), "the session thread has closed it");
    drop(release);
    while is_open() {
        std::thread::yield_now();
    }
}

#[test]
fn an_endpoint_goes_while_something_is_looked_up_for_it() {
    let world = World::new();
    let path = world.endpoint(1);
    let held = world.hold_lookups(1);
    let mut slow = Client::connect(&path);
    let (_page, page) = SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap();
    let queues = QueueFile::memfd().unwrap();
    let open = header(RequestKind::Open, 0, 0);
    let fds = [page.as_fd(), queues.as_fd()];
    rdmesh_uverbs::session::send(slow.socket.as_fd(), &[std::io::IoSlice::new(open.as_bytes())], &fds).unwrap();
    world.others_go_on(2);
    world.server.remove_endpoint(EndpointId(1));
    assert_eq!(slow.receive().err(), Some(io::Errno::PIPE));
    drop(held);
    world.others_go_on(3);
}

/// Keeps the reclaimer from going on, in its drop, until the sender is dropped.
struct Gate(Receiver<()>);

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

/// Number of queue pairs of the one device that has some.
fn queue_pairs(world: &World) -> usize {
    world.workers.shards()[0].call(|shard| {
        let engine = shard.engine();
        (0..16).filter_map(|id| Some(engine.device(rdmesh_nic::ContextId(id)).ok()?.qps().len())).max().unwrap_or(0)
    })
}

#[test]
fn a_device_with_many_queue_pairs_is_closed_while_others_go_on() {
    const MANY: usize = 600;
    const TWO_SLICES: usize = 512;
    let world = World::new();
    let path = world.endpoint(1);
    let mut client = Client::device(&path);
    let (pd, (cq, _ring)) = (client.alloc_pd(), client.create_cq(4));
    for _ in 0..MANY {
        client.create_qp(pd, cq, 2);
    }
    assert_eq!(queue_pairs(&world), MANY);
    let (release, released) = channel_of();
    world.account(1).disposal().discard(Gate(released));
    drop(client);
    while queue_pairs(&world) == MANY {
        std::thread::yield_now();
    }
    world.others_go_on(2);
    assert_eq!(queue_pairs(&world), MANY - TWO_SLICES, "the session thread did no more");
    drop(release);
    world.account(1).disposal().finish();
    // Jobs may have added jobs.
    while queue_pairs(&world) > 1 {
        std::thread::yield_now();
    }
}
