//! The session thread: one loop over all sockets.

use super::EndpointId;
use super::accounting::Admission;
use super::channels::CmChannel;
use super::connection::{Connection, Subject};
use super::context::Context;
use super::disposal::Disposal;
use super::endpoint::{Endpoint, EndpointSpec};
use super::info::{BadIndices, CmTotals, ConnectionInfo, ContextInfo, SessionTotals};
use super::messages::Flow;
use super::mistakes::{MistakeInfo, PastMistakes};
use super::peer::Peer;
use crate::budget::{Budget, Limits};
use crate::cm::ConnectionManager;
use crate::io::{Clock, PlainUse, Plains, probe};
use crate::worker::{Mode, Patience, ShardHandle};
use rdmesh_nic::{ReceivedMad, Time};
use rdmesh_uverbs::guard;
use rdmesh_uverbs::session::{self, MAX_FDS, MAX_MESSAGE, Received};
use rdmesh_verbs::DeviceLimits;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::{self, Errno};
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

/// Request of another part of the router to the session thread.
pub(super) enum Control {
    Add(Box<EndpointSpec>, OwnedFd),
    Remove(EndpointId, Sender<()>),
    Snapshot(Sender<Vec<ContextInfo>>),
    Totals(Sender<SessionTotals>),
    Connections(Sender<Vec<ConnectionInfo>>),
    CmTotals(Sender<CmTotals>),
    Mistakes(Sender<Vec<MistakeInfo>>),
    BadIndices(Sender<Vec<BadIndices>>),
    Stop,
}

/// Back-off of a listener when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_LIMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const EVENTS: usize = 64;
/// Spin limit: time in which the thread looks for messages before it sleeps.
const SPIN_FOR: Duration = Duration::from_micros(50);

/// Bytes of the router's memory that a connection takes, an answer that waits to be read included.
const CONNECTION_MEMORY: u64 = 40 << 10;
/// The socket and the peer's pidfd.
const CONNECTION_DESCRIPTORS: u64 = 2;

/// Source of an epoll event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Wake,
    Listener(EndpointId),
    Connection(u64),
}

impl Source {
    const LISTENER: u64 = 1 << 63;

    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Wake => u64::MAX,
            Self::Listener(id) => Self::LISTENER | u64::from(id.0),
            Self::Connection(n) => n,
        })
    }

    fn of(data: epoll::EventData) -> Self {
        match data.u64() {
            u64::MAX => Self::Wake,
            n if n & Self::LISTENER != 0 => Self::Listener(EndpointId(n as u32)),
            n => Self::Connection(n),
        }
    }
}

/// The state of the session thread.
pub(super) struct Server {
    pub(super) shards: Vec<ShardHandle>,
    pub(super) limits: DeviceLimits,
    /// A program that has sent a request usually sends another one soon.
    patience: Patience,
    pub(super) endpoints: HashMap<EndpointId, Endpoint>,
    pub(super) connections: HashMap<u64, Connection>,
    pub(super) contexts: HashMap<u32, Context>,
    /// The budget of all endpoints.
    budget: Budget,
    /// Wakes this thread when pages of a context's memory are missing.
    _alarms: guard::Wake,
    pub(super) totals: SessionTotals,
    past_mistakes: PastMistakes,
    pub(super) cm: ConnectionManager,
    pub(super) cm_channels: HashMap<u32, CmChannel>,
    pub(super) clock: Clock,
    /// Time of the next neighbour lookup.
    pub(super) next_look: Time,
    /// Time at which paused listeners are served again.
    resume_at: Time,
    pub(super) plains: Plains,
    pub(super) next_context: u32,
    next_connection: u64,
    epoll: OwnedFd,
    pub(super) wake: Arc<OwnedFd>,
    control: Receiver<Control>,
    /// Management datagrams that the workers received.
    pub(super) mads: Receiver<ReceivedMad>,
}

