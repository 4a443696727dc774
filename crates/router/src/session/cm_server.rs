//! The thread of rdma_cm: it serves the connections of channels, and exchanges messages with other machines.
//!
//! It waits neither for the session thread nor for a tenant: the session thread hands connections over, and tells of endpoints
//! and of paths to external peers; what a tenant controls is looked up on other threads.

use super::clients::{Clients, Input, Signal, Turn};
use super::cm_state::{CmChannel, Node};
use super::connection::{Attempt, Flow, Parked, SessionConnection, Until};
use super::control::{CmControl, Control};
use super::info::SessionTotals;
use super::lookups::{Found, Lookups};
use super::pace::Pace;
use super::post::{Inbox, Post};
use super::shared::Shared;
use crate::cm::ConnectionManager;
use crate::disposal::Reclaimer;
use crate::endpoint::EndpointId;
use crate::io::{Clock, ExternalPaths};
use crate::worker::{MadQueue, ShardHandle};
use rdmesh_nic::Time;
use rdmesh_uverbs::session::MAX_MESSAGE;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The state of the thread.
pub(super) struct CmServer {
    pace: Pace,
    pub(super) clients: Clients,
    pub(super) nodes: HashMap<EndpointId, Node>,
    pub(super) cm: ConnectionManager,
    pub(super) channels: HashMap<u32, CmChannel>,
    pub(super) shards: Vec<ShardHandle>,
    pub(super) external_paths: ExternalPaths,
    pub(super) lookups: Lookups,
    /// Tables of neighbours that are being read, by the connection whose namespace it is.
    pub(super) tables: HashSet<u64>,
    /// Time of the next neighbour lookup.
    pub(super) next_look: Time,
    pub(super) clock: Clock,
    pub(super) totals: SessionTotals,
    /// Management datagrams that the workers received.
    pub(super) mads: MadQueue,
    pub(super) post: Post<CmControl>,
    inbox: Inbox<CmControl>,
    /// The session thread, which is never waited for.
    pub(super) session: Post<Control>,
    reclaimer: Reclaimer,
    reclaimed: Arc<OwnedFd>,
}

