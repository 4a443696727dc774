//! Descriptors that take long to close, in every place where a program can pass one: no other program waits for them.

use crate::client::{Client, plain};
use crate::world::World;
use rdmesh_router::endpoint::EndpointId;
use rdmesh_uverbs::abi::*;
use rdmesh_uverbs::session::{RequestHeader, RequestKind, Segment, SegmentKind, VERSION};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// A socket with unsent data, which lingers when it is closed. Its other end never reads.
struct Slow {
    socket: Option<TcpStream>,
    _deaf: TcpStream,
}

const LINGER: Duration = Duration::from_secs(20);
/// Maximum time of a command on a busy machine; far less than lingering takes.
const SOON: Duration = Duration::from_secs(5);

impl Slow {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let deaf = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
        socket.set_nonblocking(false).unwrap();
        Self { socket: Some(socket), _deaf: deaf }
    }

    /// Sends `message` with `count` copies, and keeps none.
    fn put_into(&mut self, socket: &OwnedFd, message: &[u8], count: usize) -> Result<(), Errno> {
        let slow = self.socket.take().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = std::iter::repeat_n(slow.as_fd(), count).collect();
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let sent = sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL).map(drop);
        if sent.is_err() {
            // Not here, and not now either.
            sockopt::set_socket_linger(&slow, None).unwrap();
        }
        // Should the router have closed its copies already, then this one is the last, and slow.
        std::thread::spawn(move || drop(slow));
        sent
    }
}

/// Checks that commands and closings of others go on.
fn others_go_on(world: &World, bystander: &mut Client) {
    let start = Instant::now();
    for _ in 0..20 {
        bystander.alloc_pd();
        world.server.totals();
    }
    let took = start.elapsed();
    assert!(took < SOON, "others waited {took:?}");
}

/// Gives the server something to do for a while: what follows is there, and let go of here, before the server looks.
fn keep_busy(client: &mut Client) {
    const LEN: u64 = 64 << 20;
    let pd = client.alloc_pd();
    let (_memory, arena) = rdmesh_uverbs::shared::SharedMemory::create("arena", LEN as usize).unwrap();
    let kind = SegmentKind::Arena as u32;
    let segment = Segment { addr: 4096, len: LEN, kind, reserved: 0, offset: 0 };
    let request =
        RegMr { start: 4096, length: LEN, hca_va: 4096, pd_handle: pd, access_flags: 1, ..Default::default() };
    let body = plain(number::REG_MR, &request, &[], 12);
    let header = RequestHeader { version: VERSION, kind: 3, command_len: body.len() as u32, segments: 1 };
    client.send(&[header.as_bytes(), &body, segment.as_bytes()].concat(), Some(arena.as_fd())).unwrap();
}

fn request() -> Vec<u8> {
    let body = plain(number::ALLOC_PD, &AllocPd::default(), &[], 4);
    let header = RequestHeader { version: VERSION, kind: 3, command_len: body.len() as u32, segments: 0 };
    [header.as_bytes(), &body].concat()
}

#[test]
fn too_many_descriptors_in_a_message() {
    let world = World::new(1);
    let (client, mut bystander) = (world.device(1), world.device(2));
    let mut slow = Slow::new();
    slow.put_into(&client.socket, &request(), 200).unwrap();
    others_go_on(&world, &mut bystander);
    drop((client, bystander));
    assert_eq!(world.expect_reclaimed().connections_dropped, 1);
}

#[test]
fn a_message_without_bytes() {
    let world = World::new(1);
    let (path, mut bystander) = (world.endpoint(1), world.device(2));
    let (client, mut slow) = (Client::device(&path), Slow::new());
    keep_busy(&mut world.device(3));
    slow.put_into(&client.socket, &[], 1).unwrap();
    others_go_on(&world, &mut bystander);
}

#[test]
fn a_message_that_is_never_read() {
    let world = World::new(1);
    let (path, mut bystander) = (world.endpoint(1), world.device(2));
    {
        let (client, mut slow) = (Client::device(&path), Slow::new());
        keep_busy(&mut world.device(3));
        // An answer that is not read makes the end of the connection an error, which comes before what is left in it.
        client.send_all(&[&request(), &[0xff]]);
        slow.put_into(&client.socket, &request(), 1).unwrap();
    }
    others_go_on(&world, &mut bystander);
}

