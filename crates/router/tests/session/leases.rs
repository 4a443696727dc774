//! Tests of leases, by which contexts outlive their programs, by session messages and rings alone.

use crate::client::{Answer, Client, Ring};
use crate::rings::{poll, post_recv, post_send};
use crate::traffic::{LEN, arena, arena_segment, connect, reg_mr, ring_doorbell};
use crate::world::World;
use proptest::prelude::*;
use rdmesh_fabric::Quota;
use rdmesh_router::endpoint::EndpointId;
use rdmesh_router::session::FailedRequest;
use rdmesh_uverbs::abi::RegMr;
use rdmesh_uverbs::session::linger::*;
use rdmesh_uverbs::session::{RequestKind, Segment, SegmentKind, Token};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::io::Errno;
use std::path::Path;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Longer than any test.
const LONG: u64 = 600_000;

fn call(client: &mut Client, body: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<Answer, Errno> {
    client.call(RequestKind::Linger, body, &[], fd)
}

fn ask(client: &mut Client, term: u64, arena: Option<BorrowedFd<'_>>) -> Result<Token, Errno> {
    let answer = call(client, &Call::Ask.body(&Ask { term }), arena)?;
    Ok(Granted::read_from_bytes(&answer.response).unwrap().token)
}

fn give_up(client: &mut Client) {
    let nothing: [u8; 0] = [];
    assert!(call(client, &Call::GiveUp.body(&nothing), None).unwrap().response.is_empty());
}

/// Takes over the context with this token: a connection, its description, and the descriptors.
fn take_over(path: &Path, token: &Token) -> Result<(Client, Attached, Vec<OwnedFd>), Errno> {
    let mut client = Client::connect(path);
    let answer = call(&mut client, &Call::Attach.body(&token.0), None)?;
    let attached = Attached::read_from_bytes(&answer.response).unwrap();
    Ok((client, attached, answer.fds.into_iter().collect()))
}

fn list<T: FromBytes>(client: &mut Client, kind: ObjectKind) -> Vec<T> {
    let answer = call(client, &Call::List.body(&List { kind: kind as u32, from: 0 }), None).unwrap();
    answer.response.chunks_exact(size_of::<T>()).map(|bytes| T::read_from_bytes(bytes).unwrap()).collect()
}

/// A program that receives messages, and its peer.
struct Receiver {
    client: Client,
    region: (RegMr, u32),
    cq: u32,
    wc: Ring,
    memory: SharedMemory,
    arena: OwnedFd,
    qpn: u32,
}

impl Receiver {
    /// At endpoint `n`, connected to the peer's queue pair, with receives posted.
    fn new(mut client: Client, peer: &mut Sender) -> Self {
        let (pd, (cq, wc)) = (client.alloc_pd(), client.create_cq(8));
        let (qp, qpn, _, receive) = client.create_qp(pd, cq, 2);
        let (memory, arena) = arena();
        let start = memory.as_ptr() as u64;
        let request = reg_mr(pd, start, LEN);
        let mr = client.reg_mr(&request, &[arena_segment(&memory, LEN)], Some(arena.as_fd())).unwrap();
        (0..4).for_each(|n| post_recv(&receive, n, start + 64 * n, 64, mr.lkey));
        connect(&mut client, qp, peer.qpn, 2);
        connect(&mut peer.client, peer.qp, qpn, 1);
        Self { client, region: (request, mr.lkey), cq, wc, memory, arena, qpn }
    }
}

/// A program that sends messages from memory of its own.
struct Sender {
    client: Client,
    qp: u32,
    qpn: u32,
    send: Ring,
    wc: Ring,
    source: (SharedMemory, u32),
}

impl Sender {
    fn new(mut client: Client) -> Self {
        let (pd, (cq, wc)) = (client.alloc_pd(), client.create_cq(8));
        let (qp, qpn, send, _) = client.create_qp(pd, cq, 2);
        let (memory, arena) = arena();
        let request = reg_mr(pd, memory.as_ptr() as u64, LEN);
        let mr = client.reg_mr(&request, &[arena_segment(&memory, LEN)], Some(arena.as_fd())).unwrap();
        rustix::io::pwrite(&arena, b"sixteen bytes .?", 0).unwrap();
        Self { client, qp, qpn, send, wc, source: (memory, mr.lkey) }
    }

    /// Sends the message, and returns the status.
    fn send(&mut self) -> u32 {
        post_send(&self.send, 9, self.source.0.as_ptr() as u64, 16, self.source.1);
        ring_doorbell(&self.client, self.qp);
        poll(&self.wc).status
    }
}

fn pair(world: &World) -> (Receiver, Sender) {
    let mut sender = Sender::new(world.device(2));
    (Receiver::new(world.device(1), &mut sender), sender)
}

/// Whether a context has outlived its program.
fn lingers(world: &World) -> bool {
    world.server.snapshot().iter().any(|context| context.lease.is_some_and(|lease| lease.left.is_some()))
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "not {what}");
        std::thread::yield_now();
    }
}

