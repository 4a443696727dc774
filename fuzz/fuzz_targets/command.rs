//! Fuzz target for the session socket: arbitrary messages, with real workers behind it.
//!
//! The input is cut into steps of a few bytes of direction and a body. A step's direction decides whether its body is sent as
//! it is, or inside valid frames, so that more than the framing is reached. After each input the context must be gone and
//! everything accounted for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmesh_fabric::Quota;
use rdmesh_router::endpoint::EndpointId;
use rdmesh_router::io::IoConfig;
use rdmesh_router::session::{EndpointSpec, SessionServer};
use rdmesh_router::worker::{Mode, WorkerConfig, Workers};
use rdmesh_uverbs::abi::{Command, CommandHeader, ExtendedCommandHeader, ModifyQp, ioctl_method, ioctl_object, number};
use rdmesh_uverbs::page::CONTEXT_PAGE_LEN;
use rdmesh_uverbs::ring::{Extent, QueueFile};
use rdmesh_uverbs::session::{
    self, IoctlAttr, IoctlHeader, MAX_MESSAGE, ReplyHeader, RequestHeader, RequestKind, Segment, VERSION,
};
use rdmesh_uverbs::shared::SharedMemory;
use rdmesh_verbs::{DeviceLimits, Gid, Vni};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;
use zerocopy::IntoBytes;

struct World {
    server: SessionServer,
    path: PathBuf,
    _workers: Workers,
    _directory: tempfile::TempDir,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let limits = DeviceLimits::default();
    let workers =
        Workers::start(WorkerConfig { count: 2, mode: Mode::Sleep, limits, io: IoConfig::default() }).unwrap();
    let server = SessionServer::start(workers.shards().to_vec(), limits, Mode::Sleep).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("verbs.sock");
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 16).unwrap();
    let spec = EndpointSpec {
        id: EndpointId(1),
        name: "fuzz".into(),
        network: "fuzz".into(),
        vni: Vni(1),
        gids: vec![Gid([0xfe; 16])],
        quota: Quota { contexts: 8, qps: 64, cqs: 64, mrs: 64, mappings: 512, ..Quota::default() },
        policy: Default::default(),
        allowed_uid: None,
        namespace: None,
    };
    server.add_endpoint(spec, listener);
    World { server, path, _workers: workers, _directory: directory }
});

