//! The threads that run the engine.
//!
//! Each worker owns one shard: an engine and the contexts that it serves. It polls their doorbells, runs the engine,
//! exchanges packets with the other workers, and sends events to programs. Nothing of a shard is touched by any other
//! thread: commands are closures that run on the worker between two polls.

mod events;
mod shard;
mod wait;

pub use events::EventSocket;
pub use shard::Shard;
pub use wait::Mode;

use crate::memory::Memory;
use crossbeam_queue::ArrayQueue;
use rdmesh_nic::{Config, Packet, Time};
use rdmesh_uverbs::page::{WORKER_PAGE_LEN, WorkerPage};
use rdmesh_uverbs::shared::SharedMemory;
use rdmesh_verbs::DeviceLimits;
use rustix::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use wait::Waiter;

/// How the workers are set up.
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// How many; 0 for one per four processors.
    pub count: usize,
    /// How they wait.
    pub mode: Mode,
    /// What one context may have.
    pub limits: DeviceLimits,
}

/// All workers of a router. Dropping it ends them.
pub struct Workers {
    shards: Vec<ShardHandle>,
    threads: Vec<JoinHandle<()>>,
}

/// A way to reach one worker.
#[derive(Clone)]
pub struct ShardHandle(Arc<Link>);

/// What other threads share with a worker.
struct Link {
    commands: mpsc::Sender<Command>,
    packets: ArrayQueue<Packet<Memory>>,
    inbox: OwnedFd,
    page: WorkerPage,
    page_fd: OwnedFd,
    stop: AtomicBool,
    counters: Counters,
}

type Command = Box<dyn FnOnce(&mut Shard) -> Box<dyn FnOnce() + Send> + Send>;

#[derive(Default)]
struct Counters {
    polls: AtomicU64,
    busy: AtomicU64,
    sleeps: AtomicU64,
    wakeups: AtomicU64,
    awake_ns: AtomicU64,
    packets: AtomicU64,
}

/// What a worker has done.
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
}

impl Workers {
    /// Starts the workers.
    pub fn start(config: WorkerConfig) -> io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let count = if config.count == 0 { (processors / 4).max(1) } else { config.count };
        let mut links = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..count {
            let (link, receiver) = Link::new()?;
            links.push(Arc::new(link));
            receivers.push(receiver);
        }
        let mut workers = Self { shards: links.iter().cloned().map(ShardHandle).collect(), threads: Vec::new() };
        for (number, commands) in receivers.into_iter().enumerate() {
            let engine = Config { shard: number as u32, shards: count as u32, seed: seed()?, limits: config.limits };
            let waiter = Waiter::new(config.mode, count, links[number].inbox.as_fd())?;
            let worker = Worker {
                shard: Shard::new(engine),
                links: links.clone(),
                number,
                commands,
                waiter,
                awake_since: Time::default(),
            };
            let thread = std::thread::Builder::new().name(format!("rdmesh-worker-{number}"));
            workers.threads.push(thread.spawn(|| worker.run()).map_err(|_| io::Errno::AGAIN)?);
        }
        Ok(workers)
    }

    /// The workers, by number.
    pub fn shards(&self) -> &[ShardHandle] {
        &self.shards
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for shard in &self.shards {
            shard.0.stop.store(true, Ordering::Release);
            wait::notify(&shard.0.inbox);
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl ShardHandle {
    /// Runs `f` on the worker between two polls, and waits for its result. Events that it caused have been sent when this
    /// returns.
    pub fn call<R: Send + 'static>(&self, f: impl FnOnce(&mut Shard) -> R + Send + 'static) -> R {
        let (sender, receiver) = mpsc::sync_channel(1);
        let command: Command = Box::new(move |shard| {
            let result = f(shard);
            Box::new(move || {
                let _ = sender.send(result);
            })
        });
        // The worker ends only after every handle's owner has: then there is nobody to call.
        self.0.commands.send(command).expect("the worker runs as long as the router");
        wait::notify(&self.0.inbox);
        receiver.recv().expect("the worker answers every command")
    }

    /// The worker's page, for programs.
    pub fn page_fd(&self) -> BorrowedFd<'_> {
        self.0.page_fd.as_fd()
    }

    /// What the worker has done.
    pub fn stats(&self) -> WorkerStats {
        let counters = &self.0.counters;
        WorkerStats {
            busy_polls: counters.busy.load(Ordering::Relaxed),
            polls: counters.polls.load(Ordering::Relaxed),
            sleeps: counters.sleeps.load(Ordering::Relaxed),
            wakeups: counters.wakeups.load(Ordering::Relaxed),
            busy_ns: counters.awake_ns.load(Ordering::Relaxed),
            packets: counters.packets.load(Ordering::Relaxed),
        }
    }
}

impl Link {
    fn new() -> io::Result<(Self, mpsc::Receiver<Command>)> {
        let (commands, receiver) = mpsc::channel();
        let (memory, page_fd) = SharedMemory::create_published("rdmesh-worker", WORKER_PAGE_LEN)?;
        let page = WorkerPage::new(memory).ok_or(io::Errno::INVAL)?;
        let link = Self {
            commands,
            packets: ArrayQueue::new(PACKETS),
            inbox: wait::new_eventfd()?,
            page,
            page_fd,
            stop: AtomicBool::new(false),
            counters: Counters::default(),
        };
        Ok((link, receiver))
    }
}