#[test]
fn queues_and_memory_outlive_their_program_and_are_taken_over() {
    let world = World::new(1);
    let (mut receiver, mut sender) = pair(&world);
    let token = ask(&mut receiver.client, LONG, Some(receiver.arena.as_fd())).unwrap();
    assert_eq!(sender.send(), 0);
    assert_eq!(poll(&receiver.wc).wr_id, 0);
    let Receiver { client, region: (request, key), cq, wc, memory, arena, qpn } = receiver;
    let queues = fstat(client.queues.as_ref().unwrap()).unwrap().st_ino;
    drop((client, wc, memory));
    eventually("lingering", || lingers(&world));
    assert_eq!(sender.send(), 0);

    let path = world.path(1);
    let (mut taker, attached, fds) = take_over(&path, &token).unwrap();
    assert!(attached.left <= LONG && attached.term == LONG);
    assert_eq!((attached.mrs, attached.cqs, attached.qps), (1, 1, 1));
    assert!(!lingers(&world));
    let [queue_memory, arena_again] = &fds[..] else { panic!("two descriptors") };
    assert_eq!(fstat(queue_memory).unwrap().st_ino, queues);
    assert_eq!(fstat(arena_again).unwrap().st_ino, fstat(&arena).unwrap().st_ino);

    let [region] = list::<LeasedRegion>(&mut taker, ObjectKind::Region)[..] else { panic!("one region") };
    assert_eq!((region.iova, region.len, region.key, region.place), (request.hca_va, LEN as u64, key, 0));
    let content = SharedMemory::map(arena_again.as_fd(), region.place, LEN, true).unwrap();
    // The second receive's place.
    assert_eq!(bytes_of(&content, 64), *b"sixteen bytes .?");
    let [queue] = list::<LeasedCq>(&mut taker, ObjectKind::Cq)[..] else { panic!("one completion queue") };
    assert_eq!(queue.cq, cq);
    // What was polled has gone, what was not is there.
    let ring = SharedMemory::map(queue_memory.as_fd(), queue.ring.offset, queue.ring.len as usize, true).unwrap();
    assert_eq!(poll(&ring).wr_id, 1);
    assert_eq!(sender.send(), 0);
    assert_eq!(poll(&ring).wr_id, 2);
    let [qp] = list::<LeasedQp>(&mut taker, ObjectKind::Qp)[..] else { panic!("one queue pair") };
    assert_eq!((qp.qpn, qp.state, qp.dest_qpn), (qpn, 3, sender.qpn));
    assert!(qp.send.len > 0 && qp.receive.len > 0 && qp.send.offset != qp.receive.offset);

    // It may end and be taken over again, until it is given up.
    drop(taker);
    let (mut taker, ..) = take_over(&path, &token).unwrap();
    assert!(ask(&mut taker, LONG / 2, None).unwrap() == token);
    give_up(&mut taker);
    drop((taker, sender));
    world.expect_reclaimed();
}

fn bytes_of(memory: &SharedMemory, at: usize) -> [u8; 16] {
    let file = memory.part(at, 16);
    let mut bytes = [0; 16];
    #[allow(unsafe_code)]
    // SAFETY: a mapping of that length, which nothing writes to meanwhile.
    unsafe {
        std::ptr::copy_nonoverlapping(file.as_ptr(), bytes.as_mut_ptr(), 16);
    }
    bytes
}