/// Direction of a step.
enum Step<'a> {
    /// Sent as it is.
    Raw(&'a [u8]),
    /// A command of this number, framed.
    Plain(u8, u8, &'a [u8]),
    /// The same of the extended family.
    Extended(u8, u8, &'a [u8]),
    /// A command on managed queues: its call, and the struct of that call.
    Chain(u8, &'a [u8]),
    /// An `ioctl()` method.
    Ioctl(&'a [u8]),
    /// One of those that there are, with its attributes framed: eight bytes each, the rest for the last.
    Method(u8, &'a [u8]),
}

impl<'a> Step<'a> {
    /// Cuts the next step off `data`.
    fn next(data: &mut &'a [u8]) -> Option<Self> {
        let (&[kind, number, room, len], rest) = data.split_first_chunk::<4>()?;
        let (body, rest) = rest.split_at(usize::from(len).min(rest.len()));
        *data = rest;
        Some(match kind % 8 {
            0 => Self::Raw(body),
            1 => Self::Ioctl(body),
            2 => Self::Chain(number % 9, body),
            3 => Self::Extended(number % 60, room, body),
            4 => Self::Method(number, body),
            _ => Self::Plain(number % 45, room, body),
        })
    }

    fn message(&self) -> Vec<u8> {
        match self {
            Self::Raw(body) => body.to_vec(),
            Self::Chain(call, body) => {
                let head = [u32::from(*call), 0];
                request(RequestKind::Chain, &[head.as_bytes(), body].concat(), &[])
            }
            Self::Ioctl(body) => request(RequestKind::Ioctl, body, &[]),
            Self::Method(number, body) => request(RequestKind::Ioctl, &method(*number, body), &[]),
            Self::Plain(number, room, body) => {
                request(RequestKind::Verbs, &plain(*number, *room, body), &segments(body))
            }
            Self::Extended(number, room, body) => request(RequestKind::Verbs, &extended(*number, *room, body), &[]),
        }
    }
}

fn request(kind: RequestKind, body: &[u8], segments: &[Segment]) -> Vec<u8> {
    let header = RequestHeader {
        version: VERSION,
        kind: kind as u32,
        command_len: body.len() as u32,
        segments: segments.len() as u32,
    };
    [header.as_bytes(), body, segments.as_bytes()].concat()
}

/// Registrations come with one segment, taken from the end of the body.
fn segments(body: &[u8]) -> Vec<Segment> {
    zerocopy::FromBytes::read_from_suffix(body).map(|(_, segment)| vec![segment]).unwrap_or_default()
}

fn plain(number: u8, room: u8, body: &[u8]) -> Vec<u8> {
    let body = &body[..body.len() & !3];
    let in_words = ((size_of::<CommandHeader>() + body.len()) / 4) as u16;
    let header = CommandHeader { command: number.into(), in_words, out_words: room.into() };
    [header.as_bytes(), body].concat()
}

fn method(number: u8, body: &[u8]) -> Vec<u8> {
    let methods = [
        (ioctl_object::MR, ioctl_method::ADVISE_MR, 3),
        (ioctl_object::MR, ioctl_method::QUERY_MR, 1),
        (ioctl_object::DEVICE, ioctl_method::QUERY_GID_TABLE, 0),
        (ioctl_object::DEVICE, ioctl_method::QUERY_GID_ENTRY, 2),
        (ioctl_object::COMP_CHANNEL, ioctl_method::CLOSE_COMP_CHANNEL, 1),
    ];
    let (object_id, method_id, numbers) = methods[usize::from(number) % methods.len()];
    let (head, tail) = body.split_at(body.len().min(8 * numbers));
    let attributes: Vec<&[u8]> = head.chunks(8).chain([tail]).collect();
    let header = IoctlHeader { object_id, method_id, num_attrs: attributes.len() as u32 };
    let mut bytes = header.as_bytes().to_vec();
    for (attr_id, attribute) in (0..).zip(attributes) {
        let attr = IoctlAttr { attr_id, len: attribute.len() as u16, reserved: 0 };
        bytes.extend_from_slice(attr.as_bytes());
        bytes.extend_from_slice(attribute);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}

fn extended(number: u8, room: u8, body: &[u8]) -> Vec<u8> {
    let body = &body[..body.len() & !7];
    let header = CommandHeader {
        command: 0x8000_0000 | u32::from(number),
        in_words: (body.len() / 8) as u16,
        out_words: room.into(),
    };
    let more = ExtendedCommandHeader { response: 1, provider_out_words: 2, ..Default::default() };
    [header.as_bytes(), more.as_bytes(), body].concat()
}

/// The head of the answer; none where the connection has ended.
fn exchange(socket: &OwnedFd, message: &[u8], buffer: &mut [u8]) -> Option<ReplyHeader> {
    session::send(socket.as_fd(), &[IoSlice::new(message)], &[]).ok()?;
    let (len, _) = session::receive(socket.as_fd(), buffer).ok()?;
    zerocopy::FromBytes::read_from_prefix(&buffer[..len]).map(|(head, _)| head).ok()
}

/// Nothing that one command makes is larger.
const MOST_WANTED: u64 = 1 << 32;

fn connection(world: &World) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(&world.path).unwrap()).unwrap();
    // A server that does not answer is a finding, not a wait.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(20))).unwrap();
    socket
}

fuzz_target!(|data: &[u8]| {
    if let Ok(command) = Command::parse(data) {
        let _ = command.request::<ModifyQp>();
    }
    let world = &*WORLD;
    let socket = connection(world);
    let mut buffer = vec![0; MAX_MESSAGE];
    let (_page, page) = SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap();
    let queues = QueueFile::memfd().unwrap();
    let opening = request(RequestKind::Open, &[], &[]);
    session::send(socket.as_fd(), &[IoSlice::new(&opening)], &[page.as_fd(), queues.as_fd()]).unwrap();
    assert!(session::receive(socket.as_fd(), &mut buffer).is_ok_and(|(len, _)| len != 0));
    let get_context = plain(number::GET_CONTEXT, 2, &[0; 8]);
    assert!(exchange(&socket, &request(RequestKind::Verbs, &get_context, &[]), &mut buffer).is_some());

    let mut rest = data;
    'steps: while let Some(step) = Step::next(&mut rest) {
        let message = step.message();
        // A command that makes queues is sent again when there is memory for them.
        for _ in 0..4 {
            let Some(reply) = exchange(&socket, &message, &mut buffer) else { break 'steps };
            if reply.wanted[1] == 0 {
                break;
            }
            let extent = Extent { offset: reply.wanted[0], len: reply.wanted[1] };
            assert!(extent.len <= MOST_WANTED);
            QueueFile::fill(queues.as_fd(), extent).unwrap();
        }
    }
    drop(socket);
    loop {
        let totals = world.server.totals();
        assert_eq!(totals.objects_created, totals.objects_destroyed + totals.objects_reclaimed + totals.objects_live);
        if totals.contexts_opened == totals.contexts_closed {
            assert_eq!(totals.objects_live, 0);
            break;
        }
        std::thread::yield_now();
    }
});
