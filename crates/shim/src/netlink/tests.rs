//! Tests of NETLINK_RDMA sockets, with a router that the test plays.

use super::*;
use rdmesh_uverbs::abi::netlink::{nldev, nldev_type};
use rdmesh_uverbs::session::{self, ReplyHeader, RequestHeader, SOCKET_NAME};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SocketAddrUnix, accept, bind, listen, recv, socket_with};
use std::io::IoSlice;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Says how many parts the list has that it is asked for: this many.
const PARTS: u64 = 100;
/// Bytes of each.
const PART: usize = 3000;

/// A router that answers each list with numbered parts, GET with one message, SYS_GET with nothing, and all else with
/// EPERM. Says when a connection has ended.
struct Router {
    _directory: tempfile::TempDir,
    endpoint: &'static Endpoint,
    ended: Receiver<()>,
}

impl Router {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(directory.path().join(SOCKET_NAME)).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        let (end, ended) = channel();
        std::thread::spawn(move || {
            while let Ok(connection) = accept(&listener) {
                let end = end.clone();
                std::thread::spawn(move || {
                    serve(&connection);
                    let _ = end.send(());
                });
            }
        });
        Self { endpoint: Endpoint::at(directory.path()), _directory: directory, ended }
    }

    fn socket(&self) -> (OwnedFd, Arc<NetlinkSocket>) {
        let fd = open(self.endpoint, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).unwrap();
        // SAFETY: it was opened just now, for this test.
        (unsafe { OwnedFd::from_raw_fd(fd) }, find(fd).unwrap())
    }
}

fn serve(connection: &OwnedFd) {
    let mut buffer = vec![0; session::MAX_MESSAGE];
    while let Ok((len @ 1.., _)) = session::receive(connection.as_fd(), &mut buffer) {
        let body = &buffer[size_of::<RequestHeader>()..len];
        let (query, message) = NetlinkQuery::read_from_prefix(body).unwrap();
        let header = NetlinkHeader::read_from_prefix(message).unwrap().0;
        let answer = |next, is_list, message: &[u8]| {
            let answer = NetlinkAnswer { next, status: 0, is_list };
            (0, [answer.as_bytes(), message].concat())
        };
        let (errno, response) = match header.kind & 0x3ff {
            nldev::RES_QP_GET => {
                let next = if query.from + 1 == PARTS { NetlinkAnswer::END } else { query.from + 1 };
                answer(next, 1, &[&query.from.to_ne_bytes()[..], &[7; PART]].concat())
            }
            nldev::GET => answer(NetlinkAnswer::END, 0, b"device"),
            nldev::SYS_GET => answer(NetlinkAnswer::END, 0, b""),
            _ => (libc::EPERM as u32, Vec::new()),
        };
        let head = ReplyHeader { errno, response_len: response.len() as u32, ..ReplyHeader::default() };
        session::send(connection.as_fd(), &[IoSlice::new(head.as_bytes()), IoSlice::new(&response)], &[]).unwrap();
    }
}

fn request(command: u16, flags: u16) -> Vec<u8> {
    let header = NetlinkHeader { len: 20, kind: nldev_type(command), flags, seq: 5, port_id: 0 };
    [header.as_bytes(), &[1; 4]].concat()
}

const ASK: u16 = netlink_flag::REQUEST;
const LIST: u16 = netlink_flag::REQUEST | netlink_flag::DUMP;

/// The next datagram, if there is one.
fn receive(fd: &OwnedFd, socket: &NetlinkSocket) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 8192];
    let (_, len) = recv(fd, &mut buffer[..], RecvFlags::DONTWAIT).ok()?;
    socket.received();
    Some(buffer[..len].to_vec())
}

fn is_readable(fd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).unwrap() == 1
}

/// Type, flags, sequence number, and the status that follows.
fn status(message: &[u8]) -> (u16, u16, u32, i32) {
    let (header, rest) = NetlinkHeader::read_from_prefix(message).unwrap();
    assert_eq!(header.len as usize, message.len());
    (header.kind, header.flags, header.seq, i32::read_from_prefix(rest).unwrap().0)
}

