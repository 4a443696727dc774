//! A program's connection to the router: frames of the guest as session messages, and back.

use super::memory::GuestMemory;
use crate::wire::{Kind, frame, numbers};
use rdmesh_uverbs::session::guest::{MAX_SEGMENTS, Pages, ProgramName};
use rdmesh_uverbs::session::{
    self, FdUse, MAX_MESSAGE, ReplyHeader, RequestHeader, RequestKind, SOCKET_NAME, Segment, SegmentKind, VERSION,
};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recv, shutdown, socket_with,
};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// A connection.
pub(super) struct Session {
    router: OwnedFd,
    /// Messages of the request that waits for its answer; the first has been sent.
    request: VecDeque<Message>,
    wake: Option<OwnedFd>,
    /// Descriptors that the guest hears of, by slot.
    watched: Vec<Watched>,
    /// Those of them that were installed in the program.
    installed: u32,
}

/// A descriptor of the router's, with the use that the guest's program has for it.
struct Watched {
    fd: OwnedFd,
    purpose: Purpose,
}

#[derive(Clone, Copy)]
enum Purpose {
    /// Gets a byte when threads are to be woken.
    Waker,
    /// Number of an installed descriptor, which has messages.
    Events(u32),
    /// A channel of rdma_cm, which has a byte for each event that waits.
    Level,
}

struct Message {
    bytes: Vec<u8>,
    has_memory: bool,
}

/// The guest or the router does not keep to the protocol, or is gone.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("a request before the answer to the last one")]
    Overlap,
    #[error("a frame that makes no sense")]
    Malformed,
    #[error("the router: {0}")]
    Router(#[from] Errno),
    #[error("the router has closed the connection")]
    Closed,
}

