//! Workers: the threads that run the engine.
//!
//! Each worker serves one shard: an engine and its contexts. It polls their doorbells, runs the engine, exchanges packets
//! with the other workers, and sends events to programs. Commands are closures that run between two polls: on the worker,
//! or, while it sleeps or has yielded, on the thread that has the command (see [`served`]).

mod contention;
mod events;
mod exchange;
mod mads;
mod patience;
mod served;
mod shard;
mod tunnels;
mod wait;

pub(crate) use contention::Contention;
pub use events::EventSocket;
pub use mads::MadSink;
pub(crate) use patience::Patience;
pub use shard::Shard;
pub use wait::Mode;

use crate::io::{self as net, Faults, IoConfig, IoStats, Mailbox, Sessions, Sockets};
use crate::memory::Memory;
use contention::Probe;
use crossbeam_queue::ArrayQueue;
use exchange::Exchange;
use mads::MadCounters;
use rdmesh_nic::{Config, Packet, Routes, TUNNEL_PORT, Time};
use rdmesh_uverbs::page::{WORKER_PAGE_LEN, WorkerPage};
use rdmesh_uverbs::shared::SharedMemory;
use rdmesh_verbs::DeviceLimits;
use rustix::io;
use served::Served;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use wait::Waiter;

/// Configuration of the workers.
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// Number of workers; 0 for one per four processors.
    pub count: usize,
    /// Waiting strategy.
    pub mode: Mode,
    /// Limits of one context.
    pub limits: DeviceLimits,
    /// The network.
    pub io: IoConfig,
}

/// All workers of a router. Dropping it ends them.
pub struct Workers {
    shards: Vec<ShardHandle>,
    threads: Vec<JoinHandle<()>>,
    /// With the routers of other hosts; none where there is no tunnel, or an insecure one.
    sessions: Option<Sessions>,
    _probe: Probe,
}

/// Handle of one worker.
#[derive(Clone)]
pub struct ShardHandle(Arc<Link>, Arc<Contention>);

/// State that other threads share with a worker.
struct Link {
    /// The shard that the worker serves, as long as it runs.
    served: Mutex<Option<Served>>,
    commands: mpsc::Sender<Command>,
    /// Commands sent, or about to be, and not executed.
    waiting: AtomicUsize,
    packets: ArrayQueue<Packet<Memory>>,
    /// Datagrams that other workers received.
    mailbox: Mailbox,
    inbox: OwnedFd,
    page: WorkerPage,
    page_fd: OwnedFd,
    stop: AtomicBool,
    /// The routes that the engine has.
    routes: Mutex<Arc<Routes>>,
    counters: Counters,
    io: Arc<net::Counters>,
}

type Command = Box<dyn FnOnce(&mut Served) -> Box<dyn FnOnce() + Send> + Send>;

#[derive(Default)]
struct Counters {
    polls: AtomicU64,
    busy: AtomicU64,
    sleeps: AtomicU64,
    wakeups: AtomicU64,
    awake_ns: AtomicU64,
    packets: AtomicU64,
    mads: MadCounters,
}

/// Counters of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerStats {
    /// Passes over the doorbells while there was work.
    pub busy_polls: u64,
    /// All passes.
    pub polls: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Times it was woken, rather than having slept its time.
    pub wakeups: u64,
    /// Nanoseconds that it was awake, up to its last sleep.
    pub busy_ns: u64,
    /// Packets sent to other workers.
    pub packets: u64,
    /// Management datagrams handed to the session thread.
    pub mads: u64,
    /// Management datagrams that were not, for want of room.
    pub mads_dropped: u64,
    /// Its sockets.
    pub io: IoStats,
}

/// Error of starting the workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StartError {
    /// Threads, memory, descriptors.
    #[error("starting the workers: {0}")]
    Resources(#[from] io::Errno),
    /// The address towards other routers.
    #[error("UDP port {TUNNEL_PORT} of the underlay address {underlay}: {source}")]
    Tunnel {
        /// That address.
        underlay: IpAddr,
        /// The cause.
        source: io::Errno,
    },
}