#[test]
fn a_list_comes_part_by_part_however_little_the_socket_holds() {
    let router = Router::start();
    let (fd, socket) = router.socket();
    assert!(!is_readable(&fd));
    socket.send(&request(nldev::RES_QP_GET, LIST)).unwrap();
    for part in 0..PARTS {
        assert!(is_readable(&fd), "part {part}");
        let message = receive(&fd, &socket).unwrap();
        assert_eq!((message.len(), &message[..8]), (8 + PART, &part.to_ne_bytes()[..]));
    }
    let (kind, flags, seq, done) = status(&receive(&fd, &socket).unwrap());
    assert_eq!((kind, flags, seq, done), (netlink_type::DONE, netlink_flag::MULTI, 5, 0));
    assert!(receive(&fd, &socket).is_none());
}

#[test]
fn one_list_at_a_time() {
    let router = Router::start();
    let (fd, socket) = router.socket();
    socket.send(&request(nldev::RES_QP_GET, LIST)).unwrap();
    socket.send(&request(nldev::RES_QP_GET, LIST)).unwrap();
    // Questions that are no lists are answered in between.
    socket.send(&request(nldev::GET, ASK)).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| receive(&fd, &socket)).collect();
    assert_eq!(all.len() as u64, PARTS + 3);
    let busy: Vec<_> = all.iter().filter(|message| message.len() == 16 + 4 + 20).collect();
    let expected = (netlink_type::ERROR, 0, 5, -libc::EBUSY);
    assert_eq!(busy.into_iter().map(|m| status(m)).collect::<Vec<_>>(), [expected]);
    assert!(all.iter().any(|message| message == b"device"));
    socket.send(&request(nldev::RES_QP_GET, LIST)).unwrap();
    assert!(receive(&fd, &socket).is_some(), "now there is room for another");
}

#[test]
fn acknowledgements_come_for_errors_and_for_those_who_ask() {
    let router = Router::start();
    let (fd, socket) = router.socket();
    let ask = |bytes: &[u8]| {
        socket.send(bytes).unwrap();
        std::iter::from_fn(|| receive(&fd, &socket)).collect::<Vec<_>>()
    };
    let all = ask(&[request(nldev::GET, ASK), request(nldev::GET, ASK | netlink_flag::ACK)].concat());
    assert_eq!((all.len(), &all[0][..], &all[1][..]), (3, &b"device"[..], &b"device"[..]));
    assert_eq!(status(&all[2]), (netlink_type::ERROR, netlink_flag::CAPPED, 5, 0));
    assert!(ask(&request(nldev::SYS_GET, ASK)).is_empty());
    let refused = ask(&request(nldev::SET, ASK));
    assert_eq!(status(&refused[0]), (netlink_type::ERROR, 0, 5, -libc::EPERM));
    assert_eq!(refused[0][20..], request(nldev::SET, ASK), "what it is about");
    // A message that is not a request is not answered, unless an acknowledgement is asked for.
    assert!(ask(&request(nldev::SET, 0)).is_empty());
    assert_eq!(status(&ask(&request(nldev::SET, netlink_flag::ACK))[0]).3, 0);
    socket.with_options(|options| options.set(libc::NETLINK_CAP_ACK, 1)).unwrap();
    let capped = ask(&request(nldev::SET, ASK));
    assert_eq!((capped[0].len(), status(&capped[0]).1), (36, netlink_flag::CAPPED));
}

#[test]
fn whatever_a_program_sends_the_socket_goes_on() {
    let router = Router::start();
    let (fd, socket) = router.socket();
    let mut random = 1u64;
    for round in 0..500usize {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut bytes = random.to_ne_bytes().repeat(round % 7);
        if let Some(len) = bytes.get_mut(..4) {
            len.copy_from_slice(&((random >> 56) as u32).to_ne_bytes());
        }
        socket.send(&bytes).unwrap();
        while receive(&fd, &socket).is_some() {}
    }
    assert_eq!(socket.send(&vec![0; MAX_DATAGRAM + 1]), Err(Errno::MSGSIZE));
    socket.send(&request(nldev::GET, ASK)).unwrap();
    assert_eq!(receive(&fd, &socket).unwrap(), b"device");
}

