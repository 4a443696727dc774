//! Sockets of the session thread: listeners and connections, and whose turn it is.
//!
//! Messages are served by tenant, endpoint and connection in turn, one at a time: a program with many connections, or a
//! tenant with many endpoints, has one tenant's share of the thread. A socket is in the queue from the moment that it becomes
//! readable until there is nothing left to read.

use super::connection::{Answer, Attempt, Flow, Frame, Parked, SessionConnection, Subject, Until};
use super::lookups::Found;
use super::program::unread;
use super::reply;
use crate::disposal::{Disposal, Reclaimer};
use crate::endpoint::EndpointId;
use crate::memory::Evicted;
use crate::turns::{Pool, Turns};
use rdmesh_uverbs::ring::Extent;
use rdmesh_uverbs::session::{self, MAX_FDS, Received};
use rdmesh_verbs::Vni;
use rustix::event::{Timespec, epoll};
use rustix::io::{self, Errno};
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Eventfds that wake the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Signal {
    /// Another part of the router has a request.
    Control,
    /// Pages of a context's memory are missing.
    Alarm,
    /// Memory has been unmapped.
    Reclaimed,
    /// Something has been looked up.
    Found,
}

/// Next socket to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// A listener has a connection.
    Accept(EndpointId),
    /// A connection has a message, or one that waited can go on.
    Serve(u64),
}

/// The sockets.
pub(super) struct Clients {
    epoll: OwnedFd,
    listeners: HashMap<EndpointId, Listener>,
    connections: HashMap<u64, Entry>,
    next: u64,
    ready: Turns<Vni, Turns<EndpointId, VecDeque<Turn>>>,
    /// Connections with a message that waits.
    parked: Vec<u64>,
    /// Connections that have no turn until descriptors have been closed.
    held: Vec<u64>,
    paused: usize,
    /// Connections closed because of their messages.
    expelled: u64,
}

/// Outcome of a connection's turn.
pub(super) enum Input<'a> {
    /// There is no message.
    Nothing,
    /// It has ended, or has to.
    Closed,
    Message(Incoming<'a>),
}

/// A message, with its descriptors.
pub(super) struct Incoming<'a> {
    pub(super) bytes: Cow<'a, [u8]>,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) attempt: Attempt,
}

struct Listener {
    socket: OwnedFd,
    tenant: Vni,
    is_queued: bool,
    /// It is not polled, because descriptors had run out, or too many are being closed.
    is_paused: bool,
}

/// Source of an epoll event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Signal(Signal),
    Listener(EndpointId),
    Connection(u64),
}

/// A connection, and whether it has a turn.
struct Entry {
    connection: SessionConnection,
    /// It waits for its turn.
    is_queued: bool,
    /// It has no turn until descriptors that were sent have been closed.
    is_held: bool,
    /// A message that waits.
    parked: Option<Parked>,
}

