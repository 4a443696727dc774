//! Shard: one engine and the contexts that it serves.

use super::arrivals::Arrivals;
use super::attached::{Attached, Watched};
use super::contexts::Contexts;
use super::events::EventSocket;
use super::mads::{self, MadQueue};
use super::stats::MadCounters;
use crate::io::{Clock, ExternalSockets, Faults, Sockets, Table};
use crate::memory::HostPlatform;
use rdmesh_nic::{
    Budget, Config, ContextId, DeferredDrop, Engine, Event, ExternalId, MovingDevice, Network, Numbers, Time,
};
use rdmesh_uverbs::page::ContextPage;
use rdmesh_verbs::Qpn;
use rustix::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// One engine, its contexts, and the events that go to their programs. Served by a worker thread.
pub struct Shard {
    engine: Engine<HostPlatform>,
    contexts: Contexts,
    clock: Clock,
    sockets: Sockets,
    /// Whether an event waits for room in its socket, and the time of the next attempt.
    stuck: bool,
    retry_at: Time,
    /// Receiver of management datagrams: the connection manager.
    mads: Option<MadQueue>,
}

/// A context on its way to another shard.
pub(super) struct MovingContext {
    device: MovingDevice<HostPlatform>,
    attached: Attached,
}

impl MovingContext {
    /// Takes a context out of a shard.
    pub(super) fn take(shard: &mut Shard, id: ContextId) -> Option<Self> {
        shard.take_all_doorbells();
        MovingDevice::prepare(&mut shard.engine, shard.clock.now());
        // Those of other contexts too; the new worker knows nothing of them.
        shard.deliver();
        let device = MovingDevice::take(&mut shard.engine, id)?;
        let attached = shard.contexts.take(id)?;
        Some(Self { device, attached })
    }

    /// Gives it to a shard. Returns its name there.
    pub(super) fn put(self, shard: &mut Shard) -> ContextId {
        let Self { device, mut attached } = self;
        let now = shard.now();
        attached.id = device.put(&mut shard.engine, now);
        // An event of it may wait for room in its socket.
        shard.stuck = true;
        let id = attached.id;
        // The old worker has forgotten what had arrived.
        attached.page.wake_sleepers();
        shard.contexts.add(now, attached);
        // A program that still saw the old worker's number, and that worker awake, has written no eventfd.
        shard.take_doorbells(now);
        id
    }

    /// The eventfd that its program writes.
    pub(super) fn wake_fd(&self) -> &OwnedFd {
        &self.attached.wake
    }
}

impl Shard {
    pub(super) fn new(
        config: Config,
        numbers: Numbers,
        arrivals: Arc<[Arrivals]>,
        clock: Clock,
        sockets: Sockets,
    ) -> Self {
        Self {
            engine: Engine::new(config, numbers),
            contexts: Contexts::new(config.shard, arrivals),
            clock,
            sockets,
            stuck: false,
            retry_at: Time::default(),
            mads: None,
        }
    }

    /// The engine, for commands.
    pub fn engine(&mut self) -> &mut Engine<HostPlatform> {
        &mut self.engine
    }

    /// Injects faults into datagrams from the network; none ends them.
    pub fn set_faults(&mut self, faults: Option<Faults>) {
        self.sockets.set_faults(faults);
    }

    /// Sets the table of hosts at the other ends of the tunnel.
    pub(super) fn set_peers(&mut self, table: &Table) {
        self.sockets.set_peers(table);
    }

    /// Sets the receiver of management datagrams; before that they are dropped.
    pub fn set_mad_queue(&mut self, queue: MadQueue) {
        self.mads = Some(queue);
    }

    /// Hands over the management datagrams that the engine has received. Returns whether there were any.
    pub(super) fn pass_mads(&mut self, counters: &MadCounters) -> bool {
        mads::pass(&mut self.engine, self.mads.as_ref(), counters)
    }

    /// Takes the sockets of a namespace into use.
    pub fn add_external(&mut self, plain: Arc<ExternalSockets>) -> io::Result<()> {
        self.sockets.add_external(plain)
    }

    /// Removes the sockets of a namespace, after the final ACKs of connections there (TIME-WAIT).
    pub fn remove_external(&mut self, id: ExternalId) {
        let now = self.now();
        self.sockets.flush(now);
        for _ in 0..LAST_TURNS {
            if self.sockets.is_blocked() || !self.engine.has_final_packets() {
                break;
            }
            self.engine.poll_transmit(now, self.sockets.transmits());
            self.sockets.flush(now);
        }
        self.sockets.remove_external(id);
    }

    /// The engine, the sockets that it is connected to, and the receiver of management datagrams.
    pub(super) fn receiving(&mut self) -> (&mut Engine<HostPlatform>, &mut Sockets, Option<&MadQueue>) {
        (&mut self.engine, &mut self.sockets, self.mads.as_ref())
    }