impl Session {
    /// Connects to the endpoint in `directory`.
    pub(super) fn connect(directory: &Path) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let router = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let address = SocketAddrUnix::new(directory.join(SOCKET_NAME))?;
        // A burst of programs may find the router's backlog full for a moment.
        for last in (0..CONNECTING).rev() {
            match connect(&router, &address) {
                Err(Errno::AGAIN) if last > 0 => std::thread::sleep(Duration::from_millis(1)),
                connected => {
                    connected?;
                    break;
                }
            }
        }
        Ok(Self { router, request: VecDeque::new(), wake: None, watched: Vec::new(), installed: 0 })
    }

    /// The session's socket: readable with an answer, or at its end.
    pub(super) fn router(&self) -> BorrowedFd<'_> {
        self.router.as_fd()
    }

    /// Descriptors that are to be watched, from slot number `from` on.
    pub(super) fn watched(&self, from: usize) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.watched.iter().skip(from).map(|watched| watched.fd.as_fd())
    }

    /// Takes a frame of the guest. Returns the frames that answer it at once.
    pub(super) fn handle_frame(
        &mut self,
        kind: Kind,
        payload: &[u8],
        memory: &GuestMemory,
    ) -> Result<Vec<u8>, SessionError> {
        if kind == Kind::Ring {
            if let Some(wake) = &self.wake {
                // A full counter wakes the worker as well.
                let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
            }
            return Ok(Vec::new());
        }
        if !self.request.is_empty() {
            return Err(SessionError::Overlap);
        }
        let messages = match kind {
            Kind::Request => request(payload, memory),
            Kind::Open => match payload.split_at_checked(size_of::<ProgramName>()) {
                Some((name, rest)) => pages(RequestKind::OpenGuest, name, 0, rest, memory),
                None => return Err(SessionError::Malformed),
            },
            Kind::Pages => match payload.split_first_chunk::<8>() {
                Some((offset, rest)) => pages(RequestKind::GuestPages, &[], u64::from_ne_bytes(*offset), rest, memory),
                None => return Err(SessionError::Malformed),
            },
            _ => return Err(SessionError::Malformed),
        };
        match messages {
            Ok(messages) => {
                self.request = messages;
                self.send(memory)?;
                Ok(Vec::new())
            }
            Err(Some(errno)) => Ok(error_reply(errno)),
            Err(None) => Err(SessionError::Malformed),
        }
    }

    /// Reads an answer of the router, if there is one. Returns frames for the guest.
    pub(super) fn handle_router(&mut self, memory: &GuestMemory) -> Result<Vec<u8>, SessionError> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let (len, fds) = match session::receive(self.router.as_fd(), &mut buffer) {
            Err(Errno::AGAIN) => return Ok(Vec::new()),
            Ok((0, _)) => return Err(SessionError::Closed),
            received => received?,
        };
        let header = ReplyHeader::read_from_prefix(&buffer[..len]).map_err(|_| SessionError::Malformed)?.0;
        let Some(sent) = self.request.pop_front() else { return Err(SessionError::Malformed) };
        let mut frames = Vec::new();
        if header.errno != 0 {
            self.request.clear();
        }
        for (fd, purpose) in fds.into_iter().zip(header.fds) {
            match (FdUse::from_number(purpose), sent.kind()) {
                (Some(FdUse::Install), _) => self.watch_installed(fd),
                (Some(FdUse::Open), Some(RequestKind::OpenCm)) => self.watch(fd, Purpose::Level),
                (Some(FdUse::Open), _) if self.wake.is_none() => self.wake = Some(fd),
                (Some(FdUse::Open), _) => self.watch(fd, Purpose::Waker),
                (None, _) => {}
            }
        }
        if self.request.is_empty() {
            // The channel's level first: the program looks at it when it has the answer.
            if let Some(slot) = self.watched.iter().position(|watched| matches!(watched.purpose, Purpose::Level)) {
                frames = self.handle_watched(slot)?;
            }
            frames.extend(frame(Kind::Reply, &[&buffer[..len]]));
        } else {
            self.send(memory)?;
        }
        Ok(frames)
    }

    /// Reads what there is at a slot's descriptor. Returns frames for the guest.
    pub(super) fn handle_watched(&mut self, slot: usize) -> Result<Vec<u8>, SessionError> {
        let Some(Watched { fd, purpose }) = self.watched.get(slot) else { return Ok(Vec::new()) };
        let mut buffer = [0; 256];
        match *purpose {
            Purpose::Level => {
                let level = u32::try_from(ioctl_fionread(fd)?).unwrap_or(u32::MAX);
                Ok(frame(Kind::Level, &[level.as_bytes()]))
            }
            Purpose::Waker => {
                let mut is_woken = false;
                while matches!(recv(fd, &mut buffer[..], RecvFlags::DONTWAIT), Ok((1.., _))) {
                    is_woken = true;
                }
                Ok(if is_woken { frame(Kind::Wake, &[]) } else { Vec::new() })
            }
            Purpose::Events(number) => {
                let mut frames = Vec::new();
                while let Ok((len @ 1.., _)) = recv(fd, &mut buffer[..], RecvFlags::DONTWAIT) {
                    frames.extend(frame(Kind::Event, &[number.as_bytes(), &buffer[..len]]));
                }
                Ok(frames)
            }
        }
    }

    /// The guest's program is gone. The router closes the connection when nothing of it touches the guest's memory any more.
    pub(super) fn finish(&self) {
        let _ = shutdown(&self.router, Shutdown::Write);
    }

    fn watch_installed(&mut self, fd: OwnedFd) {
        self.watch(fd, Purpose::Events(self.installed));
        self.installed += 1;
    }

    fn watch(&mut self, fd: OwnedFd, purpose: Purpose) {
        self.watched.push(Watched { fd, purpose });
    }

    fn send(&self, memory: &GuestMemory) -> Result<(), SessionError> {
        let Some(message) = self.request.front() else { return Ok(()) };
        let file = memory.file();
        let fds = if message.has_memory { std::slice::from_ref(&file) } else { &[] };
        Ok(session::send(self.router.as_fd(), &[IoSlice::new(&message.bytes)], fds)?)
    }
}

impl Message {
    fn kind(&self) -> Option<RequestKind> {
        let header = RequestHeader::read_from_prefix(&self.bytes).ok()?.0;
        RequestKind::from_number(header.kind)
    }
}