#[test]
fn a_connection_that_is_refused() {
    let world = World::new(1);
    let stranger = rustix::process::getuid().as_raw() + 1;
    let path = world.endpoint_with(1, |spec| spec.allowed_uid = Some(stranger));
    let mut bystander = world.device(2);
    let mut slow = Slow::new();
    keep_busy(&mut world.device(3));
    let client = Client::connect(&path);
    slow.put_into(&client.socket, &request(), 1).unwrap();
    drop(client);
    others_go_on(&world, &mut bystander);
}

#[test]
fn an_endpoint_that_is_removed() {
    let world = World::new(1);
    let (client, mut bystander) = (world.device(1), world.device(2));
    let mut slow = Slow::new();
    slow.put_into(&client.socket, &request(), 1).unwrap();
    let start = Instant::now();
    world.server.remove_endpoint(EndpointId(1));
    others_go_on(&world, &mut bystander);
    assert!(start.elapsed() < SOON);
}

#[test]
fn event_descriptors_take_nothing() {
    let world = World::new(1);
    let (mut client, mut bystander) = (world.device(1), world.device(2));
    let (_, channel) = client.create_channel();
    let events = client.async_fd.take().unwrap();
    for fd in [&channel, &events] {
        assert_eq!(Slow::new().put_into(fd, &[0; 8], 1), Err(Errno::PIPE));
    }
    drop(client);
    others_go_on(&world, &mut bystander);
}

#[test]
fn an_event_descriptor_that_is_shut_down() {
    use rustix::net::{Shutdown, shutdown};
    let world = World::new(1);
    let (mut client, mut bystander) = (world.device(1), world.device(2));
    let (channel, channel_fd) = client.create_channel();
    let (cq, _ring) = client.try_create_cq(1, channel as i32).unwrap();
    let pd = client.alloc_pd();
    let (qp, ..) = client.create_qp(pd, cq, 2);
    shutdown(&channel_fd, Shutdown::Both).unwrap();
    shutdown(client.async_fd.as_ref().unwrap(), Shutdown::Both).unwrap();
    client.order_with_room(number::DESTROY_QP, &DestroyQp { qp_handle: qp, ..Default::default() }, 4);
    client.order_with_room(number::DESTROY_CQ, &DestroyCq { cq_handle: cq, ..Default::default() }, 8);
    others_go_on(&world, &mut bystander);
}

#[test]
fn a_wake_descriptor_that_blocks() {
    let world = World::new(1);
    let (mut client, mut bystander) = (world.device(1), world.device(2));
    let pd = client.alloc_pd();
    let (cq, _ring) = client.create_cq(4);
    let (qp, ..) = client.create_qp(pd, cq, 2);
    to_error(&mut client, qp);
    let wake = client.wake.as_ref().unwrap();
    rustix::fs::fcntl_setfl(wake, rustix::fs::OFlags::empty()).unwrap();
    rustix::io::write(wake, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let body = plain(number::POST_SEND, &PostSend { qp_handle: qp, ..Default::default() }, &[], 4);
    let header = RequestHeader {
        version: VERSION,
        kind: RequestKind::Verbs as u32,
        command_len: body.len() as u32,
        segments: 0,
    };
    client.send(&[header.as_bytes(), &body].concat(), None).unwrap();
    others_go_on(&world, &mut bystander);
    client.receive().unwrap();
}

/// A state in which sends are taken.
fn to_error(client: &mut Client, qp: u32) {
    for (state, mask, access) in [(1, 1 | 1 << 3 | 1 << 4 | 1 << 5, 0), (6, 1, 0)] {
        let request = ModifyQp {
            qp_handle: qp,
            attr_mask: mask,
            qp_state: state,
            qp_access_flags: access,
            port_num: 1,
            ..Default::default()
        };
        client.order(number::MODIFY_QP, &request).unwrap();
    }
}