impl Workers {
    /// Starts the workers.
    pub fn start(config: WorkerConfig) -> Result<Self, StartError> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let count = if config.count == 0 { (processors / 4).max(1) } else { config.count };
        let mut links = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..count {
            let (link, receiver) = Link::new(count)?;
            links.push(Arc::new(link));
            receivers.push(receiver);
        }
        let clock = net::Clock::start();
        let (sessions, tunnels) = tunnels::open(&config.io, count, clock)?;
        let mut tunnels = tunnels.into_iter();
        let all: Arc<[Arc<Link>]> = links.clone().into();
        let contention = Contention::new(links.iter().map(|link| link.page.clone()).collect());
        let shards = links.iter().map(|link| ShardHandle(link.clone(), contention.clone())).collect();
        let probe = Probe::start(contention.clone())?;
        let mut workers = Self { shards, threads: Vec::new(), sessions, _probe: probe };
        for (number, commands) in receivers.into_iter().enumerate() {
            let engine = Config { shard: number as u32, shards: count as u32, seed: seed()?, limits: config.limits };
            let waiter = Waiter::new(config.mode, count, links[number].inbox.as_fd(), contention.clone())?;
            let mut sockets = Sockets::new(number, clock, tunnels.next(), links[number].io.clone())?;
            sockets.set_faults(config.io.faults);
            waiter.watch().add_level(sockets.poll_fd())?;
            let mut shard = Shard::new(engine, clock, sockets);
            shard.engine().set_tunnel_sealed(workers.sessions.is_some());
            let exchange = Exchange::new(Arc::clone(&all), number);
            let served = Served::new(shard, exchange, commands, waiter.watch());
            *links[number].serve() = Some(served);
            let worker = Worker { link: Arc::clone(&links[number]), waiter, awake_since: Time::default() };
            let thread = std::thread::Builder::new().name(format!("rdmesh-worker-{number}"));
            workers.threads.push(thread.spawn(|| worker.run()).map_err(|_| io::Errno::AGAIN)?);
        }
        Ok(workers)
    }

    /// The workers, by number.
    pub fn shards(&self) -> &[ShardHandle] {
        &self.shards
    }

    /// Injects faults into datagrams from the network, from now on; none ends them.
    pub fn set_faults(&self, faults: Option<Faults>) {
        for shard in &self.shards {
            shard.call(move |shard| shard.set_faults(faults));
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for shard in &self.shards {
            shard.0.stop.store(true, Ordering::Release);
            wait::notify(&shard.0.inbox);
        }
        for thread in self.threads.drain(..) {
            // A panic of the worker has been reported already.
            let _ = thread.join();
        }
    }
}

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
            others.into_iter().for_each(|other| Self(other, Arc::clone(&self.1)).call_settled(|_| ()));
        }
    }

    /// Like [`ShardHandle::call`], after the engine has executed requests that had been posted and packets that had arrived.
    pub fn call_settled<R: Send + 'static>(&self, f: impl FnOnce(&mut Shard) -> R + Send + 'static) -> R {
        self.run(|served| served.change_settled(f))
    }

    fn run<R: Send + 'static>(&self, f: impl FnOnce(&mut Served) -> R + Send + 'static) -> R {
        let standing_in = match self.0.served.try_lock() {
            Err(TryLockError::Poisoned(_)) => panic!("the worker has failed"),
            Err(TryLockError::WouldBlock) => None,
            Ok(guard) => Some(guard),
        };
        if let Some(mut guard) = standing_in
            && let Some(served) = guard.as_mut()
        {
            let (result, must_wake) = served.stand_in(f);
            drop(guard);
            if must_wake {
                wait::notify(&self.0.inbox);
            }
            return result;
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let command: Command = Box::new(move |served| {
            let result = f(served);
            Box::new(move || {
                let _ = sender.send(result);
            })
        });
        // The worker ends only after the owners of all handles, so no caller is left.
        let was_awake = self.0.send(command).expect("the worker runs as long as the router");
        // One that is awake answers sooner than this thread could fall asleep and wake up again.
        for _ in 0..if was_awake { SPINS } else { 0 } {
            match receiver.try_recv() {
                Ok(result) => return result,
                Err(_) => std::hint::spin_loop(),
            }
        }
        receiver.recv().expect("the worker answers every command")
    }

    /// Runs `f` on the worker between two polls, some time soon.
    pub fn post(&self, f: impl FnOnce(&mut Shard) + Send + 'static) {
        let command: Command = Box::new(move |served| {
            served.change(f);
            Box::new(|| {})
        });
        // The worker ends only when the router does: then it matters no more.
        let _ = self.0.send(command);
    }

    /// Sets the routes to the addresses of tenant networks.
    pub fn set_routes(&self, routes: Arc<Routes>) {
        *self.0.routes() = Arc::clone(&routes);
        self.call(move |shard| shard.engine().set_routes(routes));
    }

    /// The routes to the addresses of tenant networks that the worker has.
    pub fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.0.routes())
    }

    /// Whether other programs want the processors.
    pub(crate) fn contention(&self) -> Arc<Contention> {
        self.1.clone()
    }

    /// The worker's page, for programs.
    pub fn page_fd(&self) -> BorrowedFd<'_> {
        self.0.page_fd.as_fd()
    }

    /// The worker's counters.
    pub fn stats(&self) -> WorkerStats {
        let counters = &self.0.counters;
        WorkerStats {
            busy_polls: counters.busy.load(Ordering::Relaxed),
            polls: counters.polls.load(Ordering::Relaxed),
            sleeps: counters.sleeps.load(Ordering::Relaxed),
            wakeups: counters.wakeups.load(Ordering::Relaxed),
            busy_ns: counters.awake_ns.load(Ordering::Relaxed),
            packets: counters.packets.load(Ordering::Relaxed),
            mads: counters.mads.passed.load(Ordering::Relaxed),
            mads_dropped: counters.mads.dropped.load(Ordering::Relaxed),
            io: self.0.io.read(),
        }
    }
}