/// The messages of a program's request. Without an errno the request is malformed.
fn request(payload: &[u8], memory: &GuestMemory) -> Result<VecDeque<Message>, Option<Errno>> {
    let (header, rest) = RequestHeader::read_from_prefix(payload).map_err(|_| None)?;
    let kind = RequestKind::from_number(header.kind).ok_or(Some(Errno::OPNOTSUPP))?;
    if !FORWARDED.contains(&kind) {
        return Err(Some(Errno::OPNOTSUPP));
    }
    let (command, segments) = rest.split_at_checked(header.command_len as usize).ok_or(None)?;
    if (header.segments as usize).checked_mul(size_of::<Segment>()) != Some(segments.len())
        || command.len() > MAX_COMMAND
    {
        return Err(None);
    }
    let mut located = Vec::new();
    for segment in segments.chunks_exact(size_of::<Segment>()) {
        let segment = Segment::read_from_bytes(segment).map_err(|_| None)?;
        locate(&segment, memory, &mut located).map_err(Some)?;
    }
    let message = |kind: RequestKind, command: &[u8], segments: &[Segment]| Message {
        bytes: {
            let (command_len, count) = (command.len() as u32, segments.len() as u32);
            let header = RequestHeader { version: header.version, kind: kind as u32, command_len, segments: count };
            [header.as_bytes(), command, segments.as_bytes()].concat()
        },
        has_memory: !segments.is_empty(),
    };
    let room = (MAX_MESSAGE - size_of::<RequestHeader>() - command.len()) / size_of::<Segment>();
    let (before, last) = located.split_at(located.len().saturating_sub(room));
    let part = (MAX_MESSAGE - size_of::<RequestHeader>()) / size_of::<Segment>();
    let mut messages: VecDeque<_> =
        before.chunks(part).map(|part| message(RequestKind::GuestSegments, &[], part)).collect();
    messages.push_back(message(kind, command, last));
    Ok(messages)
}

/// Adds the pieces of a segment, whose offset is a guest-physical address, at their offsets in the guest's memory.
fn locate(segment: &Segment, memory: &GuestMemory, located: &mut Vec<Segment>) -> Result<(), Errno> {
    if segment.kind != SegmentKind::Arena as u32 {
        return Err(Errno::OPNOTSUPP);
    }
    let mut done = 0;
    while done < segment.len {
        let address = segment.offset.checked_add(done).ok_or(Errno::FAULT)?;
        let (offset, len) = memory.find(address, segment.len - done).ok_or(Errno::FAULT)?;
        if located.len() == MAX_SEGMENTS {
            return Err(Errno::NOMEM);
        }
        located.push(Segment { addr: segment.addr.wrapping_add(done), len, offset, ..*segment });
        done += len;
    }
    Ok(())
}

/// A message with a list of pages behind a head.
fn pages(
    kind: RequestKind,
    head: &[u8],
    offset: u64,
    addresses: &[u8],
    memory: &GuestMemory,
) -> Result<VecDeque<Message>, Option<Errno>> {
    let addresses = numbers(addresses).ok_or(None)?;
    let places: Option<Vec<u64>> = addresses.into_iter().map(|address| memory.find_page(address)).collect();
    let pages = Pages { offset, places: places.ok_or(Some(Errno::FAULT))? };
    let body = [head, &pages.to_bytes()].concat();
    if body.len() > MAX_COMMAND {
        return Err(Some(Errno::NOMEM));
    }
    let header = RequestHeader { version: VERSION, kind: kind as u32, command_len: body.len() as u32, segments: 0 };
    let bytes = [header.as_bytes(), &body].concat();
    Ok(VecDeque::from([Message { bytes, has_memory: kind == RequestKind::OpenGuest }]))
}

/// A frame with an error.
fn error_reply(errno: Errno) -> Vec<u8> {
    let header = ReplyHeader { errno: errno.raw_os_error().cast_unsigned(), ..ReplyHeader::default() };
    frame(Kind::Reply, &[header.as_bytes()])
}

