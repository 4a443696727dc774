//! The session thread: one loop over all sockets.

use super::account::Item;
use super::accounts::Accounts;
use super::chain_orders::{ChainError, StepRow};
use super::clients::{Clients, Incoming, Input, Signal, Turn};
use super::connection::{Flow, Frame, SessionConnection, Subject, Until};
use super::context::Context;
use super::control::{CmControl, Control};
use super::devices::Devices;
use super::executor::{Executed, Executor};
use super::info::SessionTotals;
use super::lookups::Lookups;
use super::pace::Pace;
use super::post::{Inbox, Post};
use super::program::Program;
use super::shared::Shared;
use super::spec::EndpointSpec;
use crate::endpoint::EndpointId;
use crate::io::Clock;
use rdmesh_fabric::api::TraceChain;
use rdmesh_nic::Time;
use rdmesh_uverbs::guard;
use rdmesh_uverbs::session::MAX_MESSAGE;
use rdmesh_verbs::DeviceLimits;
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{self, Errno};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Back-off of a listener when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);
/// A wait for the end of a term; then it looks again.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
const PAUSE_LIMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };

/// The state of the session thread.
pub(super) struct Server {
    pace: Pace,
    clients: Clients,
    executor: Executor,
    clock: Clock,
    /// Time at which paused listeners are served again.
    resume_at: Time,
    control: Inbox<Control>,
    /// Wakes this thread when pages of a context's memory are missing.
    _alarms: guard::Wake,
    /// Wakes this thread when memory has been reclaimed.
    reclaimed: Arc<OwnedFd>,
}

impl Server {
    /// A server for requests from `control`, whose sender writes to `wake`.
    pub(super) fn new(
        wake: &Arc<OwnedFd>,
        control: Inbox<Control>,
        cm: Post<CmControl>,
        limits: DeviceLimits,
        Shared { shards, mode, external_paths, reclaimer }: Shared,
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
            executor: Executor::new(
                Accounts::new(limits, reclaimer),
                Devices::new(shards),
                external_paths,
                Lookups::new(found),
                cm,
                Clock::start(),
            ),
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
                    tracing::error!(%error, "session thread cannot wait for its sockets");
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
        let term = self.executor.end_terms().map(|time| time.min(LONGEST_WAIT).try_into().unwrap_or(PAUSE_LIMIT));
        if self.clients.has_paused() { Some(PAUSE_LIMIT) } else { term }
    }

    /// Records the requests of a chain, which is charged to its endpoint.
    fn trace_chain(&mut self, endpoint: EndpointId, trace: TraceChain) -> Result<Vec<StepRow>, ChainError> {
        let known = self.executor.accounts().get(endpoint).ok_or(ChainError::NoSuchChain)?;
        let share = known.account.share().clone();
        self.executor.devices_mut().trace_chain(&share, endpoint, trace)
    }

    fn handle_control(&mut self) -> Flow {
        for control in self.control.requests().collect::<Vec<_>>() {
            // The caller may have gone; then the answer is discarded.
            match control {
                Control::Add(spec, listener) => self.add_endpoint(*spec, listener),
                Control::Remove(id, done) => {
                    self.remove_endpoint(id);
                    let _ = done.send(());
                }
                Control::Snapshot(answer) => drop(answer.send(self.executor.snapshot())),
                Control::Move(endpoint, pid, worker, answer) => {
                    let moved = self.executor.devices_mut().move_contexts(endpoint, pid, worker);
                    let _ = answer.send(moved);
                }
                Control::Chain(endpoint, order, answer) => {
                    let _ = answer.send(self.executor.devices().control_chain(endpoint, order));
                }
                Control::EndLingering(endpoint, device, answer) => {
                    let is_meant = |context: &Context| {
                        context.endpoint() == endpoint && device.is_none_or(|device| context.number() == device)
                    };
                    let _ = answer.send(self.executor.end_lingering(is_meant));
                }
                Control::LingersFor(endpoint, answer) => drop(answer.send(self.executor.lingers_for(endpoint))),
                Control::InspectChain(endpoint, (device, group), answer) => {
                    let _ = answer.send(self.executor.devices().inspect_chain(endpoint, device, group));
                }
                Control::TraceChain(endpoint, trace, answer) => {
                    let _ = answer.send(self.trace_chain(endpoint, trace));
                }
                Control::Policy(endpoint, policy) => self.executor.set_policy(endpoint, *policy),
                Control::ChainSteps(endpoint, per_second) => self.executor.set_chain_steps(endpoint, per_second),
                Control::Totals(answer) => drop(answer.send(self.present_totals())),
                Control::FailedRequests(answer) => {
                    self.executor.note_failures();
                    drop(answer.send(self.executor.accounts().failed_requests()));
                }
                Control::BadIndices(answer) => {
                    self.executor.note_failures();
                    drop(answer.send(self.executor.accounts().bad_indices()));
                }
                Control::Held(answer) => drop(answer.send(self.executor.accounts().held())),
                Control::Evict(id) => {
                    let evicted = self.executor.accounts_mut().evict();
                    self.executor.cm().tell(CmControl::Evicted(id, evicted));
                }
                #[cfg(test)]
                Control::Account(id, answer) => {
                    drop(answer.send(self.executor.accounts().get(id).unwrap().account.clone()))
                }
                Control::Stop => return Flow::Close,
            }
        }
        Flow::Continue
    }