    /// The engine and the sockets that it is connected to.
    pub(super) fn network(&mut self) -> (&mut Engine<HostPlatform>, &mut Sockets) {
        (&mut self.engine, &mut self.sockets)
    }

    pub(super) fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// The engine's present.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Opens a device. `wake` is the eventfd that the program writes when the worker sleeps, `events` its stream of
    /// asynchronous events.
    pub fn open(&mut self, network: Network, page: ContextPage, wake: OwnedFd, events: EventSocket) -> ContextId {
        let id = self.engine.open(network);
        let now = self.now();
        self.contexts.add(now, Attached::new(id, page, wake, events));
        id
    }

    /// Destroys some queue pairs of a device that is to be closed; none if none is left.
    pub fn close_some(&mut self, id: ContextId) -> Option<DeferredDrop> {
        self.engine.close_some(id)
    }

    /// Closes a device and all that is in it.
    pub fn close(&mut self, id: ContextId) -> Option<DeferredDrop> {
        let remains = self.engine.close(id);
        self.contexts.remove(id);
        remains
    }

    /// Adds a completion channel; returns its number, from 0.
    pub fn add_channel(&mut self, id: ContextId, socket: EventSocket) -> u32 {
        let Some(context) = self.context(id) else { return 0 };
        let channel = context.next_channel;
        context.next_channel = channel.wrapping_add(1);
        context.channels.insert(channel, socket);
        channel
    }

    /// Removes a completion channel.
    pub fn remove_channel(&mut self, id: ContextId, channel: u32) {
        if let Some(context) = self.context(id) {
            context.channels.remove(&channel);
        }
    }

    /// Directs the events of a completion queue.
    pub fn watch_cq(&mut self, id: ContextId, cq: u32, user_handle: u64, channel: Option<u32>) {
        if let Some(context) = self.context(id) {
            context.cqs.insert(cq, Watched { user_handle, channel, ..Watched::default() });
        }
    }

    /// Directs the events of a queue pair.
    pub fn watch_qp(&mut self, id: ContextId, qp: u32, user_handle: u64) {
        if let Some(context) = self.context(id) {
            context.qps.insert(qp, Watched { user_handle, ..Watched::default() });
            context.page.set_qp_state(qp, 0);
        }
    }

    /// Directs the events of a shared receive queue.
    pub fn watch_srq(&mut self, id: ContextId, srq: u32, user_handle: u64) {
        if let Some(context) = self.context(id) {
            context.srqs.insert(srq, Watched { user_handle, ..Watched::default() });
        }
    }

    /// Ends the events of a completion queue; unread ones are taken back. Returns how many completion and asynchronous
    /// events the program has read.
    pub fn unwatch_cq(&mut self, id: ContextId, cq: u32) -> (u32, u32) {
        self.deliver();
        let Some(context) = self.context(id) else { return (0, 0) };
        let Some(watched) = context.cqs.remove(&cq) else { return (0, 0) };
        let channel = watched.channel.and_then(|channel| context.channels.get_mut(&channel));
        let unread = channel.map_or(0, |channel| channel.take_back(watched.user_handle));
        (watched.completions.saturating_sub(unread), context.take_back_events(&watched))
    }

    /// Ends the events of a queue pair. Returns how many the program has read.
    pub fn unwatch_qp(&mut self, id: ContextId, qp: u32) -> u32 {
        self.deliver();
        let Some(context) = self.context(id) else { return 0 };
        context.page.set_qp_state(qp, 0);
        context.qps.remove(&qp).map_or(0, |watched| context.take_back_events(&watched))
    }

    /// Ends the events of a shared receive queue. Returns how many the program has read.
    pub fn unwatch_srq(&mut self, id: ContextId, srq: u32) -> u32 {
        self.deliver();
        let Some(context) = self.context(id) else { return 0 };
        context.srqs.remove(&srq).map_or(0, |watched| context.take_back_events(&watched))
    }

    /// Gives the doorbells that rang to the engine; `now` is not long ago. Returns whether one did.
    pub(super) fn take_doorbells(&mut self, now: Time) -> bool {
        let Self { contexts, engine, .. } = self;
        contexts.take_doorbells(now, |id, qp| engine.doorbell(id, qp))
    }

    /// The same for all contexts, those that are not polled too.
    pub(super) fn take_all_doorbells(&mut self) -> bool {
        let Self { contexts, engine, .. } = self;
        contexts.take_all_doorbells(|id, qp| engine.doorbell(id, qp))
    }

    /// The contexts.
    pub(super) fn contexts(&mut self) -> &mut Contexts {
        &mut self.contexts
    }

    /// The program of a context has written its eventfd.
    pub(super) fn awaken(&mut self, id: ContextId) {
        let now = self.now();
        self.contexts.awaken(now, id);
    }