/// Kinds of messages that a guest's program may send.
const FORWARDED: [RequestKind; 9] = [
    RequestKind::Attach,
    RequestKind::Verbs,
    RequestKind::Ioctl,
    RequestKind::Counter,
    RequestKind::Netlink,
    RequestKind::OpenCm,
    RequestKind::AttachCm,
    RequestKind::Cm,
    RequestKind::CmUnlessEvents,
];
/// Times that a connection to the router is tried, a millisecond apart.
const CONNECTING: u32 = 50;
const MAX_COMMAND: usize = MAX_MESSAGE - size_of::<RequestHeader>();

#[cfg(test)]
mod tests {
    use super::super::memory::Region;
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    /// Two regions with a hole between them.
    fn memory() -> GuestMemory {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        let region = |address, len, offset| (Region { address, len, offset }, file.as_fd());
        GuestMemory::new([region(0, 1 << 20, 0), region(2 << 20, 64 << 20, 1 << 20)].into_iter()).unwrap()
    }

    fn registration(segments: &[Segment]) -> Vec<u8> {
        let header = RequestHeader {
            version: VERSION,
            kind: RequestKind::Verbs as u32,
            command_len: 8,
            segments: segments.len() as u32,
        };
        [header.as_bytes(), &[1; 8], segments.as_bytes()].concat()
    }

    fn segment(addr: u64, len: u64, offset: u64) -> Segment {
        Segment { addr, len, kind: SegmentKind::Arena as u32, reserved: 0, offset }
    }

    #[test]
    fn segments_are_named_by_their_place_in_the_file() {
        let messages = request(&registration(&[segment(7 << 20, 8192, (2 << 20) + 4096)]), &memory()).unwrap();
        assert_eq!(messages.len(), 1);
        assert!(messages[0].has_memory);
        let (_, sent) = messages[0].bytes.split_at(size_of::<RequestHeader>() + 8);
        assert_eq!(Segment::read_from_bytes(sent).unwrap(), segment(7 << 20, 8192, (1 << 20) + 4096));
    }

    #[test]
    fn what_is_not_the_guests_is_refused() {
        let memory = memory();
        for (offset, len) in [(1 << 20, 1), ((1 << 20) - 1, 2), (66 << 20, 1), (u64::MAX, 2)] {
            let refused = request(&registration(&[segment(0, len, offset)]), &memory);
            assert_eq!(refused.err(), Some(Some(Errno::FAULT)), "{offset:x}");
        }
        let private = Segment { kind: SegmentKind::Private as u32, ..segment(0, 1, 0) };
        assert_eq!(request(&registration(&[private]), &memory).err(), Some(Some(Errno::OPNOTSUPP)));
        let mut short = registration(&[segment(0, 1, 0)]);
        short.pop();
        assert_eq!(request(&short, &memory).err(), Some(None));
        assert_eq!(pages(RequestKind::OpenGuest, &[], 0, &[0; 12], &memory).err(), Some(None));
        let hole = (1u64 << 20).to_ne_bytes();
        assert_eq!(pages(RequestKind::OpenGuest, &[], 0, &hole, &memory).err(), Some(Some(Errno::FAULT)));
    }

    #[test]
    fn a_registration_of_many_pieces_takes_several_messages() {
        let all: Vec<_> =
            (0..5000).map(|page| segment(page * 4096, 4096, (2 << 20) + (page * 7 % 5000) * 4096)).collect();
        let messages = request(&registration(&all), &memory()).unwrap();
        let sent: usize = messages
            .iter()
            .map(|message| {
                assert!(message.bytes.len() <= MAX_MESSAGE);
                RequestHeader::read_from_prefix(&message.bytes).unwrap().0.segments as usize
            })
            .sum();
        let kinds: Vec<_> = messages.iter().map(|message| message.kind().unwrap()).collect();
        assert_eq!((sent, kinds.last()), (5000, Some(&RequestKind::Verbs)));
        assert!(kinds[..kinds.len() - 1].iter().all(|kind| *kind == RequestKind::GuestSegments) && kinds.len() > 2);
    }
}
