//! Tests of open devices, with a router that the test plays.

#![allow(unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "every block borrows a descriptor that its test holds open")]

use super::*;
use crate::endpoint::Endpoint;
use crate::{descriptors, memory};
use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage, WORKERS_LEN, WorkerFlags};
use rdmesh_uverbs::session::{
    self, FdUse, IoctlHeader, MAX_MESSAGE, OpenCmReply, OpenReply, ReplyHeader, RequestHeader, RequestKind,
    SOCKET_NAME, Segment, SegmentKind, Token, VERSION,
};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with, socketpair,
};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

mod channels;
mod commands;
mod contexts;
mod ioctl;

/// A request as the router got it.
struct Request {
    kind: RequestKind,
    command: Vec<u8>,
    segments: Vec<Segment>,
    /// The first descriptor with it: the arena, or the context page.
    fd: Option<OwnedFd>,
}

/// An answer of the router.
#[derive(Default)]
struct Answer {
    errno: u32,
    response: Vec<u8>,
    fds: Vec<(OwnedFd, FdUse, u64)>,
    mminfo: [u8; 16],
    wanted: [u64; 2],
}

const TOKEN: Token = Token([7; 16]);

/// The router's side of an endpoint: answers what it was told to, and passes on what it was asked.
struct Router {
    directory: TempDir,
    requests: Receiver<Request>,
    answers: Arc<Mutex<Vec<Answer>>>,
    /// That of the context opened last.
    page: Mutex<Option<ContextPage>>,
    workers: WorkerFlags,
    wake: OwnedFd,
    /// The router's end of the event socket; all channels share it.
    events: OwnedFd,
    /// The program's.
    program: OwnedFd,
    /// Commands that would take events away are refused.
    has_unread: Arc<AtomicBool>,
}

/// Message and descriptors that open a context or a channel.
struct Opening {
    context: [OwnedFd; 2],
    events: OwnedFd,
}

/// The answers that the router was told to give.
#[derive(Clone)]
struct Told {
    answers: Arc<Mutex<Vec<Answer>>>,
    has_unread: Arc<AtomicBool>,
}

/// Number of every channel.
const NUMBER: u32 = 77;

impl Router {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(directory.path().join(SOCKET_NAME)).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        let (workers, workers_fd) = SharedMemory::create_published("workers", WORKERS_LEN).unwrap();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let context = [workers_fd, wake.try_clone().unwrap()];
        let (events, program) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let opening = Arc::new(Opening { context, events: program.try_clone().unwrap() });
        let (sender, requests) = channel();
        let answers = Arc::new(Mutex::new(Vec::new()));
        let has_unread = Arc::new(AtomicBool::new(false));
        let told = Told { answers: answers.clone(), has_unread: has_unread.clone() };
        std::thread::spawn(move || {
            while let Ok(socket) = accept(&listener) {
                let (sender, told) = (sender.clone(), told.clone());
                let opening = opening.clone();
                std::thread::spawn(move || serve(&socket, &opening, &sender, &told));
            }
        });
        let (page, workers) = (Mutex::default(), WorkerFlags::new(workers).unwrap());
        Self { directory, requests, answers, page, workers, wake, events, program, has_unread }
    }

    fn endpoint(&self) -> &'static Endpoint {
        Endpoint::at(self.directory.path())
    }

    /// Opens the device, and lets the request pass.
    fn open(&self) -> RawFd {
        let fd = open(self.endpoint(), true).unwrap();
        let request = self.request();
        assert_eq!(request.kind, RequestKind::Open);
        let page = SharedMemory::map(request.fd.unwrap().as_fd(), 0, CONTEXT_PAGE_LEN, true).unwrap();
        *self.page.lock().unwrap() = ContextPage::new(page);
        fd
    }

    fn page(&self) -> ContextPage {
        self.page.lock().unwrap().clone().expect("an open context")
    }

    fn answer_next(&self, answer: Answer) {
        self.answers.lock().unwrap().push(answer);
    }

    fn request(&self) -> Request {
        self.requests.recv_timeout(std::time::Duration::from_secs(10)).unwrap()
    }

    fn heard_nothing(&self) -> bool {
        self.requests.try_recv().is_err()
    }
}

fn serve(socket: &OwnedFd, opening: &Opening, sender: &Sender<Request>, told: &Told) {
    let mut buffer = vec![0; MAX_MESSAGE];
    while let Ok((len, fds)) = session::receive(socket.as_fd(), &mut buffer) {
        if len == 0 {
            return;
        }
        let (head, rest) = RequestHeader::read_from_prefix(&buffer[..len]).unwrap();
        assert_eq!(head.version, VERSION);
        let (command, segments) = rest.split_at(head.command_len as usize);
        let segments: Vec<_> = segments.chunks(32).map(|bytes| Segment::read_from_bytes(bytes).unwrap()).collect();
        assert_eq!(segments.len(), head.segments as usize);
        let kind = RequestKind::from_number(head.kind).unwrap();
        let request = Request { kind, command: command.to_vec(), segments, fd: fds.into_iter().next() };
        let answer = match kind {
            RequestKind::Open => Answer {
                response: OpenReply { token: TOKEN, rdev: 0 }.as_bytes().to_vec(),
                fds: opening.context.iter().map(|fd| (fd.try_clone().unwrap(), FdUse::Open, 0)).collect(),
                ..Answer::default()
            },
            RequestKind::OpenCm => Answer {
                response: OpenCmReply { token: TOKEN, number: NUMBER, reserved: 0 }.as_bytes().to_vec(),
                fds: vec![(opening.events.try_clone().unwrap(), FdUse::Open, 0)],
                ..Answer::default()
            },
            RequestKind::Attach | RequestKind::AttachCm => Answer::default(),
            RequestKind::CmUnlessEvents if told.has_unread.load(Ordering::SeqCst) => {
                Answer { errno: Errno::AGAIN.raw_os_error() as u32, ..Answer::default() }
            }
            _ => told.answers.lock().unwrap().pop().unwrap_or_default(),
        };
        reply(socket.as_fd(), &answer);
        if sender.send(request).is_err() {
            return;
        }
    }
}

fn reply(socket: BorrowedFd<'_>, answer: &Answer) {
    let mut head = ReplyHeader {
        errno: answer.errno,
        response_len: answer.response.len() as u32,
        mminfo: answer.mminfo,
        wanted: answer.wanted,
        ..ReplyHeader::default()
    };
    for (i, (_, purpose, place)) in answer.fds.iter().enumerate() {
        (head.fds[i], head.places[i]) = (*purpose as u32, *place);
    }
    let fds: Vec<_> = answer.fds.iter().map(|(fd, ..)| fd.as_fd()).collect();
    session::send(socket, &[IoSlice::new(head.as_bytes()), IoSlice::new(&answer.response)], &fds).unwrap();
}

/// Behaves as the replaced `write`.
fn write_command(fd: RawFd, command: &[u8]) -> Result<(), Errno> {
    match write(descriptors::peek_as::<Context>(fd).expect("a command descriptor"), fd, command) {
        Written::Command(result) => result,
        Written::Foreign => panic!("not taken for a command"),
    }
}

fn close(fd: RawFd) {
    descriptors::forget(fd);
    link::discard(fd);
}

/// A command of the older form: `body` begins with the response's address where there is one.
fn legacy(number: u32, out_words: u16, body: &[u64]) -> Vec<u8> {
    let in_words = 2 + body.len() as u16 * 2;
    let mut command = number.to_ne_bytes().to_vec();
    command.extend([in_words.to_ne_bytes(), out_words.to_ne_bytes()].concat());
    command.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
    command
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