#[test]
fn only_the_token_opens_and_only_at_its_endpoint() {
    let world = World::new(1);
    let (mut receiver, sender) = pair(&world);
    let token = ask(&mut receiver.client, LONG, None).unwrap();
    let own = receiver.client.token;
    drop(receiver);
    let mut wrong = token;
    wrong.0[7] ^= 0x10;
    for (n, token) in [(1, wrong), (1, own), (1, Token([0; 16])), (2, token)] {
        assert_eq!(take_over(&world.path(n), &token).err(), Some(Errno::ACCESS));
    }
    // Without an arena given, there is one descriptor, and no place in an arena.
    let (mut taker, _, fds) = take_over(&world.path(1), &token).unwrap();
    assert_eq!(fds.len(), 1);
    assert_eq!(list::<LeasedRegion>(&mut taker, ObjectKind::Region)[0].place, LeasedRegion::ELSEWHERE);
    assert_eq!(call(&mut taker, &Call::Attach.body(&token.0), None).err(), Some(Errno::INVAL));
    drop((taker, sender));
    world.server.remove_endpoint(EndpointId(1));
    world.expect_reclaimed();
}

#[test]
fn a_term_ends() {
    let world = World::new(1);
    let (mut receiver, mut sender) = pair(&world);
    ask(&mut receiver.client, 300, Some(receiver.arena.as_fd())).unwrap();
    drop(receiver);
    assert_eq!(sender.send(), 0);
    eventually("ended", || world.server.snapshot().len() == 1);
    assert_ne!(sender.send(), 0);
    drop(sender);
    world.expect_reclaimed();
}

#[test]
fn an_endpoint_and_its_host_end_what_lingers() {
    let world = World::new(1);
    for by_command in [false, true] {
        let (mut receiver, sender) = pair(&world);
        ask(&mut receiver.client, LONG, Some(receiver.arena.as_fd())).unwrap();
        assert!(world.server.lingers_for(EndpointId(1)).is_some());
        assert_eq!(world.server.end_lingering(EndpointId(1), None), 0, "its program is there");
        drop(receiver);
        eventually("lingering", || lingers(&world));
        assert!(world.server.lingers_for(EndpointId(1)).is_some());
        if by_command {
            assert_eq!(world.server.end_lingering(EndpointId(2), None), 0);
            assert_eq!(world.server.end_lingering(EndpointId(1), Some(1)), 0);
            assert_eq!(world.server.end_lingering(EndpointId(1), Some(0)), 1);
        } else {
            world.server.remove_endpoint(EndpointId(1));
        }
        assert_eq!(world.server.lingers_for(EndpointId(1)), None);
        assert_eq!(world.server.snapshot().len(), 1);
        drop(sender);
        world.expect_reclaimed();
    }
}

#[test]
fn what_a_dead_program_holds_stays_charged() {
    let world = World::new(1);
    let path =
        world.endpoint_with(1, |spec| spec.quota = Quota { contexts: 1, linger_seconds: 3600, ..Quota::default() });
    let mut client = Client::device(&path);
    client.alloc_pd();
    ask(&mut client, LONG, None).unwrap();
    drop(client);
    eventually("lingering", || lingers(&world));
    assert_eq!(Client::connect(&path).open().err(), Some(Errno::NOMEM));
    assert_eq!(world.server.end_lingering(EndpointId(1), None), 1);
    drop(Client::device(&path));
    world.expect_reclaimed();
}

#[test]
fn a_term_beyond_the_limit_is_refused() {
    let world = World::new(1);
    let path = world.endpoint_with(1, |spec| spec.quota = Quota { linger_seconds: 2, ..Quota::default() });
    let mut client = Client::device(&path);
    assert_eq!(ask(&mut client, 2001, None).err(), Some(Errno::NOMEM));
    assert_eq!(ask(&mut client, u64::MAX, None).err(), Some(Errno::NOMEM));
    let noted = world.server.failed_requests();
    assert!(matches!(noted[0].request, FailedRequest::Limit(what) if what.contains("linger_seconds")), "{noted:?}");
    ask(&mut client, 2000, None).unwrap();
    give_up(&mut client);
    drop(client);
    world.expect_reclaimed();
}

