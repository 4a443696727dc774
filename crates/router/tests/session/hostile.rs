//! Hostile tenants: they neither stop the server nor leave resources behind.

use crate::client::{Client, plain};
use crate::rings::{scribble, set_producer};
use crate::world::World;
use rdmesh_router::endpoint::EndpointId;
use rdmesh_router::session::{BadIndices, FailedRequest};
use rdmesh_uverbs::abi::*;
use rdmesh_uverbs::page::CONTEXT_PAGE_LEN;
use rdmesh_uverbs::ring::QueueFile;
use rdmesh_uverbs::session::{RequestHeader, RequestKind, Segment, SegmentKind, Token, VERSION};
use rdmesh_uverbs::shared::SharedMemory;
use rdmesh_verbs::AttrMask;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use zerocopy::IntoBytes;

/// A generator of bytes that is the same in every run (xorshift).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn what_is_not_framed_ends_the_connection() {
    let world = World::new(1);
    let path = world.endpoint(1);
    let header = |version, kind, command_len, segments| {
        RequestHeader { version, kind, command_len, segments }.as_bytes().to_vec()
    };
    let garbage = [
        vec![1],
        vec![0xff; 100],
        header(VERSION + 1, 1, 0, 0),
        header(VERSION, 77, 0, 0),
        header(VERSION, 3, 100, 0),
        header(VERSION, 3, 0, u32::MAX),
        header(VERSION, 3, 0, 0),
        header(VERSION, 4, 0, 0),
    ];
    for message in &garbage {
        let mut client = Client::connect(&path);
        client.send(message, None).unwrap();
        assert_eq!(client.receive().err(), Some(Errno::PIPE), "{message:?}");
    }
    let totals = world.expect_reclaimed();
    assert_eq!((totals.connections_accepted, totals.connections_dropped), (8, 8));
}

#[test]
fn more_than_a_message_ends_the_connection() {
    let world = World::new(1);
    let mut client = world.device(1);
    let _ = client.send(&vec![0; 100_000], None);
    assert_eq!(client.receive().err(), Some(Errno::PIPE));
    world.expect_reclaimed();
}

#[test]
fn an_index_beyond_a_queue_is_counted_for_its_endpoint() {
    let world = World::new(1);
    let (mut hostile, mut honest) = (world.device(1), world.device(2));
    let counts = || {
        let mut counts = world.server.bad_indices();
        counts.sort_by(|a, b| a.name.cmp(&b.name));
        counts.into_iter().map(|BadIndices { name, network, count }| (name + "." + &network, count)).collect::<Vec<_>>()
    };
    let expected = |hostile| [("e1.blue".to_owned(), hostile), ("e2.blue".to_owned(), 0)];
    let queues = [&mut hostile, &mut honest].map(|client| {
        let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
        client.create_qp(pd, cq, 2)
    });
    let reset = |qp_handle| ModifyQp { qp_handle, attr_mask: AttrMask::STATE.bits(), ..Default::default() };
    // A queue pair that is reset forgets what was posted: it looks at both indices.
    for (index, count) in [(3, 0), (u32::MAX, 2), (u32::MAX, 2), (1 << 31, 4)] {
        let (qp, _, send, recv) = &queues[0];
        set_producer(send, index);
        set_producer(recv, index);
        hostile.order(number::MODIFY_QP, &reset(*qp)).unwrap();
        honest.order(number::MODIFY_QP, &reset(queues[1].0)).unwrap();
        assert_eq!(counts(), expected(count));
    }
    let failed_requests = world.server.failed_requests();
    let found: Vec<_> =
        failed_requests.iter().map(|info| (info.name.as_str(), info.request, info.count, info.pid)).collect();
    assert_eq!(found, [("e1", FailedRequest::BadIndex, 4, std::process::id() as i32)]);
    set_producer(&queues[0].2, 77);
    hostile.order(number::MODIFY_QP, &reset(queues[0].0)).unwrap();
    drop(hostile);
    drop(honest);
    world.expect_reclaimed();
    assert_eq!(counts(), expected(5), "the counts outlive the context");
}