impl CmServer {
    /// A server for requests from `inbox`, the other end of which is `post`.
    pub(super) fn new(
        post: Post<CmControl>,
        inbox: Inbox<CmControl>,
        session: Post<Control>,
        Shared { shards, mode, external_paths, reclaimer }: Shared,
    ) -> io::Result<Self> {
        let new_eventfd = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new);
        let (reclaimed, found) = (new_eventfd()?, new_eventfd()?);
        let signals = [(&**post.wake(), Signal::Control), (&*reclaimed, Signal::Reclaimed), (&*found, Signal::Found)];
        let clients = Clients::new(signals)?;
        let mads = MadQueue::new(Arc::clone(post.wake()));
        for shard in &shards {
            let mads = mads.clone();
            shard.call(move |shard| shard.set_mad_queue(mads));
        }
        Ok(Self {
            pace: Pace::new(mode, &shards),
            clients,
            nodes: HashMap::new(),
            cm: ConnectionManager::new(seed()?, shards[0].routes().clone()),
            channels: HashMap::new(),
            shards,
            external_paths,
            lookups: Lookups::new(found),
            tables: HashSet::new(),
            next_look: Time::default(),
            clock: Clock::start(),
            totals: SessionTotals::default(),
            mads,
            post,
            inbox,
            session,
            reclaimer,
            reclaimed,
        })
    }

    /// Serves until told to stop; closes everything then.
    pub(super) fn run(mut self) {
        let mut buffer = vec![0; MAX_MESSAGE];
        loop {
            let timer = self.run_timers();
            let limit = self.pace.limit(self.clients.has_turn(), timer);
            let (mut has_some, signals) = match self.clients.wait(limit.as_ref()) {
                Ok(waited) => waited,
                Err(error) => {
                    tracing::error!(%error, "the thread of rdma_cm cannot wait for its sockets");
                    break;
                }
            };
            for signal in signals {
                match signal {
                    Signal::Control if self.handle_control() == Flow::Close => return self.close_all(),
                    Signal::Control => self.receive_mads(),
                    Signal::Reclaimed => self.unpark(),
                    Signal::Found => self.take_found(),
                    Signal::Alarm => {}
                }
            }
            if let Some(Turn::Serve(id)) = self.clients.next_turn() {
                has_some |= self.serve(id, &mut buffer);
            }
            self.pace.note(has_some);
        }
        self.close_all();
    }

    fn handle_control(&mut self) -> Flow {
        for control in self.inbox.requests().collect::<Vec<_>>() {
            // The caller may have gone; then the answer is discarded.
            match control {
                CmControl::Add(account) => self.add_node(account),
                CmControl::Remove(id, done) => {
                    self.remove_node(id);
                    let _ = done.send(());
                }
                CmControl::Take(connection, message) => self.take(*connection, &message),
                CmControl::Opened(endpoint, device) => self.device_opened(endpoint, device),
                CmControl::Closed(endpoint, device) => self.device_closed(endpoint, &device),
                CmControl::Evicted(id, evicted) => {
                    self.clients.evicted(id, evicted);
                    self.unpark();
                }
                CmControl::Connections(answer) => drop(answer.send(self.connection_infos())),
                CmControl::Totals(answer) => drop(answer.send((self.cm_totals(), self.present_totals()))),
                CmControl::List(endpoint, from, limit, answer) => drop(answer.send(self.list(endpoint, from, limit))),
                CmControl::Count(endpoint, answer) => drop(answer.send(self.cm.count_ids(endpoint) as u64)),
                CmControl::Stop => return Flow::Close,
            }
        }
        Flow::Continue
    }

    /// Serves a connection once. Returns whether there was something.
    fn serve(&mut self, id: u64, buffer: &mut [u8]) -> bool {
        let incoming = match self.clients.receive(id, buffer) {
            Input::Nothing => return false,
            Input::Closed => {
                self.close(id);
                return true;
            }
            Input::Message(incoming) => incoming,
        };
        // What the session thread did before it answered the program comes first.
        if self.handle_control() == Flow::Close {
            self.post.tell(CmControl::Stop);
        }
        let result = self.execute(id, &incoming.bytes, incoming.attempt);
        match self.clients.finish(id, incoming, result) {
            Flow::Close => self.close(id),
            Flow::Wait => self.unpark(),
            Flow::Continue | Flow::HandOver => {}
        }
        true
    }

    /// Takes a connection over, and executes its first message.
    fn take(&mut self, connection: SessionConnection, message: &[u8]) {
        let account = connection.account().clone();
        if !self.nodes.contains_key(&connection.endpoint()) {
            return self.clients.retire(connection.end().0, account.disposal());
        }
        let (bytes, attempt) = (message.to_vec(), Attempt::First);
        // It can be executed at once, in its turn.
        let parked = Parked { bytes, fds: Vec::new(), until: Until::Lookup, attempt, is_over: true };
        match self.clients.add(connection, Some(parked)) {
            Ok(id) => self.clients.queue(id),
            Err(error) => {
                tracing::warn!(endpoint = account.spec().name, %error, "cannot poll a connection, closing it")
            }
        }
    }

    /// Takes what has been looked up.
    fn take_found(&mut self) {
        while let Some((id, found)) = self.lookups.next() {
            match found {
                Found::Neighbours(table) => self.take_neighbours(id, table),
                // Given back where the connection has gone.
                found => drop(self.clients.found(id, found)),
            }
        }
    }

    fn unpark(&mut self) {
        self.clients.unpark(&self.reclaimer, &self.reclaimed);
    }

    fn present_totals(&self) -> SessionTotals {
        SessionTotals { connections_dropped: self.clients.expelled(), ..self.totals }
    }

    fn close_all(mut self) {
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.remove_node(id);
        }
    }
}

/// Seed of numbers that must be unpredictable.
fn seed() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
