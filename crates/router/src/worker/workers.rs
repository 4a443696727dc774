//! Start and end of all workers.

use super::arrivals::Arrivals;
use super::common::Common;
use super::contention::Probe;
use super::exchange::Exchange;
use super::handle::{Desk, ShardHandle};
use super::link::Link;
use super::mode::Mode;
use super::run::Worker;
use super::served::Served;
use super::shard::Shard;
use super::wait::{self, Waiter};
use crate::io::{self as net, Clock, Ends, Faults, IoConfig, Sessions, Sockets, Tunnel};
use rdmesh_nic::{Config, Numbers, TUNNEL_PORT};
use rdmesh_verbs::DeviceLimits;
use rustix::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

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
    pub(super) shards: Vec<ShardHandle>,
    threads: Vec<JoinHandle<()>>,
    /// With the routers of other hosts; none where there is no tunnel, or an insecure one.
    pub(super) sessions: Option<Sessions>,
    _probe: Probe,
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
        let count = count.min(Numbers::MAX_SHARDS as usize);
        let common = Arc::new(Common::new(seed()?)?);
        let link = |number| Link::new(number as u32, count, common.flags().clone()).map(Arc::new);
        let links = (0..count).map(link).collect::<io::Result<Vec<_>>>()?;
        let clock = net::Clock::start();
        let (sessions, tunnels) = open_tunnels(&config.io, count, clock)?;
        let numbers = numbers(count as u32, seed()? as u32, &tunnels);
        let mut tunnels = tunnels.into_iter();
        let contention = common.contention();
        let probe = Probe::start(contention.clone())?;
        let (senders, receivers): (Vec<_>, Vec<_>) = links.iter().map(|_| mpsc::channel()).unzip();
        let desk = |(link, sender): (&Arc<Link>, _)| Desk::new(Arc::clone(link), sender, Arc::clone(&common));
        let shards = Desk::handles(links.iter().zip(senders).map(desk).collect());
        let links: Arc<[Arc<Link>]> = links.into();
        let arrivals: Arc<[Arrivals]> = links.iter().map(|_| Arrivals::new()).collect();
        let mut workers = Self { shards, threads: Vec::new(), sessions, _probe: probe };
        for (number, commands) in receivers.into_iter().enumerate() {
            let (shard, seed, native) = (number as u32, seed()?, config.io.native);
            let engine = Config { shard, seed, limits: config.limits, native };
            let waiter = Waiter::new(config.mode, count, links[number].inbox.as_fd(), contention.clone())?;
            let mut sockets = Sockets::new(number, clock, tunnels.next(), links[number].io.clone())?;
            sockets.set_faults(config.io.faults);
            waiter.watch().add_level(sockets.poll_fd())?;
            let mut shard = Shard::new(engine, numbers.clone(), arrivals.clone(), clock, sockets);
            shard.engine().set_tunnel_sealed(workers.sessions.is_some());
            let exchange = Exchange::new(Arc::clone(&links), number, numbers.clone());
            let served = Served::new(shard, exchange, commands, common.routes().clone(), waiter.watch());
            let handle = workers.shards[number].clone();
            *handle.desk().serve() = Some(served);
            let worker = Worker::new(handle, waiter);
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
            let link = &shard.desk().link;
            link.stop.store(true, Ordering::Release);
            wait::notify(&link.inbox);
        }
        for thread in self.threads.drain(..) {
            // A panic of the worker has been reported already.
            let _ = thread.join();
        }
    }
}

/// The table of the queue pairs of so many workers, whose first number is left to `chance`. The kernel steers by it.
fn numbers(workers: u32, chance: u32, tunnels: &[Tunnel]) -> Numbers {
    match Tunnel::steer(tunnels) {
        Some(steering) => Numbers::watched(workers, chance, move |qpn, worker| steering.set(qpn, worker)),
        None => Numbers::from_anywhere(workers, chance),
    }
}

/// Opens the tunnel's ends of so many workers, and starts the thread that keeps its sessions.
fn open_tunnels(
    config: &IoConfig,
    workers: usize,
    clock: Clock,
) -> Result<(Option<Sessions>, Vec<Tunnel>), StartError> {
    let Some(underlay) = config.underlay else { return Ok((None, Vec::new())) };
    let failed = |source| StartError::Tunnel { underlay, source };
    let sessions = (!config.is_insecure).then(|| Sessions::start(underlay, workers, clock)).transpose();
    let sessions = sessions.map_err(failed)?;
    let tunnels =
        Tunnel::open(underlay, Ends { workers, lanes: config.native.lanes }, sessions.as_ref()).map_err(failed)?;
    Ok((sessions, tunnels))
}

fn seed() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
