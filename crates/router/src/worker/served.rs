//! What a worker serves, and who else may when the worker does not.
//!
//! The worker holds the lock while it is awake. It lets go while it sleeps, and, where processors are few, while it
//! yields: then a command need not wait for the worker to run, but is executed by whoever has it.

use super::wait::Watch;
use super::{Command, Link};
use crate::worker::Shard;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

/// A shard, and what waits to be done with it.
pub(super) struct Served {
    pub(super) shard: Shard,
    commands: mpsc::Receiver<Command>,
    watch: Watch,
}

impl Served {
    /// Wakes by `watch` when the programs of `shard` ask for it.
    pub(super) fn new(shard: Shard, commands: mpsc::Receiver<Command>, watch: Watch) -> Self {
        Self { shard, commands, watch }
    }

    /// Runs the commands that wait. Returns whether they have left something to do.
    pub(super) fn run_commands(&mut self, link: &Link) -> bool {
        let mut some = false;
        while let Ok(command) = self.commands.try_recv() {
            self.change(|shard| command(shard))();
            link.waiting.fetch_sub(1, Ordering::SeqCst);
            some = true;
        }
        some && self.has_work()
    }

    /// Runs `f` in place of the worker, after the commands that came before it. Returns its result, and whether the worker
    /// has to be woken.
    pub(super) fn stand_in<R>(&mut self, link: &Link, f: impl FnOnce(&mut Shard) -> R) -> (R, bool) {
        let is_asleep = link.page.is_sleeping();
        if is_asleep {
            self.shard.network().1.after_sleep();
        }
        let (before, was_stuck) = (self.shard.engine().poll_timeout(), self.shard.is_stuck());
        self.run_commands(link);
        let result = self.change(f);
        let after = self.shard.engine().poll_timeout();
        if is_asleep {
            self.shard.sockets().before_sleep();
        }
        // It sleeps to the deadline that there was before.
        let is_earlier = after.is_some_and(|after| before.is_none_or(|before| after < before));
        let is_stuck = self.shard.is_stuck() && !was_stuck;
        (result, is_asleep && (is_earlier || is_stuck || self.has_work()))
    }

    /// Whether something waits that need not wait for a time, or for room in a socket.
    pub(super) fn has_work(&mut self) -> bool {
        let (engine, sockets) = self.shard.network();
        engine.has_work() || engine.has_to_transmit() && !sockets.is_blocked()
    }

    /// Changes the shard, and tells programs of it.
    fn change<R>(&mut self, f: impl FnOnce(&mut Shard) -> R) -> R {
        let known: usize = self.shard.wake_fds().count();
        let result = f(&mut self.shard);
        for (_, wake) in self.shard.wake_fds().skip(known) {
            // Without it the context is only served while the worker is awake for others.
            if let Err(error) = self.watch.add(wake) {
                tracing::error!(%error, "cannot watch a context's eventfd: its program may have to wait");
            }
        }
        for wake in self.shard.take_retired() {
            self.watch.remove(&wake);
        }
        self.shard.deliver();
        result
    }
}