impl Link {
    /// One of `workers`.
    fn new(workers: usize) -> io::Result<(Self, mpsc::Receiver<Command>)> {
        let (commands, receiver) = mpsc::channel();
        let (memory, page_fd) = SharedMemory::create_published("rdmesh-worker", WORKER_PAGE_LEN)?;
        let page = WorkerPage::new(memory).ok_or(io::Errno::INVAL)?;
        let link = Self {
            served: Mutex::default(),
            commands,
            waiting: AtomicUsize::new(0),
            packets: ArrayQueue::new(PACKETS),
            // A worker alone gets all its datagrams itself.
            mailbox: Mailbox::new(if workers > 1 { DATAGRAMS } else { 0 }),
            inbox: wait::new_eventfd()?,
            page,
            page_fd,
            stop: AtomicBool::new(false),
            routes: Mutex::default(),
            counters: Counters::default(),
            io: Arc::default(),
        };
        Ok((link, receiver))
    }

    /// Queues a command, and wakes the worker where it sleeps. Returns whether it was awake.
    fn send(&self, command: Command) -> Result<bool, mpsc::SendError<Command>> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.commands.send(command)?;
        let is_sleeping = self.page.is_sleeping();
        if is_sleeping {
            wait::notify(&self.inbox);
        }
        Ok(!is_sleeping)
    }

    /// Yields the shard to a thread that runs commands inline: mostly for less time than it takes to fall asleep and wake up.
    fn serve_again(&self) -> Serving<'_> {
        for _ in 0..YIELDS {
            if let Ok(guard) = self.served.try_lock() {
                return guard;
            }
            rustix::thread::sched_yield();
        }
        self.serve()
    }

    /// Waits for a thread that runs a command inline.
    fn serve(&self) -> Serving<'_> {
        self.served.lock().expect("no command fails")
    }

    fn routes(&self) -> MutexGuard<'_, Arc<Routes>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker thread.
struct Worker {
    link: Arc<Link>,
    waiter: Waiter,
    awake_since: Time,
}

impl Worker {
    fn run(mut self) {
        let link = Arc::clone(&self.link);
        let _end = End(&link);
        let mut guard = link.serve();
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
                guard = link.serve_again();
                is_tired
            } else {
                self.waiter.idle(serves_network)
            };
            if is_tired {
                guard = self.sleep(&link, guard);
            }
        }
    }

    /// Sleeps, while other threads may run commands inline, unless there is work after all.
    fn sleep<'a>(&mut self, link: &'a Link, mut guard: Serving<'a>) -> Serving<'a> {
        let Some(served) = guard.as_mut() else { return guard };
        link.page.set_sleeping(true);
        // Packets that came before the announcement are seen here; later ones wake the worker.
        let is_quiet = link.packets.is_empty() && link.mailbox.is_empty() && link.waiting.load(Ordering::SeqCst) == 0;
        if is_quiet && !served.has_work() && !served.shard.has_doorbell() {
            let now = served.shard.now();
            let limit = sleep_limit(&mut served.shard, now);
            bump(&link.counters.sleeps);
            add(&link.counters.awake_ns, now.0.saturating_sub(self.awake_since.0));
            served.shard.sockets().before_sleep();
            drop(guard);
            let was_woken = self.waiter.sleep(limit);
            guard = link.serve();
            let Some(served) = guard.as_mut() else { return guard };
            if was_woken {
                bump(&link.counters.wakeups);
            }
            served.shard.network().1.after_sleep();
            self.awake_since = served.shard.now();
        }
        link.page.set_sleeping(false);
        guard
    }
}

/// When the worker ends, its shard goes with it: no caller waits for an answer any more.
struct End<'a>(&'a Link);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.served.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

type Serving<'a> = MutexGuard<'a, Option<Served>>;

/// Time until the next deadline, if nothing happens before.
fn sleep_limit(shard: &mut Shard, now: Time) -> Option<Duration> {
    let stuck = shard.flush_events(now).then_some(shard::RETRY_EVENTS);
    let (engine, sockets) = shard.network();
    let deadline = [engine.poll_timeout(), sockets.deadline()].into_iter().flatten().min();
    let limit = deadline.map(|at| Duration::from_nanos(at.0.saturating_sub(now.0)));
    [stuck, limit].into_iter().flatten().min()
}

fn bump(counter: &AtomicU64) {
    add(counter, 1);
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

fn seed() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Packets that may wait for a worker.
const PACKETS: usize = 1024;
/// Datagrams that may.
const DATAGRAMS: usize = 256;
/// Spin limit: how often a caller looks for the answer before it sleeps.
const SPINS: u32 = 200;
/// Number of packet exchanges between two workers that a command waits for: for all that a queue pair has on its way.
const SETTLE_ROUNDS: usize = 4;
/// Yield limit: how often the worker yields to a thread that runs inline before it sleeps.
const YIELDS: u32 = 50;

#[cfg(test)]
mod tests;
