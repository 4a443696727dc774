//! The session thread: one loop over all sockets.

use super::account::Item;
use super::accounts::Accounts;
use super::clients::{Clients, Input, Signal, Turn};
use super::connection::{Connection, Flow, Subject};
use super::context::Context;
use super::control::{CmControl, Control};
use super::devices::Devices;
use super::info::{ContextInfo, SessionTotals};
use super::lookups::Lookups;
use super::pace::Pace;
use super::peer::Peer;
use super::post::Post;
use super::spec::EndpointSpec;
use crate::disposal::Reclaimer;
use crate::endpoint::EndpointId;
use crate::io::{Clock, Plains};
use crate::worker::{Mode, ShardHandle};
use rdmesh_nic::Time;
use rdmesh_uverbs::guard;
use rdmesh_uverbs::session::MAX_MESSAGE;
use rdmesh_verbs::DeviceLimits;
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{self, Errno};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Back-off of a listener when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_LIMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };

/// The state of the session thread.
pub(super) struct Server {
    pace: Pace,
    pub(super) accounts: Accounts,
    pub(super) clients: Clients,
    pub(super) devices: Devices,
    pub(super) plains: Plains,
    pub(super) lookups: Lookups,
    /// The thread of rdma_cm.
    pub(super) cm: Post<CmControl>,
    pub(super) clock: Clock,
    /// Time at which paused listeners are served again.
    resume_at: Time,
    control: Receiver<Control>,
    /// Wakes this thread when pages of a context's memory are missing.
    _alarms: guard::Wake,
    /// Wakes this thread when memory has been reclaimed.
    reclaimed: Arc<OwnedFd>,
}

impl Server {
    /// A server for requests from `control`, whose sender writes to `wake`.
    pub(super) fn new(
        (wake, control): (&Arc<OwnedFd>, Receiver<Control>),
        cm: Post<CmControl>,
        shards: Vec<ShardHandle>,
        (limits, mode): (DeviceLimits, Mode),
        (plains, reclaimer): (Plains, Reclaimer),
    ) -> io::Result<Self> {
        if !guard::install() {
            tracing::warn!("no userfaultfd: tenants' memory may be charged to the router, and counts as its own");
        }
        let new_eventfd = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (alarm, reclaimed, found) = (new_eventfd()?, Arc::new(new_eventfd()?), Arc::new(new_eventfd()?));
        let signals = [
            (&**wake, Signal::Control),
            (&alarm, Signal::Alarm),
            (&*reclaimed, Signal::Reclaimed),
            (&*found, Signal::Found),
        ];
        Ok(Self {
            clients: Clients::new(signals)?,
            pace: Pace::new(mode, &shards),
            accounts: Accounts::new(limits, reclaimer),
            devices: Devices::new(shards),
            plains,
            lookups: Lookups::new(found),
            cm,
            clock: Clock::start(),
            resume_at: Time::default(),
            control,
            _alarms: guard::Wake::new(alarm)?,
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
                    tracing::error!(%error, "the session thread cannot wait for its sockets");
                    break;
                }
            };
            for signal in signals {
                match signal {
                    Signal::Control if self.handle_control() == Flow::Close => return self.close_all(),
                    Signal::Control => {}
                    Signal::Alarm => self.close_broken(),
                    Signal::Reclaimed => self.unpark(),
                    Signal::Found => self.take_found(),
                }
            }
            has_some |= match self.clients.next_turn() {
                Some(Turn::Accept(id)) => self.accept(id),
                Some(Turn::Serve(id)) => self.serve(id, &mut buffer),
                None => false,
            };
            self.pace.note(has_some);
        }
        self.close_all();
    }

    /// Handles expired timers. Returns the time until the next one.
    fn run_timers(&mut self) -> Option<Timespec> {
        if self.clients.has_paused() && self.clock.now() >= self.resume_at {
            self.clients.resume();
        }
        self.clients.has_paused().then_some(PAUSE_LIMIT)
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
                Control::Mistakes(answer) => {
                    self.note_bad_indices();
                    drop(answer.send(self.accounts.mistakes()));
                }
                Control::BadIndices(answer) => {
                    self.note_bad_indices();
                    drop(answer.send(self.accounts.bad_indices()));
                }
                Control::Evict(id) => self.cm.tell(CmControl::Evicted(id, self.accounts.evict())),
                #[cfg(test)]
                Control::Account(id, answer) => drop(answer.send(self.accounts.get(id).unwrap().account.clone())),
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
            self.clients.expel(id, "pages of its queues are missing");
            self.close(id);
        }
    }

    fn add_endpoint(&mut self, spec: EndpointSpec, listener: OwnedFd) {
        let id = spec.id;
        if self.accounts.get(id).is_some() {
            self.remove_endpoint(id);
            // The answer is not waited for: what follows comes after it.
            self.cm.tell(CmControl::Remove(id, channel().0));
        }
        if let Err(error) = self.clients.listen(id, spec.vni, listener) {
            return tracing::error!(endpoint = spec.name, %error, "the endpoint's socket cannot be served");
        }
        let account = self.accounts.add(spec).account.clone();
        self.cm.tell(CmControl::Add(account));
    }

    fn remove_endpoint(&mut self, id: EndpointId) {
        for connection in self.clients.of_endpoint(id) {
            self.close(connection);
        }
        if let Some(endpoint) = self.accounts.remove(id) {
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

    fn note_bad_indices(&self) {
        for (_, context) in self.devices.iter() {
            if let Some(endpoint) = self.accounts.get(context.endpoint) {
                context.note_bad_indices(&endpoint.account);
            }
        }
    }

    fn present_totals(&self) -> SessionTotals {
        let objects_live = self.devices.iter().map(|(_, context)| context.holdings.objects().total()).sum();
        SessionTotals { objects_live, connections_dropped: self.clients.expelled(), ..self.accounts.totals }
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
        let connection = Connection::new(socket, account.clone(), peer, charge);
        match self.clients.add(connection) {
            Ok(_) => totals.connections_accepted += 1,
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
    fn serve(&mut self, id: u64, buffer: &mut [u8]) -> bool {
        let incoming = match self.clients.receive(id, buffer) {
            Input::Nothing => return false,
            Input::Closed => {
                self.close(id);
                return true;
            }
            Input::Message(incoming) => incoming,
        };
        let result = self.execute(id, &incoming);
        let is_leaving = matches!(result, Ok(Flow::HandOver));
        let message = if is_leaving { incoming.bytes.to_vec() } else { Vec::new() };
        match self.clients.finish(id, incoming, result) {
            Flow::Continue => {}
            Flow::Wait => self.unpark(),
            Flow::Close => self.close(id),
            Flow::HandOver => {
                if let Some(connection) = self.clients.take(id) {
                    self.cm.tell(CmControl::Take(Box::new(connection), message));
                }
            }
        }
        true
    }

    /// Lets messages that waited for room go on, where there may be some now.
    fn unpark(&mut self) {
        self.clients.unpark(self.accounts.reclaimer(), &self.reclaimed);
    }

    /// Closes a connection, and its context when it was the last one.
    fn close(&mut self, id: u64) {
        let Some(Subject::Context(context_id)) = self.clients.remove(id) else { return };
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
        self.cm.tell(CmControl::Closed(number, context.open_device()));
        context.close(&endpoint.account.disposal);
    }
}