#[test]
fn only_the_token_attaches() {
    let world = World::new(1);
    let path = world.endpoint(1);
    let mut opener = Client::device(&path);
    let pd = opener.alloc_pd();
    let mut wrong = opener.token;
    wrong.0[15] ^= 1;
    let mut child = Client::connect(&path);
    assert_eq!(child.attach(&wrong), Err(Errno::ACCESS));
    assert_eq!(child.attach(&Token([0; 16])), Err(Errno::ACCESS));
    // The token is worth nothing at another endpoint.
    assert_eq!(Client::connect(&world.endpoint(2)).attach(&opener.token), Err(Errno::ACCESS));
    child.attach(&opener.token).unwrap();
    assert_eq!(child.attach(&opener.token), Err(Errno::INVAL));
    assert_eq!(child.open(), Err(Errno::INVAL));

    // The context lives as long as one of its connections.
    drop(opener);
    child.order(number::DEALLOC_PD, &DeallocPd { pd_handle: pd }).unwrap();
    assert_eq!(world.server.snapshot().len(), 1);
    drop(child);
    world.expect_reclaimed();
}

#[test]
fn whoever_leaves_in_the_middle_is_cleaned_up_after() {
    let world = World::new(2);
    let path = world.endpoint(1);
    for leave_after in 0..5 {
        let mut client = Client::device(&path);
        let pd = client.alloc_pd();
        let (cq, _) = client.create_cq(16);
        for _ in 0..leave_after {
            client.create_qp(pd, cq, 4);
        }
        client.create_channel();
        let request = CreateCq { cqe: 1, comp_channel: -1, ..Default::default() };
        let body = plain(number::CREATE_CQ, &request, &[], 24);
        let header = RequestHeader { version: VERSION, kind: 3, command_len: body.len() as u32, segments: 0 };
        client.send(&[header.as_bytes(), &body].concat(), None).unwrap();
    }
    let totals = world.expect_reclaimed();
    assert_eq!((totals.contexts_opened, totals.objects_destroyed), (5, 0));
    // A queue that was still asked for may have been made or not.
    assert!((15 + 10..=20 + 10).contains(&totals.objects_reclaimed), "{totals:?}");
}

#[test]
fn whoever_does_not_read_answers_is_shut_out() {
    let world = World::new(1);
    let path = world.endpoint(1);
    let mut deaf = Client::device(&path);
    let body = plain(number::QUERY_DEVICE, &QueryDevice::default(), &[], 176);
    let header = RequestHeader { version: VERSION, kind: 3, command_len: body.len() as u32, segments: 0 };
    let message = [header.as_bytes(), &body].concat();
    let ended = (0..1_000_000).find_map(|_| deaf.send(&message, None).err());
    assert!(matches!(ended, Some(Errno::PIPE | Errno::CONNRESET)), "{ended:?}");
    assert_eq!(world.expect_reclaimed().connections_dropped, 1);
    Client::device(&path).alloc_pd();
}

#[test]
fn random_commands_leave_the_server_whole() {
    let world = World::new(2);
    let path = world.endpoint_with(1, |spec| spec.quota.qps = 20);
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let mut bystander = world.device(2);
    for _ in 0..20 {
        let mut client = Client::device(&path);
        let (pd, (cq, ring)) = (client.alloc_pd(), client.create_cq(4));
        let (_, _, send, recv) = client.create_qp(pd, cq, 2);
        for _ in 0..200 {
            let number = (noise.next() % 45) as u8;
            let len = (noise.next() % 16) as usize * 8;
            // Small numbers hit handles that exist.
            let mut body = noise.bytes(len);
            body.iter_mut().filter(|b| **b > 40).for_each(|b| *b = 0);
            let room = (noise.next() % 64) as usize * 4;
            let bytes = plain(number, body.as_slice(), &[], room);
            let _ = client.call(RequestKind::Verbs, &bytes, &[], None);
            let ioctl = noise.bytes(24);
            let _ = client.call(RequestKind::Ioctl, &ioctl, &[], None);
        }
        for memory in [&send, &recv, &ring] {
            scribble(memory, || noise.next() as u8);
        }
        for qp in 0..100 {
            client.page.as_ref().unwrap().ring(qp);
        }
        bystander.alloc_pd();
    }
    drop(bystander);
    let totals = world.expect_reclaimed();
    assert_eq!((totals.contexts_opened, totals.connections_dropped), (21, 0));
}

