//! The session thread: one loop over all sockets.

use super::account::Item;
use super::accounts::Accounts;
use super::channels::CmChannel;
use super::clients::{Clients, Signal, Turn};
use super::connection::{Attempt, Connection, Flow, Subject, Until};
use super::context::Context;
use super::devices::Devices;
use super::info::{CmTotals, ConnectionInfo, ContextInfo, SessionTotals};
use super::lookups::Lookups;
use super::mistakes::MistakeInfo;
use super::peer::Peer;
use super::spec::EndpointSpec;
use crate::cm::ConnectionManager;
use crate::disposal::Reclaimer;
use crate::endpoint::EndpointId;
use crate::io::{Clock, PlainSockets, PlainWatcher, Plains, probe};
use crate::worker::{MadQueue, Mode, Patience, ShardHandle};
use rdmesh_nic::{PlainId, Time};
use rdmesh_uverbs::guard;
use rdmesh_uverbs::session::{self, MAX_FDS, MAX_MESSAGE, Received};
use rdmesh_verbs::DeviceLimits;
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{self, Errno};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{HashMap, HashSet};
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
    /// The lookups of an endpoint.
    #[cfg(test)]
    Errands(EndpointId, Sender<crate::errands::Errands>),
    Stop,
}

/// Back-off of a listener when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_LIMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Spin limit: time in which the thread looks for messages before it sleeps.
const SPIN_FOR: Duration = Duration::from_micros(50);

/// The state of the session thread.
pub(super) struct Server {
    /// A program that has sent a request usually sends another one soon.
    patience: Patience,
    pub(super) accounts: Accounts,
    pub(super) clients: Clients,
    pub(super) devices: Devices,
    /// Wakes this thread when pages of a context's memory are missing.
    _alarms: guard::Wake,
    pub(super) cm: ConnectionManager,
    pub(super) cm_channels: HashMap<u32, CmChannel>,
    pub(super) clock: Clock,
    /// Time of the next neighbour lookup.
    pub(super) next_look: Time,
    /// Tables of neighbours that are being read, by the connection whose namespace it is.
    pub(super) tables: HashSet<u64>,
    /// Time at which paused listeners are served again.
    resume_at: Time,
    pub(super) plains: Plains,
    pub(super) lookups: Lookups,
    pub(super) wake: Arc<OwnedFd>,
    control: Receiver<Control>,
    /// Management datagrams that the workers received.
    pub(super) mads: MadQueue,
}

impl Server {
    pub(super) fn new(
        shards: Vec<ShardHandle>,
        limits: DeviceLimits,
        mode: Mode,
        wake: Arc<OwnedFd>,
        control: Receiver<Control>,
        mads: MadQueue,
    ) -> io::Result<Self> {
        if !guard::install() {
            tracing::warn!("no userfaultfd: tenants' memory may be charged to the router, and counts as its own");
        }
        let new_eventfd = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (alarm, reclaimed, found) = (new_eventfd()?, Arc::new(new_eventfd()?), Arc::new(new_eventfd()?));
        let signals = [
            (&*wake, Signal::Control),
            (&alarm, Signal::Alarm),
            (&*reclaimed, Signal::Reclaimed),
            (&*found, Signal::Found),
        ];
        let clients = Clients::new(signals)?;
        let alarms = guard::Wake::new(alarm)?;
        // This thread never polls for ever: it is not on the data path.
        let mode = if mode == Mode::Spin { Mode::Adaptive } else { mode };
        // The two programs that set up a connection poll as well.
        let patience = Patience::new(mode, shards.len() + 3, SPIN_FOR, shards[0].contention());
        let plains = Plains::new(probe(), Serving(shards.clone()));
        Ok(Self {
            patience,
            accounts: Accounts::new(limits, Reclaimer::new(Some(reclaimed))),
            clients,
            devices: Devices::new(shards),
            _alarms: alarms,
            cm: ConnectionManager::new(seed()?),
            cm_channels: HashMap::new(),
            clock: Clock::start(),
            next_look: Time::default(),
            resume_at: Time::default(),
            plains,
            lookups: Lookups::new(found),
            tables: HashSet::new(),
            wake,
            control,
            mads,
        })
    }

