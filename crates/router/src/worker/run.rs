//! The polling loop of a worker.

use super::handle::{Desk, Serving, ShardHandle};
use super::shard::{self, Shard};
use super::stats::{add, bump};
use super::wait::Waiter;
use rdmesh_nic::Time;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A worker thread.
pub(super) struct Worker {
    handle: ShardHandle,
    waiter: Waiter,
    awake_since: Time,
}

impl Worker {
    /// The worker that `handle` is of.
    pub(super) fn new(handle: ShardHandle, waiter: Waiter) -> Self {
        Self { handle, waiter, awake_since: Time::default() }
    }

    /// Serves its shard until it is stopped.
    pub(super) fn run(mut self) {
        let handle = self.handle.clone();
        let (desk, link) = (handle.desk(), &handle.desk().link);
        let _end = End(desk);
        let mut guard = desk.serve();
        while !link.stop.load(Ordering::Acquire) {
            let Some(served) = guard.as_mut() else { break };
            let worked = served.pass();
            bump(&link.counters.polls);
            if worked {
                bump(&link.counters.busy);
                self.waiter.worked();
                continue;
            }
            let serves_network = served.serves_network();
            let is_tired = if self.waiter.yields() {
                // The thread that gets the processor may have a command.
                drop(guard);
                let is_tired = self.waiter.idle(serves_network);
                guard = desk.serve_again();
                is_tired
            } else {
                self.waiter.idle(serves_network)
            };
            if is_tired {
                guard = self.sleep(desk, guard);
            }
        }
    }

    /// Sleeps, while other threads may run commands inline, unless there is work after all.
    fn sleep<'a>(&mut self, desk: &'a Desk, mut guard: Serving<'a>) -> Serving<'a> {
        let link = &desk.link;
        let Some(served) = guard.as_mut() else { return guard };
        link.set_sleeping(true);
        // Packets that came before the announcement are seen here; later ones wake the worker.
        let is_quiet = link.packets.is_empty() && link.mailbox.is_empty() && link.waiting.load(Ordering::SeqCst) == 0;
        let is_quiet = is_quiet && served.shard.contexts().rest_guests();
        if is_quiet && !served.has_work() && !served.shard.contexts().has_doorbell() {
            let now = served.shard.now();
            let limit = sleep_limit(&mut served.shard, now);
            bump(&link.counters.sleeps);
            add(&link.counters.awake_ns, now.0.saturating_sub(self.awake_since.0));
            served.shard.sockets().before_sleep();
            drop(guard);
            let mut rung = Vec::new();
            let was_woken = self.waiter.sleep(limit, |id| rung.push(id));
            guard = desk.serve();
            let Some(served) = guard.as_mut() else { return guard };
            if was_woken {
                bump(&link.counters.wakeups);
            }
            served.shard.network().1.after_sleep();
            self.awake_since = served.shard.now();
            served.wake_up(self.awake_since, rung);
        }
        link.set_sleeping(false);
        guard
    }
}

/// The end of a worker.
struct End<'a>(&'a Desk);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Time until the next deadline, if nothing happens before.
fn sleep_limit(shard: &mut Shard, now: Time) -> Option<Duration> {
    let stuck = shard.flush_events(now).then_some(shard::RETRY_EVENTS);
    let (engine, sockets) = shard.network();
    let deadline = [engine.poll_timeout(), sockets.deadline()].into_iter().flatten().min();
    let limit = deadline.map(|at| Duration::from_nanos(at.0.saturating_sub(now.0)));
    [stuck, limit].into_iter().flatten().min()
}