#[test]
fn descriptors_that_nobody_asked_for_are_dropped() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (read_end, write_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let bytes = plain(number::ALLOC_PD, &AllocPd::default(), &[], 4);
    client.call(RequestKind::Verbs, &bytes, &[], Some(write_end.as_fd())).unwrap();
    drop(write_end);
    // The end of the pipe is seen only when no writer is left, the router included.
    assert_eq!(rustix::io::read(&read_end, &mut [0; 1]), Ok(0));
}

#[test]
fn quotas_hold_and_come_back() {
    let world = World::new(1);
    let path = world.endpoint_with(1, |spec| {
        spec.quota.contexts = 2;
        spec.quota.cqs = 3;
        spec.quota.qps = 1;
    });
    let mut first = Client::device(&path);
    let mut second = Client::device(&path);
    assert_eq!(Client::connect(&path).open(), Err(Errno::NOMEM));
    let (cq, _) = first.create_cq(1);
    first.create_cq(1);
    second.create_cq(1);
    assert_eq!(second.try_create_cq(1, -1).err(), Some(Errno::NOMEM));
    let pd = first.alloc_pd();
    first.create_qp(pd, cq, 2);
    drop(first);
    while world.server.snapshot().len() == 2 {
        std::thread::yield_now();
    }
    let (cq, _) = second.create_cq(1);
    let pd = second.alloc_pd();
    second.create_qp(pd, cq, 2);
    Client::device(&path);
    drop(second);
    assert_eq!(world.expect_reclaimed().refused_by_quota, 2);
}

#[test]
fn mappings_are_limited_and_come_back() {
    let world = World::new(1);
    // One for the context page, one for small queues.
    let path = world.endpoint_with(1, |spec| spec.quota.mappings = 4);
    const LARGE: u32 = 1 << 18;
    const FAR: u64 = 1 << 30;
    let mut client = Client::device(&path);
    let (pd, (cq, _ring)) = (client.alloc_pd(), client.create_cq(1));
    client.create_qp(pd, cq, 2);
    let fd = arena(&[0, FAR, 2 * FAR]);
    // Two distant pieces fit, three do not.
    assert_eq!(
        client.reg_mr(&region(pd, 3), &segments(&[0, FAR, 2 * FAR]), Some(fd.as_fd())).err(),
        Some(Errno::NOMEM)
    );
    let mr = client.reg_mr(&region(pd, 2), &segments(&[0, FAR]), Some(fd.as_fd())).unwrap().mr_handle;
    client.create_cq(1);
    // A large queue needs its own.
    assert_eq!(client.try_create_cq(LARGE, -1).err(), Some(Errno::NOMEM));
    client.order(number::DEREG_MR, &DeregMr { mr_handle: mr }).unwrap();
    let (large, _ring) = client.create_cq(LARGE);
    client.order_with_room(number::DESTROY_CQ, &DestroyCq { cq_handle: large, ..Default::default() }, 8);
    client.reg_mr(&region(pd, 2), &segments(&[FAR, 2 * FAR]), Some(fd.as_fd())).unwrap();
    drop(client);
    world.expect_reclaimed();
    Client::device(&path).create_cq(1);
}

#[test]
fn missing_pages_are_refused() {
    let world = World::new(1);
    let mut client = world.device(1);
    let pd = client.alloc_pd();
    let fd = arena(&[0]);
    let blocks = || rustix::fs::fstat(&fd).unwrap().st_blocks;
    let before = blocks();
    assert_eq!(client.reg_mr(&region(pd, 2), &segments(&[0, 4096]), Some(fd.as_fd())).err(), Some(Errno::FAULT));
    // On-demand memory is not mapped at all.
    let on_demand = RegMr { access_flags: 1 | 1 << 6, ..region(pd, 1) };
    assert_eq!(client.reg_mr(&on_demand, &segments(&[0]), Some(fd.as_fd())).err(), Some(Errno::INVAL));
    assert_eq!(client.reg_mr(&on_demand, &segments(&[1 << 40]), Some(fd.as_fd())).err(), Some(Errno::INVAL));
    client.reg_mr(&region(pd, 1), &segments(&[0]), Some(fd.as_fd())).unwrap();
    assert_eq!(blocks(), before);
}