    /// Serves until told to stop; closes everything then.
    pub(super) fn run(mut self) {
        let mut buffer = vec![0; MAX_MESSAGE];
        let mut is_tired = true;
        loop {
            let wait = self.run_timers();
            let limit = if is_tired && !self.clients.has_turn() { wait } else { Some(NOW) };
            let (mut has_some, signals) = match self.clients.wait(limit.as_ref()) {
                Ok(waited) => waited,
                Err(error) => {
                    tracing::error!(%error, "the session thread cannot wait for its sockets");
                    break;
                }
            };
            for signal in signals {
                match signal {
                    Signal::Control if self.handle_control() == Flow::Close => return self.close_all(),
                    Signal::Control => self.receive_mads(),
                    Signal::Alarm => self.close_broken(),
                    Signal::Reclaimed => self.unpark(),
                    Signal::Found => self.take_found(),
                }
            }
            if let Some(turn) = self.clients.next_turn() {
                has_some |= self.serve(turn, &mut buffer);
            }
            if has_some {
                self.patience.renew();
                is_tired = false;
            } else {
                is_tired = is_tired || self.patience.is_over(false);
            }
        }
        self.close_all();
    }

    /// Serves a socket once. Returns whether there was something.
    fn serve(&mut self, turn: Turn, buffer: &mut [u8]) -> bool {
        match turn {
            Turn::Accept(id) => self.accept(id),
            Turn::Serve(id) => self.receive(id, buffer),
        }
    }

    /// Handles expired timers. Returns the time until the next one.
    fn run_timers(&mut self) -> Option<Timespec> {
        let timer = self.run_cm_timers();
        if self.clients.has_paused() && self.clock.now() >= self.resume_at {
            self.clients.resume();
        }
        [self.clients.has_paused().then_some(PAUSE_LIMIT), timer].into_iter().flatten().min()
    }

