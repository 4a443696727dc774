//! Handles of workers: commands that run between two polls, on the worker or, while it sleeps or has yielded, on the thread
//! that has the command.

use super::common::Common;
use super::contention::Contention;
use super::link::Link;
use super::served::{Command, Served};
use super::shard::Shard;
use super::stats::WorkerStats;
use super::wait;
use crate::routes::SharedRoutes;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, mpsc};

/// Handle of one worker.
#[derive(Clone)]
pub struct ShardHandle {
    /// Of all workers.
    desks: Arc<[Desk]>,
    number: usize,
}

/// A worker, and what waits for it.
pub(super) struct Desk {
    pub(super) link: Arc<Link>,
    /// The shard that the worker serves, as long as it runs.
    served: Mutex<Option<Served>>,
    commands: mpsc::Sender<Command>,
    common: Arc<Common>,
}

/// The shard, locked.
pub(super) type Serving<'a> = MutexGuard<'a, Option<Served>>;

impl ShardHandle {
    /// Runs `f` between two polls of the worker, and waits for its result. Events that it caused have been sent when this
    /// returns.
    pub fn call<R: Send + 'static>(&self, f: impl FnOnce(&mut Shard) -> R + Send + 'static) -> R {
        self.run(|served| served.change(f))
    }

    /// Makes the engine execute requests that had been posted and packets that had arrived; then runs `f`, which returns
    /// whether other workers have packets of its work. If so, this returns when they have handled them, and `f` has continued
    /// with their replies.
    pub fn settle(&self, f: impl Fn(&mut Shard) -> bool + Clone + Send + 'static) {
        for _ in 0..SETTLE_ROUNDS {
            let f = f.clone();
            let others = self.run(|served| served.settle(f));
            if others.is_empty() {
                break;
            }
            let other = |number| Self { desks: Arc::clone(&self.desks), number };
            others.into_iter().for_each(|number| other(number).call_settled(|_| ()));
        }
    }

    /// Like [`ShardHandle::call`], after the engine has executed requests that had been posted and packets that had arrived.
    pub fn call_settled<R: Send + 'static>(&self, f: impl FnOnce(&mut Shard) -> R + Send + 'static) -> R {
        self.run(|served| served.change_settled(f))
    }

    /// Like [`ShardHandle::call`], for callers that may outlive the worker: none where it has ended.
    pub(crate) fn try_call<R: Send + 'static>(&self, f: impl FnOnce(&mut Shard) -> R + Send + 'static) -> Option<R> {
        self.try_run(|served| served.change(f))
    }

    fn run<R: Send + 'static>(&self, f: impl FnOnce(&mut Served) -> R + Send + 'static) -> R {
        // The worker ends only after the owners of all handles, so no caller is left.
        self.try_run(f).expect("the worker runs as long as the router")
    }

    fn try_run<R: Send + 'static>(&self, f: impl FnOnce(&mut Served) -> R + Send + 'static) -> Option<R> {
        let standing_in = match self.desk().served.try_lock() {
            Err(TryLockError::Poisoned(_)) => panic!("the worker has failed"),
            Err(TryLockError::WouldBlock) => None,
            Ok(guard) => Some(guard),
        };
        if let Some(mut guard) = standing_in
            && let Some(served) = guard.as_mut()
        {
            let (result, must_wake) = served.run_inline(f);
            drop(guard);
            if must_wake {
                wait::notify(&self.desk().link.inbox);
            }
            return Some(result);
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let command: Command = Box::new(move |served| {
            let result = f(served);
            Box::new(move || {
                let _ = sender.send(result);
            })
        });
        let was_awake = self.desk().send(command).ok()?;
        // One that is awake answers sooner than this thread could fall asleep and wake up again.
        for _ in 0..if was_awake { SPINS } else { 0 } {
            match receiver.try_recv() {
                Ok(result) => return Some(result),
                Err(_) => std::hint::spin_loop(),
            }
        }
        receiver.recv().ok()
    }

    /// Runs `f` on the worker between two polls, some time soon.
    pub fn post(&self, f: impl FnOnce(&mut Shard) + Send + 'static) {
        let command: Command = Box::new(move |served| {
            served.change(f);
            Box::new(|| {})
        });
        // The worker ends only when the router does: then it matters no more.
        let _ = self.desk().send(command);
    }

    /// The routes to the addresses of tenant networks, of all workers. A command, and a datagram that arrives, finds what was
    /// changed before it.
    pub fn routes(&self) -> &SharedRoutes {
        self.desk().common.routes()
    }

    /// Whether other programs want the processors.
    pub(crate) fn contention(&self) -> Arc<Contention> {
        Arc::clone(self.desk().common.contention())
    }

    /// Flags of all workers, for programs.
    pub fn flags_fd(&self) -> BorrowedFd<'_> {
        self.desk().common.flags_fd()
    }

    /// The worker's number.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Handles of all workers, by number.
    pub(super) fn all(&self) -> Vec<Self> {
        (0..self.desks.len()).map(|number| Self { desks: Arc::clone(&self.desks), number }).collect()
    }

    /// The worker's counters.
    pub fn stats(&self) -> WorkerStats {
        let link = &self.desk().link;
        link.counters.read(link.io.read())
    }

    /// State that the worker shares with other threads.
    pub(super) fn desk(&self) -> &Desk {
        &self.desks[self.number]
    }
}

impl Desk {
    /// That of the worker with this link, which takes commands from the other end of `commands`.
    pub(super) fn new(link: Arc<Link>, commands: mpsc::Sender<Command>, common: Arc<Common>) -> Self {
        Self { link, served: Mutex::default(), commands, common }
    }

    /// State that all workers share.
    pub(super) fn common(&self) -> &Common {
        &self.common
    }

    /// Handles of all workers.
    pub(super) fn handles(desks: Vec<Self>) -> Vec<ShardHandle> {
        let desks: Arc<[Self]> = desks.into();
        (0..desks.len()).map(|number| ShardHandle { desks: Arc::clone(&desks), number }).collect()
    }

    /// Queues a command, and wakes the worker where it sleeps. Returns whether it was awake.
    pub(super) fn send(&self, command: Command) -> Result<bool, mpsc::SendError<Command>> {
        self.link.waiting.fetch_add(1, Ordering::SeqCst);
        self.commands.send(command)?;
        let is_sleeping = self.link.is_sleeping();
        if is_sleeping {
            wait::notify(&self.link.inbox);
        }
        Ok(!is_sleeping)
    }

    /// Yields the shard to a thread that runs commands inline: mostly for less time than it takes to fall asleep and wake up.
    pub(super) fn serve_again(&self) -> Serving<'_> {
        for _ in 0..YIELDS {
            if let Ok(guard) = self.served.try_lock() {
                return guard;
            }
            rustix::thread::sched_yield();
        }
        self.serve()
    }

    /// Waits for a thread that runs a command inline.
    pub(super) fn serve(&self) -> Serving<'_> {
        self.served.lock().expect("no command fails")
    }

    /// The end of the worker: its shard goes, since no caller waits for an answer any more.
    pub(super) fn close(&self) {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Spin limit: how often a caller looks for the answer before it sleeps.
const SPINS: u32 = 200;
/// Number of packet exchanges between two workers that a command waits for: for all that a queue pair has on its way.
const SETTLE_ROUNDS: usize = 4;
/// Yield limit: how often the worker yields to a thread that runs inline before it sleeps.
const YIELDS: u32 = 50;