impl Server {
    pub(super) fn new(
        shards: Vec<ShardHandle>,
        limits: DeviceLimits,
        mode: Mode,
        wake: Arc<OwnedFd>,
        control: Receiver<Control>,
        mads: Receiver<ReceivedMad>,
    ) -> io::Result<Self> {
        if !guard::install() {
            tracing::warn!("no userfaultfd: tenants' memory may be charged to the router, and counts as its own");
        }
        let alarms = guard::Wake::new(io::fcntl_dupfd_cloexec(&wake, 0)?)?;
        let budget = Budget::new(Limits::of_this_process());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, Source::Wake.data(), epoll::EventFlags::IN)?;
        // This thread never polls for ever: it is not on the data path.
        let mode = if mode == Mode::Spin { Mode::Adaptive } else { mode };
        // The two programs that set up a connection poll as well.
        let patience = Patience::new(mode, shards.len() + 3, SPIN_FOR, shards[0].contention());
        Ok(Self {
            shards,
            limits,
            patience,
            endpoints: HashMap::new(),
            connections: HashMap::new(),
            contexts: HashMap::new(),
            budget,
            _alarms: alarms,
            totals: SessionTotals::default(),
            past_mistakes: PastMistakes::default(),
            cm: ConnectionManager::new(seed()?),
            cm_channels: HashMap::new(),
            clock: Clock::start(),
            next_look: Time::default(),
            resume_at: Time::default(),
            plains: Plains::new(probe()),
            next_context: 0,
            next_connection: 0,
            epoll,
            wake,
            control,
            mads,
        })
    }

    /// Serves until told to stop; closes everything then.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut buffer = vec![0; MAX_MESSAGE];
        let mut is_tired = true;
        loop {
            events.clear();
            let wait = self.run_timers();
            let limit = if is_tired { wait } else { Some(NOW) };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), limit.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the session thread cannot wait for its sockets");
                    break;
                }
            }
            for event in &events {
                match Source::of(event.data) {
                    Source::Wake if self.handle_control() == Flow::Close => return self.close_all(),
                    Source::Wake => {
                        self.close_broken();
                        self.receive_mads();
                    }
                    Source::Listener(id) => self.accept(id),
                    Source::Connection(id) => self.receive(id, &mut buffer),
                }
            }
            if events.is_empty() {
                is_tired = is_tired || self.patience.is_over(false);
            } else {
                self.patience.renew();
                is_tired = false;
            }
        }
        self.close_all();
    }

    /// Handles expired timers. Returns the time until the next one.
    fn run_timers(&mut self) -> Option<Timespec> {
        let timer = self.run_cm_timers();
        let is_paused = self.endpoints.values().any(|endpoint| endpoint.paused);
        if is_paused && self.clock.now() >= self.resume_at {
            self.resume_listeners();
        }
        [is_paused.then_some(PAUSE_LIMIT), timer].into_iter().flatten().min()
    }

    fn handle_control(&mut self) -> Flow {
        let _ = io::read(&self.wake, &mut [0; 8]);
        while let Ok(control) = self.control.try_recv() {
            // The caller may have gone; then the answer is discarded.
            match control {
                Control::Add(spec, listener) => self.add_endpoint(*spec, listener),
                Control::Remove(id, done) => {
                    self.remove_endpoint(id);
                    let _ = done.send(());
                }
                Control::Snapshot(answer) => drop(answer.send(self.snapshot())),
                Control::Totals(answer) => drop(answer.send(self.present_totals())),
                Control::Connections(answer) => drop(answer.send(self.connection_infos())),
                Control::Mistakes(answer) => drop(answer.send(self.mistakes())),
                Control::BadIndices(answer) => drop(answer.send(self.bad_indices())),
                Control::CmTotals(answer) => drop(answer.send(self.cm_totals())),
                Control::Stop => return Flow::Close,
            }
        }
        Flow::Continue
    }

    /// Closes contexts whose programs have removed pages of their queues.
    fn close_broken(&mut self) {
        let is_broken = |id: &u32| self.contexts.get(id).is_some_and(|context| context.alarm.is_raised());
        let subject = |c: &Connection| if let Some(Subject::Context(id)) = c.subject { Some(id) } else { None };
        let hit = |(_, c): &(&u64, &Connection)| subject(c).as_ref().is_some_and(is_broken);
        let broken: Vec<u64> = self.connections.iter().filter(hit).map(|(id, _)| *id).collect();
        for id in broken {
            self.complain(id, "pages of its queues are missing");
            self.close(id);
        }
    }

    fn add_endpoint(&mut self, spec: EndpointSpec, listener: OwnedFd) {
        let id = spec.id;
        self.remove_endpoint(id);
        let flags = epoll::EventFlags::IN;
        let name = spec.name.clone();
        let opened = rustix::io::ioctl_fionbio(&listener, true)
            .and_then(|()| epoll::add(&self.epoll, &listener, Source::Listener(id).data(), flags))
            .and_then(|()| Endpoint::new(spec, listener, &self.budget));
        match opened {
            Ok(endpoint) => {
                self.add_node(&endpoint.spec, &endpoint.share);
                self.endpoints.insert(id, endpoint);
            }
            Err(error) => tracing::error!(endpoint = name, %error, "the endpoint's socket cannot be served"),
        }
    }

    fn remove_endpoint(&mut self, id: EndpointId) {
        let connections: Vec<u64> =
            self.connections.iter().filter(|(_, c)| c.endpoint == id).map(|(&n, _)| n).collect();
        for connection in connections {
            self.close(connection);
        }
        if let Some(mut endpoint) = self.endpoints.remove(&id) {
            self.past_mistakes.keep(&mut endpoint);
            self.remove_node(id);
            // Connections that were never accepted hold messages too.
            retire(&self.epoll, endpoint.listener, &endpoint.disposal);
        }
    }

    fn close_all(mut self) {
        let endpoints: Vec<EndpointId> = self.endpoints.keys().copied().collect();
        for endpoint in endpoints {
            self.remove_endpoint(endpoint);
        }
    }

    fn snapshot(&self) -> Vec<ContextInfo> {
        let mut contexts: Vec<(&u32, &Context)> = self.contexts.iter().collect();
        contexts.sort_by_key(|(id, _)| **id);
        contexts.into_iter().filter_map(|(_, c)| Some(c.info(self.endpoints.get(&c.endpoint)?))).collect()
    }

    /// The latest at the end.
    fn mistakes(&mut self) -> Vec<MistakeInfo> {
        self.note_bad_indices();
        let present = self.endpoints.values().flat_map(|e| e.mistakes.infos(&e.spec.name, &e.spec.network));
        let mut all: Vec<_> = self.past_mistakes.infos().chain(present).collect();
        all.sort_by_key(|info| std::cmp::Reverse(info.age));
        all
    }

    fn bad_indices(&mut self) -> Vec<BadIndices> {
        self.note_bad_indices();
        let count = |e: &Endpoint| BadIndices {
            name: e.spec.name.clone(),
            network: e.spec.network.clone(),
            count: e.bad_indices,
        };
        self.endpoints.values().map(count).collect()
    }

    fn note_bad_indices(&mut self) {
        for context in self.contexts.values() {
            if let Some(endpoint) = self.endpoints.get_mut(&context.endpoint) {
                context.note_bad_indices(endpoint);
            }
        }
    }

    fn present_totals(&self) -> SessionTotals {
        SessionTotals { objects_live: self.contexts.values().map(|c| c.counts.total()).sum(), ..self.totals }
    }

    /// Accepts one connection, or refuses it.
    fn accept(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        if endpoint.disposal.is_full() {
            return self.pause_listener(id);
        }
        let socket = match accept_with(&endpoint.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(error) => {
                // Descriptors have run out, most likely.
                if endpoint.is_first("accept") {
                    tracing::error!(endpoint = endpoint.spec.name, %error, "no connection can be accepted; is the limit on open files too low?");
                }
                return self.pause_listener(id);
            }
        };
        let Ok(peer) = Peer::of(socket.as_fd()) else { return endpoint.disposal.close_later(socket) };
        let is_welcome = endpoint.spec.allowed_uid.is_none_or(|uid| uid == peer.uid);
        if !is_welcome || endpoint.connections >= endpoint.max_connections() {
            self.totals.connections_refused += 1;
            if endpoint.is_first(if is_welcome { "connections" } else { "user" }) {
                let reason = if is_welcome { "too many connections" } else { "not the endpoint's user" };
                tracing::warn!(endpoint = endpoint.spec.name, pid = peer.pid, uid = peer.uid, "refused: {reason}");
            }
            return retire(&self.epoll, socket, &endpoint.disposal);
        }
        let Ok(charge) = Admission::new(&endpoint.share, CONNECTION_MEMORY, CONNECTION_DESCRIPTORS) else {
            self.totals.connections_refused += 1;
            if let Some(resource) = endpoint.share.take_refusal() {
                endpoint.exhausted(resource);
            }
            return retire(&self.epoll, socket, &endpoint.disposal);
        };
        let connection = self.next_connection;
        let source = Source::Connection(connection).data();
        if let Err(error) = epoll::add(&self.epoll, &socket, source, epoll::EventFlags::IN) {
            tracing::warn!(endpoint = endpoint.spec.name, %error, "a connection cannot be polled");
            return retire(&self.epoll, socket, &endpoint.disposal);
        }
        self.next_connection += 1;
        endpoint.connections += 1;
        self.totals.connections_accepted += 1;
        let new = Connection { socket, endpoint: id, subject: None, peer, interface: None, _charge: charge };
        self.connections.insert(connection, new);
    }

    /// Pauses the listener: it would only report the same connection again and again.
    fn pause_listener(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        let source = Source::Listener(id).data();
        endpoint.paused = epoll::modify(&self.epoll, &endpoint.listener, source, epoll::EventFlags::empty()).is_ok();
        let now = self.clock.now();
        if now >= self.resume_at {
            self.resume_at = now.after(PAUSE);
        }
    }

    fn resume_listeners(&mut self) {
        for (id, endpoint) in self.endpoints.iter_mut().filter(|(_, e)| e.paused) {
            let source = Source::Listener(*id).data();
            endpoint.paused = epoll::modify(&self.epoll, &endpoint.listener, source, epoll::EventFlags::IN).is_err();
        }
    }

    /// Takes one message from a connection, so that none can starve the others.
    fn receive(&mut self, id: u64, buffer: &mut [u8]) {
        let Some(connection) = self.connections.get(&id) else { return };
        let flow = match session::receive_all(connection.socket.as_fd(), buffer) {
            Ok(Received { len, is_truncated, fds }) => {
                let flow = if is_truncated || fds.len() > MAX_FDS {
                    self.expel(id, "message with more than a message may hold")
                } else if len == 0 {
                    Flow::Close
                } else {
                    self.handle_message(id, &buffer[..len], &fds)
                };
                if self.dispose(id, fds) == Flow::Close { Flow::Close } else { flow }
            }
            Err(Errno::AGAIN) => Flow::Continue,
            Err(Errno::CONNRESET) => Flow::Close,
            Err(error) => self.expel(id, &format!("message that cannot be received: {error}")),
        };
        if flow == Flow::Close {
            self.close(id);
        }
    }

    /// Closes the descriptors that came with a message.
    fn dispose(&mut self, id: u64, fds: Vec<OwnedFd>) -> Flow {
        let endpoint = self.connections.get(&id).and_then(|c| self.endpoints.get(&c.endpoint));
        let Some(endpoint) = endpoint else { return Flow::Close };
        fds.into_iter().for_each(|fd| endpoint.disposal.close(fd));
        if endpoint.disposal.is_full() {
            return self.expel(id, "it sends descriptors faster than they can be closed");
        }
        Flow::Continue
    }

    /// Logs that a connection is closed because of its program's messages. The caller closes it.
    pub(super) fn complain(&mut self, id: u64, reason: &str) {
        self.totals.connections_dropped += 1;
        if let Some(connection) = self.connections.get(&id)
            && let Some(endpoint) = self.endpoints.get_mut(&connection.endpoint)
            && endpoint.may_complain()
        {
            tracing::warn!(endpoint = endpoint.spec.name, pid = connection.peer.pid, "connection closed: {reason}");
        }
    }

    /// Closes a connection, and its context when it was the last one.
    fn close(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if let Some(endpoint) = self.endpoints.get_mut(&connection.endpoint) {
            endpoint.connections -= 1;
            retire(&self.epoll, connection.socket, &endpoint.disposal);
        }
        let context_id = match connection.subject {
            Some(Subject::Context(context)) => context,
            Some(Subject::Channel(channel)) => return self.close_cm(channel),
            None => return,
        };
        let Some(context) = self.contexts.get_mut(&context_id) else { return };
        context.connections -= 1;
        if context.connections == 0 {
            self.close_context(context_id);
        }
    }

    fn close_context(&mut self, id: u32) {
        let Some(context) = self.contexts.remove(&id) else { return };
        context.settle();
        self.totals.contexts_closed += 1;
        self.totals.objects_reclaimed += context.counts.total();
        if let Some(endpoint) = self.endpoints.get_mut(&context.endpoint) {
            endpoint.contexts -= 1;
            endpoint.traffic.add_context(&context);
            context.note_mistakes(endpoint);
            endpoint.counts.subtract(&context.counts);
            endpoint.pinned -= context.regions.pinned();
            endpoint.arenas.forget(id);
            endpoint.groups -= context.groups.values().map(|groups| groups.len() as u32).sum::<u32>();
        }
        let endpoint = context.endpoint;
        if let Some(plain) = context.close() {
            self.cm.remove_way(endpoint, plain.sockets.id());
            self.release_plain(&plain);
        }
    }

    /// Gives back a path to external peers.
    pub(super) fn release_plain(&mut self, plain: &PlainUse) {
        if let Some(id) = self.plains.release(plain) {
            for shard in &self.shards {
                shard.call(move |shard| shard.remove_plain(id));
            }
        }
    }
}

/// Seed of numbers that must be unpredictable.
fn seed() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Ends a socket. Its other end learns of it now; messages left in it, with the descriptors in them, go in their time.
fn retire(epoll: &OwnedFd, socket: OwnedFd, disposal: &Disposal) {
    let _ = shutdown(&socket, Shutdown::Both);
    let _ = epoll::delete(epoll, &socket);
    disposal.close_later(socket);
}