#[test]
fn one_that_sends_and_never_receives_is_told_so() {
    let router = Router::start();
    let (fd, socket) = router.socket();
    let refused = (0..10_000).find_map(|_| socket.send(&request(nldev::GET, ASK)).err());
    assert_eq!(refused, Some(Errno::NOBUFS));
    while receive(&fd, &socket).is_some() {}
    socket.send(&request(nldev::GET, ASK)).unwrap();
}

#[test]
fn addresses_are_the_processs_number_or_what_it_chose() {
    let router = Router::start();
    let (_fd, socket) = router.socket();
    assert_eq!(socket.port_id(), 0);
    socket.send(&[]).unwrap();
    let own = socket.port_id();
    assert_ne!(own, 0);
    let (_other_fd, other) = router.socket();
    other.bind(0).unwrap();
    assert_ne!(other.port_id(), own, "no two sockets have the same");
    assert_eq!((other.bind(0), other.bind(own)), (Ok(()), Err(Errno::INVAL)));
    let (_third_fd, third) = router.socket();
    third.bind(12345).unwrap();
    assert_eq!(third.port_id(), 12345);
}

#[test]
fn the_last_descriptor_ends_the_connection() {
    let router = Router::start();
    let (fd, socket) = router.socket();
    socket.send(&request(nldev::RES_QP_GET, LIST)).unwrap();
    let number = fd.as_raw_fd();
    descriptors::forget(number);
    router.ended.recv_timeout(Duration::from_secs(10)).expect("the connection ends");
    assert!(find(number).is_none());
}

#[test]
fn a_number_closed_behind_our_back_is_somebody_elses() {
    let router = Router::start();
    let (fd, socket) = router.socket();
    let (other, _end) = rustix::pipe::pipe().unwrap();
    let number = fd.as_raw_fd();
    // SAFETY: both are this test's; `fd` goes on as the pipe's.
    assert_eq!(unsafe { libc::syscall(libc::SYS_dup2, other.as_raw_fd(), number) }, i64::from(number));
    assert!(find(number).is_none());
    drop(socket);
    router.ended.recv_timeout(Duration::from_secs(10)).expect("the connection ends");
}

#[test]
fn without_a_router_there_is_no_such_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::at(directory.path());
    assert_eq!(open(endpoint, libc::SOCK_RAW), Err(Errno::PROTONOSUPPORT));
    assert_eq!(open(endpoint, libc::SOCK_STREAM), Err(Errno::SOCKTNOSUPPORT));
}

#[test]
fn options_are_flags_and_groups_are_for_others() {
    let mut options = Options::default();
    options.set(libc::NETLINK_EXT_ACK, 1).unwrap();
    assert_eq!((options.value(libc::NETLINK_EXT_ACK), options.value(libc::NETLINK_CAP_ACK)), (Ok(1), Ok(0)));
    options.set(libc::NETLINK_EXT_ACK, 0).unwrap();
    assert_eq!(options.value(libc::NETLINK_EXT_ACK), Ok(0));
    assert_eq!(options.set(libc::NETLINK_ADD_MEMBERSHIP, 4), Err(Errno::PERM));
    for unknown in [0, 100, -1, i32::MAX] {
        assert_eq!((options.set(unknown, 1), options.value(unknown)), (Err(Errno::NOPROTOOPT), Err(Errno::NOPROTOOPT)));
    }
}

#[test]
fn lengths_that_lie_end_a_datagram() {
    let good = request(nldev::GET, ASK);
    let mut short = good.clone();
    short[..4].copy_from_slice(&15u32.to_ne_bytes());
    let mut long = good.clone();
    long[..4].copy_from_slice(&21u32.to_ne_bytes());
    let count = |parts: &[&[u8]]| frame::requests(&parts.concat()).count();
    assert_eq!((count(&[&good, &good]), count(&[&good, &short, &good]), count(&[&good, &long])), (2, 1, 1));
    assert_eq!((count(&[]), count(&[&[0; 15]]), count(&[&[0xff; 64]])), (0, 0, 0));
}
