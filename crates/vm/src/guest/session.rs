//! A connection of a program: its messages as frames for the host, and back.

use super::context::{Context, Made, User};
use super::events::{EventChannel, LevelChannel};
use super::objects::{self, Change, Object};
use super::pin::Pin;
use super::{Shared, stream};
use crate::closing::is_closed_by;
use crate::wire::{Frames, Kind, WireError, frame};
use rdmesh_uverbs::abi::{AsyncEventDesc, CompEventDesc};
use rdmesh_uverbs::ring::Extent;
use rdmesh_uverbs::session::guest::ProgramName;
use rdmesh_uverbs::session::{
    self, FdUse, MAX_MESSAGE, OpenReply, ReplyHeader, RequestHeader, RequestKind, Segment, SegmentKind, Token,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Serves a connection to its end.
pub(super) fn serve(shared: &Shared, program: OwnedFd) -> Result<(), SessionError> {
    let stream = stream::connect_program(shared.token)?;
    let mut session = Session {
        shared,
        program,
        stream,
        frames: Frames::default(),
        context: None,
        user: None,
        is_opener: false,
        wake: None,
        level: None,
        arena: None,
        wanted: None,
        pending: None,
        channels: Vec::new(),
    };
    let result = session.run();
    session.end();
    result
}

/// The program or the host does not keep to the protocol, or is gone.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("the host: {0}")]
    Stream(#[from] io::Error),
    #[error("the host: {0}")]
    Wire(#[from] WireError),
    #[error("the program: {0}")]
    Program(#[from] Errno),
    #[error("the host has closed it")]
    Closed,
    #[error("a message that makes no sense")]
    Malformed,
}

struct Session<'a> {
    shared: &'a Shared,
    program: OwnedFd,
    stream: OwnedFd,
    frames: Frames,
    context: Option<Arc<Context>>,
    /// Its use of the context, as long as its program is there.
    user: Option<User>,
    /// It has opened the context, and its stream has the context's events.
    is_opener: bool,
    /// The eventfd that the program writes to wake the worker.
    wake: Option<OwnedFd>,
    level: Option<LevelChannel>,
    /// The memfd of the program's registered memory, once it has sent it.
    arena: Option<OwnedFd>,
    /// Queue memory that the program is filling in.
    wanted: Option<Extent>,
    /// The request that waits for its answer.
    pending: Option<Pending>,
    /// Places of its installed descriptors among the context's channels.
    channels: Vec<usize>,
}

/// A request of the program's, by the answer that is awaited.
enum Pending {
    Open(User),
    Attach(User),
    OpenCm,
    Verbs(Change, Vec<Pin>),
    /// The answer to the pages that the program's own request, which follows, needs.
    Pages(Vec<u8>, Box<Pending>),
    Other,
}

impl Session<'_> {
    fn run(&mut self) -> Result<(), SessionError> {
        while self.turn(true, None)? {}
        Ok(())
    }

    /// Waits for the next inputs, `limit` at most, and takes them; of the program itself only where it `listens`. Returns whether
    /// the program is still there.
    fn turn(&mut self, listens: bool, limit: Option<&Timespec>) -> Result<bool, SessionError> {
        let ready = self.wait(listens, limit)?;
        if ready.room {
            let flush = |context: &Arc<Context>| context.state().channels.iter_mut().for_each(EventChannel::flush);
            self.context.iter().for_each(flush);
        }
        if ready.wake {
            self.take_doorbell()?;
        }
        if ready.stream {
            self.take_frames()?;
        }
        if ready.program { self.take_message() } else { Ok(true) }
    }

    fn wait(&self, listens: bool, limit: Option<&Timespec>) -> Result<Ready, SessionError> {
        let state = self.context.as_ref().map(|context| context.state());
        let full = state.iter().flat_map(|state| state.channels.iter().filter_map(EventChannel::full));
        // Copies: the lock is not kept while this waits.
        let full: Vec<OwnedFd> = full.filter_map(|fd| fcntl_dupfd_cloexec(fd, 0).ok()).collect();
        drop(state);
        let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = vec![input(self.stream.as_fd())];
        let program = Some(self.program.as_fd()).filter(|_| listens).map(|fd| push(&mut fds, input(fd)));
        let wake = self.wake.as_ref().map(|wake| push(&mut fds, input(wake.as_fd())));
        let rooms = fds.len();
        fds.extend(full.iter().map(|fd| PollFd::new(fd, PollFlags::OUT)));
        match poll(&mut fds, limit) {
            Err(Errno::INTR) => return Ok(Ready::default()),
            other => other?,
        };
        let is_ready = |at: usize| !fds[at].revents().is_empty();
        Ok(Ready {
            program: program.is_some_and(is_ready),
            stream: is_ready(0),
            wake: wake.is_some_and(is_ready),
            room: (rooms..fds.len()).any(is_ready),
        })
    }

    fn take_doorbell(&mut self) -> Result<(), SessionError> {
        let Some(wake) = &self.wake else { return Ok(()) };
        let mut count = [0; 8];
        match rustix::io::read(wake, &mut count[..]) {
            Ok(_) => Ok(stream::write_all(&self.stream, &frame(Kind::Ring, &[])).map_err(io::Error::from)?),
            // Another process of the program has taken it: then it has nothing to tell.
            Err(_) => Ok(()),
        }
    }

    /// Takes a message of the program. Returns whether there was one: not at its end.
    fn take_message(&mut self) -> Result<bool, SessionError> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let (len, fds) = match session::receive(self.program.as_fd(), &mut buffer) {
            Err(Errno::CONNRESET) | Ok((0, _)) => return Ok(false),
            received => received?,
        };
        if self.pending.is_some() {
            return Err(SessionError::Malformed);
        }
        let message = &buffer[..len];
        let (header, body) = RequestHeader::read_from_prefix(message).map_err(|_| SessionError::Malformed)?;
        let kind = RequestKind::from_number(header.kind).ok_or(SessionError::Malformed)?;
        let command = body.get(..header.command_len as usize).ok_or(SessionError::Malformed)?;
        let result = match kind {
            RequestKind::Open => self.open(fds.into_iter().collect()),
            RequestKind::Attach => {
                match Token::read_from_bytes(command).ok().and_then(|t| self.shared.contexts.find(&t)) {
                    Some(context) => self.forward(message, Pending::Attach(User::new(context))),
                    None => Err(Errno::ACCESS),
                }
            }
            RequestKind::OpenCm => self.forward(message, Pending::OpenCm),
            RequestKind::Verbs => {
                self.arena = fds.into_iter().next().or(self.arena.take());
                self.verbs(&header, command, &body[command.len()..])
            }
            _ => self.forward(message, Pending::Other),
        };
        match result {
            Err(Errno::PIPE | Errno::CONNRESET) => Err(SessionError::Closed),
            Err(errno) => self.answer_error(errno).map(|()| true),
            Ok(()) => Ok(true),
        }
    }

    fn open(&mut self, fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let [page, queues] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| Errno::INVAL)?;
        let context = Context::new(&page, queues).map_err(|error| errno(&error))?;
        let addresses = context.page_addresses().as_bytes().to_vec();
        self.send(&frame(Kind::Open, &[&program_name(&self.program), &addresses]), Pending::Open(User::new(context)))
    }

    /// A command of the program's, whose memory is pinned first.
    fn verbs(&mut self, header: &RequestHeader, command: &[u8], segments: &[u8]) -> Result<(), Errno> {
        let context = Arc::clone(self.context.as_ref().ok_or(Errno::INVAL)?);
        let (mut pins, mut located) = (Vec::new(), Vec::new());
        for segment in segments.chunks_exact(size_of::<Segment>()) {
            let segment = Segment::read_from_bytes(segment).map_err(|_| Errno::INVAL)?;
            let pin = self.pin_segment(&context, &segment, &mut located)?;
            pins.push(pin);
        }
        let head = RequestHeader { segments: located.len() as u32, ..*header };
        let request = frame(Kind::Request, &[head.as_bytes(), command, located.as_bytes()]);
        let pending = Pending::Verbs(Change::of(command), pins);
        let Some(wanted) = self.wanted.take() else { return self.send(&request, pending) };
        // The program has filled in what the router wants for the queue that it asks for again.
        let addresses = context.pin_queues(wanted).map_err(|error| errno(&error))?;
        let pages = frame(Kind::Pages, &[wanted.offset.as_bytes(), addresses.as_bytes()]);
        self.send(&pages, Pending::Pages(request, Box::new(pending)))
    }

    /// Pins a segment of registered memory, and adds its runs, by guest-physical address, to `located`.
    fn pin_segment(&self, context: &Context, segment: &Segment, located: &mut Vec<Segment>) -> Result<Pin, Errno> {
        // Memory that cannot be shared: a host cannot reach into a guest's process.
        if segment.kind != SegmentKind::Arena as u32 || segment.len == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let arena = self.arena.as_ref().ok_or(Errno::NODATA)?;
        let end = segment.offset.checked_add(segment.len).ok_or(Errno::INVAL)?;
        let (from, to) = (segment.offset / PAGE * PAGE, end.checked_next_multiple_of(PAGE).ok_or(Errno::INVAL)?);
        let len = usize::try_from(to - from).map_err(|_| Errno::NOMEM)?;
        let pin = context.table().pin(arena.as_fd(), from, len).map_err(|error| errno(&error))?;
        for (index, address) in pin.addresses().iter().enumerate() {
            let at = from + index as u64 * PAGE;
            let (begin, stop) = (at.max(segment.offset), (at + PAGE).min(end));
            let place = address + (begin - at);
            match located.last_mut() {
                Some(last) if index > 0 && last.offset + last.len == place => last.len += stop - begin,
                _ => located.push(Segment {
                    addr: segment.addr + (begin - segment.offset),
                    len: stop - begin,
                    offset: place,
                    ..*segment
                }),
            }
        }
        Ok(pin)
    }

    fn forward(&mut self, message: &[u8], pending: Pending) -> Result<(), Errno> {
        self.send(&frame(Kind::Request, &[message]), pending)
    }

    fn send(&mut self, frame: &[u8], pending: Pending) -> Result<(), Errno> {
        stream::write_all(&self.stream, frame)?;
        self.pending = Some(pending);
        Ok(())
    }

    fn answer_error(&self, errno: Errno) -> Result<(), SessionError> {
        let header = ReplyHeader { errno: errno.raw_os_error().cast_unsigned(), ..ReplyHeader::default() };
        self.answer(header.as_bytes(), &[])
    }

    fn answer(&self, reply: &[u8], fds: &[OwnedFd]) -> Result<(), SessionError> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        match session::send(self.program.as_fd(), &[IoSlice::new(reply)], &fds) {
            // A program that has ended is noticed with its next message.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn take_frames(&mut self) -> Result<(), SessionError> {
        let mut buffer = vec![0; 64 << 10];
        match recv(&self.stream, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Err(SessionError::Closed),
            Ok((len, _)) => self.frames.push(&buffer[..len]),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
        while let Some((kind, payload)) = self.frames.take()? {
            match kind {
                Kind::Reply => self.take_reply(payload)?,
                Kind::Event => self.take_event(&payload)?,
                Kind::Wake => self.context.iter().for_each(|context| context.page().wake_here()),
                Kind::Level => {
                    let level = u32::read_from_bytes(&payload[..]).map_err(|_| SessionError::Malformed)?;
                    self.level.iter_mut().for_each(|channel| channel.set(level));
                }
                _ => return Err(SessionError::Malformed),
            }
        }
        Ok(())
    }

    fn take_event(&mut self, payload: &[u8]) -> Result<(), SessionError> {
        let (number, event) = u32::read_from_prefix(payload).map_err(|_| SessionError::Malformed)?;
        let (Some(context), Some(place)) = (&self.context, self.channels.get(number as usize)) else {
            return Err(SessionError::Malformed);
        };
        let mut state = context.state();
        let channel = state.channels.get_mut(*place).ok_or(SessionError::Malformed)?;
        channel.push(event);
        if channel.backlog() > MOST_EVENTS { Err(SessionError::Malformed) } else { Ok(()) }
    }

    fn take_reply(&mut self, mut reply: Vec<u8>) -> Result<(), SessionError> {
        let header = ReplyHeader::read_from_prefix(&reply).map_err(|_| SessionError::Malformed)?.0;
        let pending = self.pending.take().ok_or(SessionError::Malformed)?;
        if header.errno == Errno::NODATA.raw_os_error().cast_unsigned() && header.wanted[1] > 0 {
            self.wanted = Some(Extent { offset: header.wanted[0], len: header.wanted[1] });
        }
        if header.errno != 0 {
            return self.answer(&reply, &[]);
        }
        if let Pending::Pages(request, next) = pending {
            return self.send(&request, *next).map_err(|_| SessionError::Closed);
        }
        let is_cm = matches!(pending, Pending::OpenCm);
        self.apply(pending, &mut reply)?;
        let mut fds = Vec::new();
        for purpose in header.fds {
            match FdUse::from_number(purpose) {
                Some(FdUse::Install) => fds.push(self.install()?),
                Some(FdUse::Open) if is_cm => {
                    let (channel, program) = LevelChannel::pair()?;
                    self.level = Some(channel);
                    fds.push(program);
                }
                // Of an opened device, both with the first.
                Some(FdUse::Open) if fds.is_empty() => fds.extend(self.open_fds()?),
                Some(FdUse::Open) | None => {}
            }
        }
        self.answer(&reply, &fds)
    }

    /// The effects of a command that has succeeded.
    fn apply(&mut self, pending: Pending, reply: &mut [u8]) -> Result<(), SessionError> {
        let (header, response) = reply.split_at_mut(size_of::<ReplyHeader>());
        let mminfo = ReplyHeader::read_from_bytes(header).map_err(|_| SessionError::Malformed)?.mminfo;
        let word = |at: usize| response.get(at..at + 4).and_then(|bytes| u32::read_from_bytes(bytes).ok());
        match pending {
            Pending::Open(user) => {
                let opened = OpenReply::read_from_prefix(response).map_err(|_| SessionError::Malformed)?.0;
                self.shared.contexts.add(opened.token, user.context());
                self.is_opener = true;
                self.uses(user);
            }
            Pending::Attach(user) => self.uses(user),
            Pending::Verbs(change, pins) => {
                let Some(context) = &self.context else { return Err(SessionError::Malformed) };
                let mut state = context.state();
                let state = &mut *state;
                match change {
                    Change::Register => drop(state.regions.insert(word(0).ok_or(SessionError::Malformed)?, pins)),
                    Change::Reregister(region) => state.regions.entry(region).or_default().extend(pins),
                    Change::Deregister(region) => drop(state.regions.remove(&region)),
                    Change::Create(object, element, at) => {
                        let queues = objects::queues(response.get(at..).unwrap_or_default());
                        state.queues.made(&queues);
                        let handle = word(0).ok_or(SessionError::Malformed)?;
                        state.objects.insert((object, handle), Made { element, queues });
                    }
                    Change::Resize(object, handle, at) => {
                        let queues = objects::queues(response.get(at..).unwrap_or(&mminfo));
                        if let Some(made) = state.objects.get_mut(&(object, handle)).filter(|_| !queues.is_empty()) {
                            state.queues.made(&queues);
                            state.queues.gone(context.queues(), &std::mem::replace(&mut made.queues, queues));
                        }
                    }
                    Change::Destroy(object, handle) => {
                        if let Some(made) = state.objects.remove(&(object, handle)) {
                            take_back(&mut state.channels, object, made.element, response);
                            state.queues.gone(context.queues(), &made.queues);
                        }
                    }
                    Change::Other => {}
                }
            }
            Pending::OpenCm | Pending::Pages(..) | Pending::Other => {}
        }
        Ok(())
    }

    /// The program's end of a new event channel.
    fn install(&mut self) -> Result<OwnedFd, SessionError> {
        let Some(context) = &self.context else { return Err(SessionError::Malformed) };
        let (channel, program) = EventChannel::pair()?;
        let mut state = context.state();
        self.channels.push(state.channels.len());
        state.channels.push(channel);
        Ok(program)
    }

    /// The workers' pages and the eventfd of a device that was opened.
    fn open_fds(&mut self) -> Result<[OwnedFd; 2], SessionError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let program = fcntl_dupfd_cloexec(&wake, 0)?;
        self.wake = Some(wake);
        Ok([fcntl_dupfd_cloexec(&self.shared.workers, 0)?, program])
    }

    fn uses(&mut self, user: User) {
        self.context = Some(Arc::clone(user.context()));
        self.user = Some(user);
    }

    /// The program has closed its connection, or was killed. What it shared stays pinned until the host has closed the stream,
    /// which it does when the router has closed the connection, and with the last one the context.
    fn end(&mut self) {
        self.user = None;
        // The context's events and its wake-ups come by this stream: forked children need it.
        while self.is_opener && self.context.as_ref().is_some_and(|context| context.has_users()) {
            if self.turn(false, Some(&CHILDREN)).is_err() {
                break;
            }
        }
        let _ = shutdown(&self.stream, Shutdown::Write);
        if !is_closed_by(self.stream.as_fd(), Instant::now() + QUIESCENCE) {
            eprintln!("rdmesh-guest: the host does not say that it is done with a program's memory");
        }
    }
}

