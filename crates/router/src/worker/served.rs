//! Shard lock of a worker, and inline execution of commands while the worker sleeps.
//!
//! The worker holds the lock while it is awake. It releases it while it sleeps, and, where processors are few, while it yields:
//! then a command need not wait for the worker to run; the thread that issues it executes it.

use super::exchange::Exchange;
use super::shard::{MovingContext, Shard};
use super::wait::Watch;
use crate::routes::SharedRoutes;
use rdmesh_nic::{Budget, ContextId, Time};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

/// A command: what it returns is called when the shard is free again.
pub(super) type Command = Box<dyn FnOnce(&mut Served) -> Box<dyn FnOnce() + Send> + Send>;

/// A shard, and the commands that wait for it.
pub(super) struct Served {
    pub(super) shard: Shard,
    exchange: Exchange,
    commands: mpsc::Receiver<Command>,
    routes: SharedRoutes,
    /// Version of the routes that the engine has.
    version: u64,
    watch: Watch,
    /// Time of the last datagram from the network.
    arrived_at: Option<Time>,
    /// Time of the last pass, and number of passes.
    looked_at: Time,
    passes: u32,
}

impl Served {
    /// Wakes by `watch` when the programs of `shard` ask for it.
    pub(super) fn new(
        shard: Shard,
        exchange: Exchange,
        commands: mpsc::Receiver<Command>,
        routes: SharedRoutes,
        watch: Watch,
    ) -> Self {
        let (arrived_at, looked_at) = (None, Time::default());
        Self { shard, exchange, commands, routes, version: 0, watch, arrived_at, looked_at, passes: 0 }
    }

    /// One pass: looks for work of every kind once, and does it.
    pub(super) fn pass(&mut self) -> bool {
        self.look_at_eventfds();
        self.take_routes();
        let Self { shard, exchange, looked_at, .. } = self;
        // The clock is read once in a pass.
        let mut worked = shard.take_doorbells(*looked_at);
        worked |= exchange.take_packets(shard);
        let now = shard.now();
        *looked_at = now;
        if exchange.receive(shard) {
            self.arrived_at = Some(now);
            worked = true;
        }
        worked |= shard.pass_mads(&exchange.link().counters.mads);
        worked |= shard.engine().poll(now);
        if worked {
            // Before anything is sent: a program that waits can run meanwhile.
            shard.wake_sleepers();
        }
        worked |= exchange.send_packets(shard);
        worked |= shard.transmit(now);
        shard.deliver();
        shard.flush_events(now);
        worked | self.run_commands()
    }

    /// Gives the engine the routes, if they have changed.
    #[inline]
    fn take_routes(&mut self) {
        if let Some(routes) = self.routes.newer(&mut self.version) {
            self.shard.engine().set_routes(routes);
        }
    }

    /// The worker has slept, and the programs of these contexts have written their eventfds.
    pub(super) fn wake_up(&mut self, now: Time, rung: Vec<ContextId>) {
        self.looked_at = now;
        rung.into_iter().for_each(|id| self.shard.contexts().awaken(now, id));
    }

    /// Polls the contexts again whose programs have written their eventfds while the worker was awake. Not in every pass: it
    /// takes a system call.
    fn look_at_eventfds(&mut self) {
        self.passes = self.passes.wrapping_add(1);
        if self.passes.is_multiple_of(LOOK_EVERY) && self.shard.contexts().has_dormant() {
            let Self { shard, watch, .. } = self;
            watch.look(|id| shard.awaken(id));
        }
    }

    /// Whether a datagram has arrived from the network lately. To be called after a pass.
    pub(super) fn serves_network(&mut self) -> bool {
        let lately = self.arrived_at.is_some_and(|at| self.shard.now() < at.after(LATELY));
        if !lately {
            self.arrived_at = None;
        }
        lately
    }

    /// Runs the queued commands. Returns whether they have left work.
    fn run_commands(&mut self) -> bool {
        let mut some = false;
        while let Ok(command) = self.commands.try_recv() {
            let answer = command(self);
            answer();
            self.exchange.link().waiting.fetch_sub(1, Ordering::SeqCst);
            some = true;
        }
        some && self.has_work()
    }