    fn handle_control(&mut self) -> Flow {
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
                Control::Mistakes(answer) => drop(answer.send(self.accounts.mistakes())),
                Control::CmTotals(answer) => drop(answer.send(self.cm_totals())),
                #[cfg(test)]
                Control::Errands(id, answer) => {
                    drop(answer.send(self.accounts.get(id).unwrap().account.seeker.errands.clone()))
                }
                Control::Stop => return Flow::Close,
            }
        }
        Flow::Continue
    }

    /// Closes contexts whose programs have removed pages of their queues.
    fn close_broken(&mut self) {
        let is_broken = |id: &u32| self.devices.get(*id).is_some_and(|context| context.alarm.is_raised());
        let subject = |c: &Connection| if let Some(Subject::Context(id)) = c.subject { Some(id) } else { None };
        let hit = |(_, c): &(u64, &Connection)| subject(c).as_ref().is_some_and(is_broken);
        let broken: Vec<u64> = self.clients.iter().filter(hit).map(|(id, _)| id).collect();
        for id in broken {
            self.complain(id, "pages of its queues are missing");
            self.close(id);
        }
    }

    fn add_endpoint(&mut self, spec: EndpointSpec, listener: OwnedFd) {
        let id = spec.id;
        self.remove_endpoint(id);
        if let Err(error) = self.clients.listen(id, spec.vni, listener) {
            return tracing::error!(endpoint = spec.name, %error, "the endpoint's socket cannot be served");
        }
        let account = self.accounts.add(spec).account.clone();
        self.add_node(&account);
    }

    fn remove_endpoint(&mut self, id: EndpointId) {
        let connections: Vec<u64> = self.clients.iter().filter(|(_, c)| c.endpoint == id).map(|(n, _)| n).collect();
        for connection in connections {
            self.close(connection);
        }
        if let Some(endpoint) = self.accounts.remove(id) {
            self.remove_node(id);
            self.clients.stop_listening(id, &endpoint.account.disposal);
        }
    }

    fn close_all(mut self) {
        for endpoint in self.accounts.ids() {
            self.remove_endpoint(endpoint);
        }
    }

    fn snapshot(&self) -> Vec<ContextInfo> {
        let mut contexts: Vec<(u32, &Context)> = self.devices.iter().collect();
        contexts.sort_by_key(|(id, _)| *id);
        contexts.into_iter().filter_map(|(_, c)| Some(c.info(&self.accounts.get(c.endpoint)?.account))).collect()
    }

    fn present_totals(&self) -> SessionTotals {
        let objects_live = self.devices.iter().map(|(_, context)| context.holdings.objects().total()).sum();
        SessionTotals { objects_live, ..self.accounts.totals }
    }

    /// Accepts one connection, or refuses it. Returns whether there was one.
    fn accept(&mut self, id: EndpointId) -> bool {
        let Some(endpoint) = self.accounts.get(id) else { return false };
        if endpoint.account.disposal.is_full() {
            self.pause_listener(id);
            return false;
        }
        match self.clients.accept(id) {
            Ok(socket) => {
                self.welcome(id, socket);
                self.clients.queue_listener(id);
            }
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR | Errno::CONNABORTED) => self.clients.queue_listener(id),
            Err(error) => {
                // Descriptors have run out, most likely.
                if endpoint.account.is_first("accept") {
                    tracing::error!(endpoint = endpoint.account.spec.name, %error, "no connection can be accepted; is the limit on open files too low?");
                }
                self.pause_listener(id);
            }
        }
        true
    }

    /// Serves a new connection, unless it is refused.
    fn welcome(&mut self, id: EndpointId, socket: OwnedFd) {
        let Some((endpoint, totals)) = self.accounts.with_totals(id) else { return };
        let account = &endpoint.account;
        let Ok(peer) = Peer::of(socket.as_fd()) else { return account.disposal.close(socket) };
        let is_welcome = account.spec.allowed_uid.is_none_or(|uid| uid == peer.uid);
        if !is_welcome && account.is_first("user") {
            tracing::warn!(
                endpoint = account.spec.name,
                pid = peer.pid,
                uid = peer.uid,
                "refused: not the endpoint's user"
            );
        }
        let Some(charge) = is_welcome.then(|| account.charge(Item::Connection, 1).ok()).flatten() else {
            totals.connections_refused += 1;
            // No command of a program is refused.
            account.take_refusal();
            if let Some(resource) = account.share.take_refusal() {
                account.exhausted(resource);
            }
            return self.clients.retire(socket, &account.disposal);
        };
        let connection = Connection::new(socket, id, account.spec.vni, peer, charge);
        match self.clients.add(connection, &account.disposal) {
            Ok(()) => totals.connections_accepted += 1,
            Err(error) => tracing::warn!(endpoint = account.spec.name, %error, "a connection cannot be polled"),
        }
    }

    fn pause_listener(&mut self, id: EndpointId) {
        self.clients.pause(id);
        let now = self.clock.now();
        if now >= self.resume_at {
            self.resume_at = now.after(PAUSE);
        }
    }

    /// Takes one message from a connection, or goes on with the one that has waited. Returns whether there was one.
    fn receive(&mut self, id: u64, buffer: &mut [u8]) -> bool {
        let Some(connection) = self.clients.get_mut(id) else { return false };
        let flow = match connection.parked.take() {
            Some(parked) => self.handle_message(id, &parked.bytes, parked.fds, parked.attempt),
            None => match session::receive_all(connection.socket.as_fd(), buffer) {
                Ok(Received { len: 0, is_truncated: false, fds }) if fds.len() <= MAX_FDS => {
                    self.dispose(id, fds);
                    Flow::Close
                }
                Ok(Received { len, is_truncated, fds }) if !is_truncated && fds.len() <= MAX_FDS => {
                    self.handle_message(id, &buffer[..len], fds, Attempt::First)
                }
                Ok(Received { fds, .. }) => {
                    self.dispose(id, fds);
                    self.expel(id, "message with more than a message may hold")
                }
                Err(Errno::AGAIN) => return false,
                Err(Errno::CONNRESET) => Flow::Close,
                Err(error) => self.expel(id, &format!("message that cannot be received: {error}")),
            },
        };
        match flow {
            Flow::Continue => self.clients.queue(id),
            Flow::Wait => self.unpark(),
            Flow::Close => self.close(id),
        }
        true
    }

    /// Closes the descriptors that came with a message.
    pub(super) fn dispose(&mut self, id: u64, fds: Vec<OwnedFd>) -> Flow {
        let Some(account) = self.account_of(id) else { return Flow::Close };
        fds.into_iter().for_each(|fd| account.disposal.close(fd));
        if account.disposal.is_full() {
            return self.expel(id, "it sends descriptors faster than they can be closed");
        }
        Flow::Continue
    }

    /// Lets messages that waited for room go on, where there may be some now.
    fn unpark(&mut self) {
        if !self.clients.has_parked() {
            return;
        }
        let accounts = &self.accounts;
        // While something is reclaimed, its end is the next occasion to look.
        let is_reclaiming = accounts.ask_for_wake();
        let is_busy = |id| accounts.get(id).is_some_and(|endpoint| endpoint.account.disposal.is_reclaiming());
        self.clients.unpark(|connection, parked| match &parked.until {
            Until::Room(evicted) => !is_reclaiming || evicted.is_gone() && !is_busy(connection.endpoint),
            Until::Lookup => false,
        });
    }

    /// Logs that a connection is closed because of its program's messages. The caller closes it.
    pub(super) fn complain(&mut self, id: u64, reason: &str) {
        self.accounts.totals.connections_dropped += 1;
        if let Some(connection) = self.clients.get(id)
            && let Some(account) = self.account_of(id).filter(|account| account.may_complain())
        {
            tracing::warn!(endpoint = account.spec.name, pid = connection.peer.pid, "connection closed: {reason}");
        }
    }

    /// Closes a connection, and its context when it was the last one.
    fn close(&mut self, id: u64) {
        let Some(disposal) = self.account_of(id).map(|account| account.disposal.clone()) else { return };
        let Some((_, subject)) = self.clients.remove(id, &disposal) else { return };
        let context_id = match subject {
            Some(Subject::Context(context)) => context,
            Some(Subject::Channel(channel)) => return self.close_cm(channel),
            None => return,
        };
        let Some(context) = self.devices.get_mut(context_id) else { return };
        context.connections -= 1;
        if context.connections == 0 {
            self.close_context(context_id);
        }
    }

    fn close_context(&mut self, id: u32) {
        let Some(context) = self.devices.remove(id) else { return };
        context.settle();
        let number = context.endpoint;
        let Some((endpoint, totals)) = self.accounts.with_totals(number) else { return };
        totals.contexts_closed += 1;
        totals.objects_reclaimed += context.holdings.objects().total();
        endpoint.traffic.add_context(&context);
        context.note_mistakes(&endpoint.account);
        endpoint.arenas.forget(id);
        if let Some(plain) = context.close(&endpoint.account.disposal) {
            self.cm.remove_way(number, plain.sockets().id());
        }
    }
}

/// The workers, which serve the sockets of programs' namespaces.
struct Serving(Vec<ShardHandle>);

impl PlainWatcher for Serving {
    fn opened(&self, sockets: &Arc<PlainSockets>) {
        for shard in &self.0 {
            let sockets = Arc::clone(sockets);
            if let Err(error) = shard.call(move |shard| shard.add_plain(sockets)) {
                tracing::error!(%error, "cannot watch the sockets of a network namespace");
            }
        }
    }

    fn closed(&self, id: PlainId) {
        for shard in &self.0 {
            shard.call(move |shard| shard.remove_plain(id));
        }
    }
}

/// Seed of numbers that must be unpredictable.
fn seed() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