    /// Sends the engine's packets to the network.
    pub(super) fn transmit(&mut self, now: Time) -> bool {
        let Self { engine, sockets, .. } = self;
        let mut worked = sockets.flush(now);
        for _ in 0..ROUNDS {
            if sockets.is_blocked() || !engine.poll_transmit(now, sockets.transmits()) {
                break;
            }
            sockets.flush(now);
            worked = true;
        }
        worked
    }

    /// Executes the requests that a program has posted to a queue pair, before a command that ends it (see
    /// [`Engine::settle_qp`]). Returns whether other workers have packets of them.
    pub fn settle_qp(&mut self, id: ContextId, qp: u32) -> bool {
        self.settle(id, qp, &mut Budget::of_command())
    }

    /// The same for all queue pairs whose completions go to a queue, before a command that depends on how many it has.
    pub fn settle_cq(&mut self, id: ContextId, cq: u32) -> bool {
        let mut budget = Budget::of_command();
        let qps = self.engine.device(id).map_or_else(|_| Vec::new(), |device| device.qps_of_cq(cq));
        qps.into_iter().fold(false, |is_away, qp| self.settle(id, qp, &mut budget) | is_away)
    }

    /// The same for all queue pairs of a context that is about to be closed.
    pub fn settle_context(&mut self, id: ContextId) -> bool {
        let mut budget = Budget::of_end();
        let qps = self.engine.device(id).map_or_else(|_| Vec::new(), |device| device.qps());
        qps.into_iter().fold(false, |is_away, qp| self.settle(id, qp, &mut budget) | is_away)
    }

    /// The same for the queue pair with a number, if it is one of `endpoint`.
    pub fn settle_number(&mut self, qpn: Qpn, endpoint: u32) -> bool {
        let Some((id, qp)) = self.engine.find_qp(qpn) else { return false };
        let is_own = self.engine.device(id).is_ok_and(|device| device.context().endpoint() == endpoint);
        is_own && self.settle_qp(id, qp)
    }

    fn settle(&mut self, id: ContextId, qp: u32, budget: &mut Budget) -> bool {
        let now = self.now();
        let Self { engine, sockets, .. } = self;
        loop {
            // Packets that could not be sent come first: while they wait, there is no room for others.
            let to = if sockets.is_blocked() { None } else { Some(sockets.transmits()) };
            let has_more = engine.settle_qp(now, id, qp, budget, to);
            sockets.flush(now);
            if !has_more || sockets.is_blocked() {
                return engine.device(id).is_ok_and(|device| device.has_packets_away(qp));
            }
        }
    }

    /// Wakes threads that sleep because they have polled in vain, where something has arrived. Returns how many contexts
    /// had some.
    pub(super) fn wake_sleepers(&mut self) -> usize {
        self.contexts.wake_sleepers()
    }

    /// Sends the engine's events to the programs.
    pub(super) fn deliver(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            let (Event::Completion { context: id, .. }
            | Event::Async { context: id, .. }
            | Event::QpState { context: id, .. }) = event;
            let Some(context) = self.contexts.get_mut(id) else { continue };
            self.stuck |= match event {
                Event::Completion { cq, .. } => context.completion(cq),
                Event::Async { event, element, .. } => context.async_event(event, element),
                Event::QpState { qp, state, .. } => {
                    context.page.set_qp_state(qp, state as u8);
                    false
                }
            };
        }
    }

    /// Tries again, now and then, to send events that found their socket full. Returns whether some still wait.
    pub(super) fn flush_events(&mut self, now: Time) -> bool {
        if self.stuck && now >= self.retry_at {
            self.stuck = false;
            self.retry_at = now.after(RETRY_EVENTS);
            for context in self.contexts.iter_mut() {
                self.stuck |= context.events.flush();
                for channel in context.channels.values_mut() {
                    self.stuck |= channel.flush();
                }
            }
        }
        self.stuck
    }

    /// Whether an event has found its socket full.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    fn context(&mut self, id: ContextId) -> Option<&mut Attached> {
        self.contexts.get_mut(id)
    }
}

/// Number of transmit polls of the engine in one pass.
const ROUNDS: usize = 4;
/// Turns of sending before the sockets of a namespace go: enough for all that may wait.
const LAST_TURNS: usize = 64;
/// Retry interval of an event that found its socket full.
pub(super) const RETRY_EVENTS: Duration = Duration::from_millis(5);

#[cfg(test)]
use {super::events::EventBytes, rdmesh_verbs::AsyncEvent};

#[cfg(test)]
impl Shard {
    /// Queues events for `id` until one finds the socket full; they are about elements 0, 1 and so on. Returns how many.
    pub(super) fn fill_events(&mut self, id: ContextId) -> u64 {
        let context = self.context(id).expect("an open context");
        for element in 0.. {
            context.events.push(EventBytes { element, event_type: Some(AsyncEvent::QpFatal as u32) });
            if context.events.flush() {
                self.stuck = true;
                return element + 1;
            }
        }
        0
    }
}