    /// Runs `f` inline, on the calling thread instead of the worker, after the commands that came before it. Returns its
    /// result, and whether the worker has to be woken.
    pub(super) fn run_inline<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> (R, bool) {
        let is_asleep = self.exchange.link().is_sleeping();
        if is_asleep {
            self.shard.network().1.after_sleep();
        }
        let (before, was_stuck) = (self.shard.engine().poll_timeout(), self.shard.is_stuck());
        self.run_commands();
        let result = f(self);
        let after = self.shard.engine().poll_timeout();
        if is_asleep {
            self.shard.sockets().before_sleep();
        }
        // It sleeps to the deadline that there was before.
        let is_earlier = after.is_some_and(|after| before.is_none_or(|before| after < before));
        let is_stuck = self.shard.is_stuck() && !was_stuck;
        (result, is_asleep && (is_earlier || is_stuck || self.has_work()))
    }

    /// The same for requests that a command ends. Returns the numbers of the workers to be called until no packets of these requests are left:
    /// those with the packets, and then this one again, for their replies.
    pub(super) fn settle(&mut self, f: impl FnOnce(&mut Shard) -> bool) -> Vec<usize> {
        if self.change_settled(f) { self.exchange.round() } else { Vec::new() }
    }

    /// Changes the shard after the engine has executed posted requests and received packets: a NIC acts on a doorbell, and on a
    /// packet, long before a command has made its way to it. Packets to other workers that the change itself causes have been
    /// handed over when this returns.
    pub(super) fn change_settled<R>(&mut self, f: impl FnOnce(&mut Shard) -> R) -> R {
        self.take_routes();
        let Self { shard, exchange, .. } = self;
        shard.take_all_doorbells();
        exchange.take_packets(shard);
        self.receive_all();
        let shard = &mut self.shard;
        let now = shard.now();
        shard.engine().poll(now);
        shard.engine().settle_arrivals(now, &mut Budget::of_command());
        shard.transmit(now);
        let result = self.change(f);
        self.exchange.send_packets(&mut self.shard);
        result
    }

    /// Hands packets over to the other workers.
    pub(super) fn send_packets(&mut self) {
        self.exchange.send_packets(&mut self.shard);
    }

    /// Takes packets of the other workers, which wait for turns.
    pub(super) fn take_packets(&mut self) {
        self.exchange.take_packets(&mut self.shard);
    }

    /// Executes packets of the other workers that wait for turns.
    pub(super) fn settle_arrivals(&mut self) {
        let now = self.shard.now();
        self.shard.engine().settle_arrivals(now, &mut Budget::unlimited());
    }

    /// Takes the datagrams that have arrived from the network.
    pub(super) fn receive_all(&mut self) {
        let Self { shard, exchange, .. } = self;
        shard.network().1.look_at_once();
        for _ in 0..RECEIVE_TURNS {
            if !exchange.receive(shard) {
                break;
            }
        }
    }

    /// Takes a context out, which moves to another worker.
    pub(super) fn take_context(&mut self, id: ContextId) -> Option<MovingContext> {
        let context = MovingContext::take(&mut self.shard, id)?;
        self.watch.remove(context.wake_fd());
        Some(context)
    }

    /// Serves a context that was another worker's. Returns its name here.
    pub(super) fn put_context(&mut self, context: MovingContext) -> ContextId {
        self.change(|shard| context.put(shard))
    }

    /// Whether there is work that waits neither for a time nor for room in a socket.
    pub(super) fn has_work(&mut self) -> bool {
        let (engine, sockets) = self.shard.network();
        engine.has_work() || engine.has_to_transmit() && !sockets.is_blocked()
    }

    /// Changes the shard, and tells programs of it.
    pub(super) fn change<R>(&mut self, f: impl FnOnce(&mut Shard) -> R) -> R {
        self.take_routes();
        let result = f(&mut self.shard);
        let Self { shard, watch, .. } = self;
        shard.contexts().watch_new(|id, wake| {
            // Without it the context is only served while the worker is awake for others.
            if let Err(error) = watch.add(id, wake) {
                tracing::error!(%error, "cannot watch a context's eventfd, its program may be served late");
            }
        });
        for wake in shard.contexts().take_retired() {
            watch.remove(&wake);
        }
        self.shard.wake_sleepers();
        self.shard.deliver();
        result
    }
}

/// Passes between two looks at the eventfds of dormant contexts.
const LOOK_EVERY: u32 = 32;
/// Age of the last datagram up to which the worker counts as one that serves the network.
const LATELY: Duration = Duration::from_millis(100);
/// Number of receive calls before a command: enough for more than a full socket.
const RECEIVE_TURNS: usize = 16;