#[test]
fn the_program_pays_for_its_queues() {
    let world = World::new(1);
    let path = world.endpoint(1);
    let queues = QueueFile::memfd().unwrap();
    let blocks = || rustix::fs::fstat(&queues).unwrap().st_blocks;
    // A page that is not filled in is none.
    let page = rustix::fs::memfd_create("page", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&page, CONTEXT_PAGE_LEN as u64).unwrap();
    rustix::fs::fcntl_add_seals(&page, rustix::fs::SealFlags::SHRINK).unwrap();
    let refused = Client::connect(&path).open_with(&[page.as_fd(), queues.as_fd()]).err();
    assert_eq!((refused, rustix::fs::fstat(&page).unwrap().st_blocks), (Some(Errno::FAULT), 0));

    let mut client = Client::connect(&path);
    let (_page, page) = SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap();
    client.open_with(&[page.as_fd(), queues.as_fd()]).unwrap();
    client.get_context().unwrap();
    for _ in 0..3 {
        assert_eq!(client.try_create_cq(100, -1).err(), Some(Errno::NODATA));
        assert_eq!(blocks(), 0, "the router made pages of the program's");
    }
    client.queues = Some(queues.try_clone().unwrap());
    client.create_cq(100);
    drop(client);
    assert_eq!(world.expect_reclaimed().connections_dropped, 0);
}

/// A tenant that takes the pages of its queues, or of its page, away loses its context, and only that.
#[test]
fn pages_taken_away_end_the_context() {
    let world = World::new(1);
    let mut neighbour = world.device(2);
    let path = world.endpoint(1);
    for _ in 0..3 {
        let mut client = Client::device(&path);
        let (cq, _ring) = client.create_cq(64);
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(client.queues.as_ref().unwrap(), flags, 0, 1 << 40).unwrap();
        // Completions that were not polled are looked for.
        let resize = ResizeCq { cq_handle: cq, cqe: 128, ..Default::default() };
        let _ = client.command::<ResizeCqResponse>(number::RESIZE_CQ, &resize, 16);
        let timeout = Some(std::time::Duration::from_secs(10));
        rustix::net::sockopt::set_socket_timeout(&client.socket, rustix::net::sockopt::Timeout::Recv, timeout).unwrap();
        // The connection ends.
        assert!(matches!(client.receive(), Err(Errno::PIPE | Errno::CONNRESET)));
        drop(client);
        neighbour.alloc_pd();
    }
    drop(neighbour);
    assert_eq!(world.expect_reclaimed().connections_dropped, 3);
}

/// A sparse arena with a page at each of `offsets`.
fn arena(offsets: &[u64]) -> OwnedFd {
    let fd = rustix::fs::memfd_create("arena", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 1 << 50).unwrap();
    rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW).unwrap();
    for offset in offsets {
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), *offset, 4096).unwrap();
    }
    fd
}

/// One page of a region for each of `offsets`.
fn segments(offsets: &[u64]) -> Vec<Segment> {
    let segment = |(page, offset): (u64, &u64)| Segment {
        addr: page * 4096,
        len: 4096,
        kind: SegmentKind::Arena as u32,
        reserved: 0,
        offset: *offset,
    };
    (1..).zip(offsets).map(segment).collect()
}

fn region(pd: u32, pages: u64) -> RegMr {
    RegMr { start: 4096, length: pages * 4096, hca_va: 4096, pd_handle: pd, access_flags: 1, ..Default::default() }
}

#[test]
fn other_users_are_turned_away() {
    let world = World::new(1);
    let stranger = rustix::process::getuid().as_raw() + 1;
    let path = world.endpoint_with(1, |spec| spec.allowed_uid = Some(stranger));
    let mut client = Client::connect(&path);
    assert!(matches!(client.open(), Err(Errno::PIPE | Errno::CONNRESET)));
    assert_eq!(world.expect_reclaimed().connections_refused, 1);
}

#[test]
fn a_removed_endpoint_takes_its_contexts_along() {
    let world = World::new(2);
    let path = world.endpoint(1);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::device(&path)).collect();
    for client in &mut clients {
        client.alloc_pd();
    }
    let shards: Vec<usize> = world.server.snapshot().iter().map(|c| c.shard).collect();
    assert_eq!(shards, [0, 1, 0, 1]);
    let mut other = world.device(2);
    world.server.remove_endpoint(EndpointId(1));
    let totals = world.server.totals();
    assert_eq!((totals.contexts_closed, totals.objects_reclaimed), (4, 4));
    assert_eq!(clients[0].receive().err(), Some(Errno::PIPE));
    other.alloc_pd();
}
