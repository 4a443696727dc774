//! Workers: the threads that run the engine.
//!
//! Each worker serves one shard: an engine and its contexts. It polls their doorbells, runs the engine, exchanges packets
//! with the other workers, and sends events to programs. Commands are closures that run between two polls: on the worker,
//! or, while it sleeps or has yielded, on the thread that has the command.
//!
//! * `workers`, `tunnels`: start and end of all workers; the tunnel's keys.
//! * `handle`: commands from other threads.
//! * `run`, `wait`, `spin_limit`, `contention`, `mode`: the polling loop, and when it sleeps.
//! * `contexts`, `attached`, `arrivals`: the contexts, which of them are polled, and where something has arrived.
//! * `served`, `shard`, `events`, `mads`: one pass; the engine, its contexts, and what goes to programs and to rdma_cm.
//! * `moving`: moves of contexts from one worker to another.
//! * `common`, `link`, `exchange`, `stats`: what a worker shares with others.

mod arrivals;
mod attached;
mod common;
mod contention;
mod contexts;
mod events;
mod exchange;
mod handle;
mod link;
mod mads;
mod mode;
mod moving;
mod run;
mod served;
mod shard;
mod spin_limit;
mod stats;
#[cfg(test)]
mod tests;
mod tunnels;
mod wait;
mod workers;

pub use events::EventSocket;
pub use handle::ShardHandle;
pub use mads::MadQueue;
pub use mode::Mode;
pub use shard::Shard;
pub(crate) use spin_limit::SpinLimit;
pub use stats::WorkerStats;
pub use workers::{StartError, WorkerConfig, Workers};