impl Clients {
    /// No sockets; `signals` are eventfds that the thread wakes up for.
    pub(super) fn new<'a>(signals: impl IntoIterator<Item = (&'a OwnedFd, Signal)>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (fd, signal) in signals {
            epoll::add(&epoll, fd, Source::Signal(signal).data(), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        }
        Ok(Self {
            epoll,
            listeners: HashMap::new(),
            connections: HashMap::new(),
            next: 0,
            ready: Turns::default(),
            parked: Vec::new(),
            held: Vec::new(),
            paused: 0,
            expelled: 0,
        })
    }

    /// Waits up to `limit` for sockets to become readable, and queues them. Returns whether anything happened, and the signals.
    pub(super) fn wait(&mut self, limit: Option<&Timespec>) -> io::Result<(bool, Vec<Signal>)> {
        let mut signals = Vec::new();
        let mut count = self.queue_ready(limit, &mut signals)?;
        let has_some = count > 0;
        // All that are ready have to be in the queue before anything is served: else it would not be in turn.
        for _ in 0..ROUNDS {
            if count < EVENTS {
                break;
            }
            count = self.queue_ready(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }), &mut signals)?;
        }
        Ok((has_some, signals))
    }

    /// Queues sockets that have become readable; returns how many there were.
    fn queue_ready(&mut self, limit: Option<&Timespec>, signals: &mut Vec<Signal>) -> io::Result<usize> {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let events = match epoll::wait(&self.epoll, &mut events, limit) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &mut [],
            Err(error) => return Err(error),
        };
        for event in &*events {
            match Source::of(event.data) {
                Source::Signal(signal) => signals.push(signal),
                Source::Listener(id) => self.queue_listener(id),
                Source::Connection(id) => self.queue(id),
            }
        }
        Ok(events.len())
    }

    /// Whether a socket waits to be served.
    pub(super) fn has_turn(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Next socket to be served. It is queued again by [`Clients::queue`] or [`Clients::queue_listener`], if there may be more.
    pub(super) fn next_turn(&mut self) -> Option<Turn> {
        loop {
            let turn = self.ready.take()?;
            let is_queued = match turn {
                Turn::Accept(id) => self.listeners.get_mut(&id).map(|listener| &mut listener.is_queued),
                Turn::Serve(id) => self.connections.get_mut(&id).map(|entry| &mut entry.is_queued),
            };
            // Sockets that have been closed meanwhile have no turn.
            if let Some(is_queued) = is_queued {
                *is_queued = false;
                return Some(turn);
            }
        }
    }

    /// Queues a connection that may have a message, unless one of it waits for room.
    pub(super) fn queue(&mut self, id: u64) {
        let Some(entry) = self.connections.get_mut(&id) else { return };
        let may_go_on = entry.parked.as_ref().is_none_or(|parked| parked.is_over) && !entry.is_held;
        if may_go_on && !entry.is_queued {
            entry.is_queued = true;
            self.ready.group(entry.connection.tenant()).group(entry.connection.endpoint()).push_back(Turn::Serve(id));
        }
    }

    /// Queues a listener that may have a connection.
    pub(super) fn queue_listener(&mut self, id: EndpointId) {
        let Some(listener) = self.listeners.get_mut(&id) else { return };
        if !listener.is_paused && !listener.is_queued {
            listener.is_queued = true;
            self.ready.group(listener.tenant).group(id).push_back(Turn::Accept(id));
        }
    }

    /// Serves a listener.
    pub(super) fn listen(&mut self, id: EndpointId, tenant: Vni, socket: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        epoll::add(&self.epoll, &socket, Source::Listener(id).data(), READABLE)?;
        self.listeners.insert(id, Listener { socket, tenant, is_queued: false, is_paused: false });
        Ok(())
    }

    /// Closes a listener. Connections that were never accepted hold messages too.
    pub(super) fn stop_listening(&mut self, id: EndpointId, disposal: &Disposal) {
        if let Some(listener) = self.listeners.remove(&id) {
            self.paused -= usize::from(listener.is_paused);
            self.retire(listener.socket, disposal);
        }
    }

    /// Accepts a connection.
    pub(super) fn accept(&self, id: EndpointId) -> io::Result<OwnedFd> {
        let listener = self.listeners.get(&id).ok_or(Errno::AGAIN)?;
        accept_with(&listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    /// Pauses a listener, which would only report the same connection again and again.
    pub(super) fn pause(&mut self, id: EndpointId) {
        let Some(listener) = self.listeners.get_mut(&id).filter(|listener| !listener.is_paused) else { return };
        let source = Source::Listener(id).data();
        listener.is_paused = epoll::modify(&self.epoll, &listener.socket, source, epoll::EventFlags::empty()).is_ok();
        self.paused += usize::from(listener.is_paused);
    }

    /// Whether a listener is paused.
    pub(super) fn has_paused(&self) -> bool {
        self.paused > 0
    }

    /// Serves paused listeners again.
    pub(super) fn resume(&mut self) {
        for (id, listener) in self.listeners.iter_mut().filter(|(_, listener)| listener.is_paused) {
            listener.is_paused =
                epoll::modify(&self.epoll, &listener.socket, Source::Listener(*id).data(), READABLE).is_err();
            self.paused -= usize::from(!listener.is_paused);
        }
    }

    /// Serves a connection, of which a message may wait already; returns its number. One that cannot be polled is closed.
    pub(super) fn add(&mut self, connection: SessionConnection, parked: Option<Parked>) -> io::Result<u64> {
        let id = self.next;
        if let Err(errno) = epoll::add(&self.epoll, connection.socket(), Source::Connection(id).data(), READABLE) {
            let (socket, _, account) = connection.end();
            self.retire(socket, account.disposal());
            return Err(errno);
        }
        self.next += 1;
        self.connections.insert(id, Entry { connection, is_queued: false, is_held: false, parked });
        Ok(id)
    }

    /// A connection.
    pub(super) fn get(&self, id: u64) -> Option<&SessionConnection> {
        self.connections.get(&id).map(|entry| &entry.connection)
    }

    /// A connection, to be changed.
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut SessionConnection> {
        self.connections.get_mut(&id).map(|entry| &mut entry.connection)
    }

    /// All connections.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &SessionConnection)> {
        self.connections.iter().map(|(id, entry)| (*id, &entry.connection))
    }

    /// Removes a connection and closes it. Returns what it opened.
    pub(super) fn remove(&mut self, id: u64) -> Option<Subject> {
        let Entry { connection, parked, .. } = self.connections.remove(&id)?;
        let (socket, subject, account) = connection.end();
        if let Some(parked) = parked {
            self.parked.retain(|other| *other != id);
            parked.fds.into_iter().for_each(|fd| account.disposal().close(fd));
        }
        self.retire(socket, account.disposal());
        subject
    }

    /// The connections of an endpoint.
    pub(super) fn of_endpoint(&self, endpoint: EndpointId) -> Vec<u64> {
        self.iter().filter(|(_, c)| c.endpoint() == endpoint).map(|(id, _)| id).collect()
    }

    /// Takes a connection out, for another thread to serve.
    pub(super) fn take(&mut self, id: u64) -> Option<SessionConnection> {
        let Entry { connection, .. } = self.connections.remove(&id)?;
        let _ = epoll::delete(&self.epoll, connection.socket());
        Some(connection)
    }

    /// Outcome of a connection's turn. Nothing is left of a connection that is to be closed.
    pub(super) fn receive<'a>(&mut self, id: u64, buffer: &'a mut [u8]) -> Input<'a> {
        let Some(Entry { connection, parked, .. }) = self.connections.get_mut(&id) else { return Input::Nothing };
        if let Some(Parked { bytes, fds, attempt, .. }) = parked.take() {
            return Input::Message(Incoming { bytes: bytes.into(), fds, attempt });
        }
        let (len, is_whole, fds) = match session::receive_all(connection.socket(), buffer) {
            Ok(Received { len, is_truncated, fds }) => (len, !is_truncated && fds.len() <= MAX_FDS, fds),
            Err(Errno::AGAIN) => return Input::Nothing,
            Err(Errno::CONNRESET) => return Input::Closed,
            Err(error) => {
                self.expel(id, &format!("message that cannot be received: {error}"));
                return Input::Closed;
            }
        };
        // Answers that wait are the router's memory: a program has one at a time.
        let is_deaf = unread(connection.socket()).is_ok_and(|bytes| bytes > 0);
        if is_whole && len > 0 && !is_deaf {
            return Input::Message(Incoming { bytes: buffer[..len].into(), fds, attempt: Attempt::First });
        }
        self.dispose(id, fds);
        if !is_whole {
            self.expel(id, "message with more than a message may hold");
        } else if len > 0 {
            self.expel(id, "answers are not read");
        }
        Input::Closed
    }

    /// Sends the answer to a message. An error comes with the queue memory that is `wanted`.
    pub(super) fn answer(&mut self, id: u64, frame: &Frame<'_>, answer: &Answer, wanted: Option<Extent>) -> Flow {
        let Some(connection) = self.get(id) else { return Flow::Close };
        let socket = connection.socket();
        let sent = match answer {
            Ok((reply, response)) => reply::send(socket, reply, response),
            Err(errno) => {
                connection.account().note_failure(frame.kind, frame.body, *errno, connection.program());
                reply::send_error(socket, *errno, wanted)
            }
        };
        match sent {
            Ok(()) => Flow::Continue,
            Err(Errno::AGAIN) => self.expel(id, "answers are not read"),
            // The program has gone.
            Err(Errno::PIPE | Errno::CONNRESET) => Flow::Close,
            Err(error) => self.expel(id, &format!("answer that cannot be sent: {error}")),
        }
    }

    /// The end of a message's turn: it has been answered, or it waits.
    pub(super) fn finish(&mut self, id: u64, incoming: Incoming<'_>, result: Result<Flow, Until>) -> Flow {
        let Incoming { bytes, fds, attempt } = incoming;
        match result {
            Ok(flow) => {
                let is_full = self.dispose(id, fds);
                if flow == Flow::Continue && is_full {
                    return self.hold(id);
                }
                if flow == Flow::Continue {
                    self.queue(id);
                }
                flow
            }
            Err(until) => {
                let attempt = if matches!(until, Until::Lookup) { attempt } else { Attempt::Second };
                let parked = Parked { bytes: bytes.into_owned(), fds, until, attempt, is_over: false };
                if let Some(entry) = self.connections.get_mut(&id) {
                    entry.parked = Some(parked);
                    self.parked.push(id);
                }
                Flow::Wait
            }
        }
    }

    /// Logs that a connection is closed because of its program's messages. The caller closes it.
    pub(super) fn expel(&mut self, id: u64, reason: &str) -> Flow {
        self.expelled += 1;
        if let Some(connection) = self.get(id)
            && connection.account().may_log()
        {
            tracing::warn!(
                endpoint = connection.account().spec().name,
                pid = connection.program().process().pid,
                "connection closed: {reason}"
            );
        }
        Flow::Close
    }

    /// Connections closed because of their messages.
    pub(super) fn expelled(&self) -> u64 {
        self.expelled
    }

    /// Closes the descriptors that came with a message. Returns whether so many wait that no more are to come.
    fn dispose(&self, id: u64, fds: Vec<OwnedFd>) -> bool {
        let Some(connection) = self.get(id) else { return false };
        let disposal = connection.account().disposal();
        fds.into_iter().for_each(|fd| disposal.close(fd));
        disposal.is_full()
    }

    /// A connection has no turn until descriptors have been closed.
    fn hold(&mut self, id: u64) -> Flow {
        if let Some(entry) = self.connections.get_mut(&id) {
            entry.is_held = true;
            self.held.push(id);
        }
        Flow::Wait
    }

    /// Lets connections go on that waited for room, where there may be some now. While something is reclaimed or closed, its
    /// end, which writes to `wake`, is the next occasion to look.
    pub(super) fn unpark(&mut self, reclaimer: &Reclaimer, wake: &Arc<OwnedFd>) {
        for id in std::mem::take(&mut self.held) {
            let Some(entry) = self.connections.get_mut(&id) else { continue };
            entry.is_held = entry.connection.account().disposal().ask_for_room(wake);
            if entry.is_held {
                self.held.push(id);
            } else {
                self.queue(id);
            }
        }
        if self.parked.is_empty() {
            return;
        }
        let is_reclaiming = reclaimer.ask_for_wake(wake);
        for id in std::mem::take(&mut self.parked) {
            let Some(Entry { connection, parked: Some(parked), .. }) = self.connections.get_mut(&id) else { continue };
            let is_busy = connection.account().disposal().is_reclaiming();
            parked.is_over |= match &parked.until {
                Until::Room(evicted) => !is_reclaiming || evicted.is_gone() && !is_busy,
                Until::Eviction | Until::Lookup => false,
            };
            if parked.is_over {
                self.queue(id);
            } else {
                self.parked.push(id);
            }
        }
    }

    /// Room is being made for a message that waits for it.
    pub(super) fn evicted(&mut self, id: u64, evicted: Evicted) {
        if let Some(parked) = self.connections.get_mut(&id).and_then(|entry| entry.parked.as_mut()) {
            parked.until = Until::Room(evicted);
        }
    }

    /// Takes the result of a lookup: the connection that waits for it can go on. Returns it where the connection has gone.
    pub(super) fn found(&mut self, id: u64, found: Found) -> Option<Found> {
        let Some(Entry { connection, parked, .. }) = self.connections.get_mut(&id) else { return Some(found) };
        connection.set_found(found);
        if let Some(parked) = parked {
            parked.is_over = true;
            self.parked.retain(|other| *other != id);
            self.queue(id);
        }
        None
    }

    /// Ends a socket. Its other end learns of it now; messages left in it, with the descriptors in them, go in their time.
    pub(super) fn retire(&self, socket: OwnedFd, disposal: &Disposal) {
        let _ = shutdown(&socket, Shutdown::Both);
        let _ = epoll::delete(&self.epoll, &socket);
        disposal.close(socket);
    }
}

impl Source {
    const LISTENER: u64 = 1 << 63;

    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Signal(Signal::Control) => u64::MAX,
            Self::Signal(Signal::Alarm) => u64::MAX - 1,
            Self::Signal(Signal::Reclaimed) => u64::MAX - 2,
            Self::Signal(Signal::Found) => u64::MAX - 3,
            Self::Listener(id) => Self::LISTENER | u64::from(id.0),
            Self::Connection(n) => n,
        })
    }

    fn of(data: epoll::EventData) -> Self {
        match data.u64() {
            u64::MAX => Self::Signal(Signal::Control),
            n if n == u64::MAX - 1 => Self::Signal(Signal::Alarm),
            n if n == u64::MAX - 2 => Self::Signal(Signal::Reclaimed),
            n if n == u64::MAX - 3 => Self::Signal(Signal::Found),
            n if n & Self::LISTENER != 0 => Self::Listener(EndpointId(n as u32)),
            n => Self::Connection(n),
        }
    }
}

/// Each time that it becomes so: a socket that is queued need not be reported again.
const READABLE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);
const EVENTS: usize = 64;
/// More looks at sockets that became ready together.
const ROUNDS: usize = 64;