    /// Closes contexts whose programs have removed pages of their queues.
    fn close_broken(&mut self) {
        let is_broken = |id: &u32| self.executor.devices().get(*id).is_some_and(|context| context.is_broken());
        let subject =
            |c: &SessionConnection| if let Some(Subject::Context(id)) = c.subject() { Some(id) } else { None };
        let hit = |(_, c): &(u64, &SessionConnection)| subject(c).as_ref().is_some_and(is_broken);
        let broken: Vec<u64> = self.clients.iter().filter(hit).map(|(id, _)| id).collect();
        for id in broken {
            self.clients.expel(id, "pages of its queues are missing");
            self.close(id);
        }
        self.executor.end_lingering(Context::is_broken);
    }

    fn add_endpoint(&mut self, spec: EndpointSpec, listener: OwnedFd) {
        let id = spec.id;
        if self.executor.accounts().get(id).is_some() {
            self.remove_endpoint(id);
            // The answer is not waited for: what follows comes after it.
            self.executor.cm().tell(CmControl::Remove(id, channel().0));
        }
        if let Err(error) = self.clients.listen(id, spec.vni, listener) {
            return tracing::error!(endpoint = spec.name, %error, "cannot serve the endpoint's socket");
        }
        let account = self.executor.accounts_mut().add(spec).account.clone();
        self.executor.cm().tell(CmControl::Add(account));
    }

    fn remove_endpoint(&mut self, id: EndpointId) {
        for connection in self.clients.of_endpoint(id) {
            self.close(connection);
        }
        self.executor.end_lingering(|context| context.endpoint() == id);
        if let Some(endpoint) = self.executor.accounts_mut().remove(id) {
            self.clients.stop_listening(id, endpoint.account.disposal());
        }
    }

    fn close_all(mut self) {
        for endpoint in self.executor.accounts().ids() {
            self.remove_endpoint(endpoint);
        }
    }

    fn present_totals(&self) -> SessionTotals {
        let objects_live = self.executor.devices().iter().map(|(_, context)| context.objects().total()).sum();
        SessionTotals {
            objects_live,
            connections_dropped: self.clients.expelled(),
            ..self.executor.accounts().totals()
        }
    }

    /// Accepts one connection, or refuses it. Returns whether there was one.
    fn accept(&mut self, id: EndpointId) -> bool {
        let Some(endpoint) = self.executor.accounts().get(id) else { return false };
        if endpoint.account.disposal().is_full() {
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
                    tracing::error!(endpoint = endpoint.account.spec().name, %error, "cannot accept connections; is the limit on open files too low?");
                }
                self.pause_listener(id);
            }
        }
        true
    }

    /// Serves a new connection, unless it is refused.
    fn welcome(&mut self, id: EndpointId, socket: OwnedFd) {
        let Some((endpoint, totals)) = self.executor.accounts_mut().with_totals(id) else { return };
        let account = &endpoint.account;
        let Ok(program) = Program::of(socket.as_fd()) else { return account.disposal().close(socket) };
        // The relay of an endpoint with a network namespace of its own is a thread of this process.
        let is_relay = account.spec().namespace.is_some() && program.process().is_router();
        let is_welcome = is_relay || account.spec().allowed_uid.is_none_or(|uid| uid == program.process().uid);
        if !is_welcome && account.is_first("user") {
            tracing::warn!(
                endpoint = account.spec().name,
                pid = program.process().pid,
                uid = program.process().uid,
                "refused: not the endpoint's user"
            );
        }
        let Some(charge) = is_welcome.then(|| account.charge(Item::Connection, 1).ok()).flatten() else {
            totals.connections_refused += 1;
            // No command of a program is refused.
            account.take_refusal();
            if let Some(resource) = account.share().take_refusal() {
                account.exhausted(resource);
            }
            return self.clients.retire(socket, account.disposal());
        };
        let connection = SessionConnection::new(socket, account.clone(), program, charge);
        match self.clients.add(connection, None) {
            Ok(_) => totals.connections_accepted += 1,
            Err(error) => {
                tracing::warn!(endpoint = account.spec().name, %error, "cannot poll a connection, closing it")
            }
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
                    self.executor.cm().tell(CmControl::Take(Box::new(connection), message));
                }
            }
        }
        true
    }

    /// Lets messages that waited for room go on, where there may be some now.
    fn unpark(&mut self) {
        self.clients.unpark(self.executor.accounts().reclaimer(), &self.reclaimed);
    }

    /// Takes what has been looked up.
    fn take_found(&mut self) {
        while let Some((id, found)) = self.executor.next_found() {
            // Given back where the connection has gone.
            drop(self.clients.found(id, found));
        }
    }

    /// Executes a message and answers it; an error where it has to wait.
    fn execute(&mut self, id: u64, incoming: &Incoming<'_>) -> Result<Flow, Until> {
        let frame = match Frame::parse(&incoming.bytes) {
            Ok(frame) => frame,
            Err(error) => return Ok(self.clients.expel(id, &error.to_string())),
        };
        let Some(connection) = self.clients.get_mut(id) else { return Ok(Flow::Close) };
        match self.executor.execute(id, connection, &frame, incoming)? {
            Executed::Answer(answer) => {
                let subject = connection.subject();
                let wanted = if answer.is_err() { self.executor.wanted(subject) } else { None };
                Ok(self.clients.answer(id, &frame, &answer, wanted))
            }
            Executed::HandOver => Ok(Flow::HandOver),
            Executed::Broken(reason) => Ok(self.clients.expel(id, reason)),
        }
    }

    /// Closes a connection, and its context when it was the last one.
    fn close(&mut self, id: u64) {
        if let Some(Subject::Context(context)) = self.clients.remove(id) {
            self.executor.detach(context);
        }
    }
}