/// A worker thread.
struct Worker {
    shard: Shard,
    links: Vec<Arc<Link>>,
    number: usize,
    commands: mpsc::Receiver<Command>,
    waiter: Waiter,
    awake_since: Time,
}

impl Worker {
    fn run(mut self) {
        let link = self.links[self.number].clone();
        while !link.stop.load(Ordering::Acquire) {
            let worked = self.pass(&link);
            bump(&link.counters.polls);
            if worked {
                bump(&link.counters.busy);
                self.waiter.worked();
            } else if self.waiter.idle() {
                self.sleep(&link);
            }
        }
    }

    /// Looks for work of every kind once, and does it.
    fn pass(&mut self, link: &Link) -> bool {
        let mut worked = self.shard.take_doorbells();
        while let Some(packet) = link.packets.pop() {
            self.shard.engine().handle_packet(packet);
            worked = true;
        }
        let now = self.shard.now();
        worked |= self.shard.engine().poll(now);
        worked |= self.send_packets(link);
        self.shard.deliver();
        self.shard.flush_events(now);
        while let Ok(command) = self.commands.try_recv() {
            self.execute(command);
            worked = true;
        }
        worked
    }

    /// Runs a command. Its result is only told when its events are on their way.
    fn execute(&mut self, command: Command) {
        let known: usize = self.shard.wake_fds().count();
        let answer = command(&mut self.shard);
        for (_, wake) in self.shard.wake_fds().skip(known) {
            // Without it the context is only served while the worker is awake for others.
            if let Err(error) = self.waiter.add(wake) {
                tracing::error!(%error, "cannot watch a context's eventfd: its program may have to wait");
            }
        }
        for wake in self.shard.take_retired() {
            self.waiter.remove(&wake);
        }
        self.shard.deliver();
        answer();
    }

    /// Hands packets to the other workers.
    fn send_packets(&mut self, link: &Link) -> bool {
        let mut sent = false;
        let shards = self.links.len() as u32;
        while let Some(packet) = self.shard.engine().poll_packet() {
            let target = &self.links[packet.shard(shards) as usize];
            let mut next = packet;
            // A full queue empties as fast as the other worker runs; it never waits for this one.
            while let Err(back) = target.packets.push(next) {
                next = back;
                while let Some(packet) = link.packets.pop() {
                    self.shard.engine().handle_packet(packet);
                }
                rustix::thread::sched_yield();
            }
            bump(&link.counters.packets);
            if target.page.is_sleeping() {
                wait::notify(&target.inbox);
            }
            sent = true;
        }
        sent
    }

    fn sleep(&mut self, link: &Link) {
        link.page.set_sleeping(true);
        // What came before the announcement is seen here; what comes after it wakes the worker.
        if !self.shard.has_doorbell() && link.packets.is_empty() {
            let now = self.shard.now();
            let stuck = self.shard.flush_events(now);
            let deadline = self.shard.engine().poll_timeout();
            let limit = deadline.map(|at| Duration::from_nanos(at.0.saturating_sub(now.0)));
            let limit = if stuck { Some(limit.unwrap_or(shard::RETRY_EVENTS).min(shard::RETRY_EVENTS)) } else { limit };
            bump(&link.counters.sleeps);
            add(&link.counters.awake_ns, now.0.saturating_sub(self.awake_since.0));
            if self.waiter.sleep(limit) {
                bump(&link.counters.wakeups);
            }
            self.awake_since = self.shard.now();
        }
        link.page.set_sleeping(false);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use rdmesh_nic::Network;
    use rdmesh_uverbs::page::{CONTEXT_PAGE_LEN, ContextPage};
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{RecvFlags, recv};

    #[test]
    fn a_worker_that_never_sleeps_sends_late_events_too() {
        let config = WorkerConfig { count: 1, mode: Mode::Spin, limits: DeviceLimits::default() };
        let workers = Workers::start(config).unwrap();
        let (events, program) = EventSocket::pair().unwrap();
        let page = ContextPage::new(SharedMemory::create("page", CONTEXT_PAGE_LEN).unwrap().0).unwrap();
        let wake = wait::new_eventfd().unwrap();
        let network = Network { vni: rdmesh_verbs::Vni(1), gids: Vec::new() };
        let sent = workers.shards()[0].call(move |shard| {
            let id = shard.open(network, page, wake, events);
            shard.fill_events(id)
        });
        set_socket_timeout(&program, Timeout::Recv, Some(Duration::from_secs(10))).unwrap();
        for element in 0..sent {
            let mut bytes = [0; 16];
            let (_, len) = recv(&program, &mut bytes, RecvFlags::empty()).expect("every event comes");
            assert_eq!((len, &bytes[..8]), (16, &element.to_ne_bytes()[..]));
        }
    }
}