fn push<T>(items: &mut Vec<T>, item: T) -> usize {
    items.push(item);
    items.len() - 1
}

/// Inputs that there are.
#[derive(Default)]
struct Ready {
    program: bool,
    stream: bool,
    wake: bool,
    room: bool,
}

/// Takes an object's unread events out of the channels, and out of the numbers of events in the response: the router takes those
/// for read that have left it.
fn take_back(channels: &mut [EventChannel], object: Object, element: u64, response: &mut [u8]) {
    let mut subtract = |at: usize, len: usize| {
        let unread: u32 = channels.iter_mut().map(|channel| channel.take_back(element, len)).sum();
        if let Some(Ok((count, _))) = response.get_mut(at..).map(u32::mut_from_prefix) {
            *count = count.saturating_sub(unread);
        }
    };
    let (completion, asynchronous) = (size_of::<CompEventDesc>(), size_of::<AsyncEventDesc>());
    match object {
        Object::Cq => {
            subtract(0, completion);
            subtract(4, asynchronous);
        }
        Object::Qp | Object::Srq => subtract(0, asynchronous),
    }
}

/// Name of the process at the other end, for who looks at the host's list of programs.
fn program_name(program: &OwnedFd) -> ProgramName {
    let mut name = ProgramName::default();
    let pid = socket_peercred(program).map(|peer| peer.pid).map_err(io::Error::from);
    let comm = pid.and_then(|pid| std::fs::read(format!("/proc/{}/comm", pid.as_raw_nonzero())));
    for (to, from) in name.iter_mut().zip(comm.iter().flatten().filter(|byte| **byte != b'\n')) {
        *to = *from;
    }
    name
}

fn errno(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::OutOfMemory => Errno::NOMEM,
        io::ErrorKind::NotFound => Errno::FAULT,
        io::ErrorKind::PermissionDenied => Errno::PERM,
        _ => Errno::from_io_error(error).unwrap_or(Errno::IO),
    }
}

const PAGE: u64 = 4096;
/// Events that a program may leave unread in one channel.
const MOST_EVENTS: usize = 1 << 16;
/// Time for the host to close a program's devices.
const QUIESCENCE: Duration = Duration::from_secs(30);
/// Interval at which the end of the last forked child is looked for: no descriptor tells of it.
const CHILDREN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