#[test]
fn devices_outlive_their_programs_up_to_so_many_bytes() {
    let world = World::new(1);
    let quota = Quota { linger_seconds: 3600, linger_bytes: 3 * LEN as u64 / 2, ..Quota::default() };
    let path = world.endpoint_with(3, |spec| spec.quota = quota);
    let leave = || {
        let mut client = Client::device(&path);
        let (pd, (memory, arena)) = (client.alloc_pd(), arena());
        let request = reg_mr(pd, memory.as_ptr() as u64, LEN);
        client.reg_mr(&request, &[arena_segment(&memory, LEN)], Some(arena.as_fd())).unwrap();
        ask(&mut client, LONG, Some(arena.as_fd())).unwrap();
    };
    leave();
    eventually("lingering", || lingers(&world));
    leave();
    eventually("ended", || world.server.snapshot().len() == 1);
    assert_eq!(world.server.end_lingering(EndpointId(3), None), 1);
    leave();
    eventually("lingering", || lingers(&world));
    world.server.remove_endpoint(EndpointId(3));
    world.expect_reclaimed();
}

#[test]
fn private_pages_cannot_outlive_their_process() {
    let world = World::new(1);
    let mut client = world.device(1);
    let pd = client.alloc_pd();
    let bytes = vec![0u8; LEN];
    let start = bytes.as_ptr() as u64;
    let private = Segment { addr: start, len: LEN as u64, kind: SegmentKind::Private as u32, reserved: 0, offset: 0 };
    let mr = client.reg_mr(&reg_mr(pd, start, LEN), &[private], None).unwrap();
    assert_eq!(ask(&mut client, LONG, None).err(), Some(Errno::OPNOTSUPP));
    let dereg = rdmesh_uverbs::abi::DeregMr { mr_handle: mr.mr_handle };
    client.order(rdmesh_uverbs::abi::number::DEREG_MR, &dereg).unwrap();
    ask(&mut client, LONG, None).unwrap();
    assert_eq!(client.reg_mr(&reg_mr(pd, start, LEN), &[private], None).err(), Some(Errno::OPNOTSUPP));
    assert_eq!(world.server.failed_requests().last().unwrap().request, FailedRequest::PrivatePages);
    assert_eq!(world.server.snapshot()[0].pinned_bytes, 0);
    give_up(&mut client);
    client.reg_mr(&reg_mr(pd, start, LEN), &[private], None).unwrap();
    drop(client);
    world.expect_reclaimed();
}

#[test]
fn an_arena_is_sealed_memory() {
    let world = World::new(1);
    let mut client = world.device(1);
    let file = tempfile::tempfile().unwrap();
    assert_eq!(ask(&mut client, LONG, Some(file.as_fd())).err(), Some(Errno::INVAL));
    drop(client);
    world.server.remove_endpoint(EndpointId(1));
    world.expect_reclaimed();
}

/// Someone who has kept a copy of the queue memory takes pages away under a context that lingers.
#[test]
fn a_context_that_is_broken_lingers_no_more() {
    let world = World::new(1);
    let (mut receiver, mut sender) = pair(&world);
    ask(&mut receiver.client, LONG, Some(receiver.arena.as_fd())).unwrap();
    let queues = rustix::io::fcntl_dupfd_cloexec(receiver.client.queues.as_ref().unwrap(), 0).unwrap();
    drop(receiver);
    eventually("lingering", || lingers(&world));
    fallocate(&queues, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 1 << 24).unwrap();
    if rdmesh_uverbs::guard::is_complete() {
        sender.send();
        eventually("ended", || world.server.snapshot().len() == 1);
    }
    drop(sender);
    world.server.remove_endpoint(EndpointId(1));
    world.expect_reclaimed();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// Any messages, with and without a context.
    #[test]
    fn any_bytes_are_survived(bodies in prop::collection::vec((0..6u32, 0..4u32, prop::collection::vec(0..4u32, 0..6)), 1..40)) {
        let world = World::new(1);
        let path = world.endpoint(1);
        let (mut device, mut bare) = (Client::device(&path), Client::connect(&path));
        for (number, reserved, rest) in bodies {
            let words: Vec<u32> = [number, reserved / 3].into_iter().chain(rest).collect();
            for client in [&mut device, &mut bare] {
                let answer = call(client, words.as_bytes(), None);
                prop_assert_ne!(answer.err(), Some(Errno::PIPE));
            }
        }
        drop((device, bare));
        world.server.remove_endpoint(EndpointId(1));
        world.expect_reclaimed();
    }
}
