//! Deterministic simulation of hosts around the NIC engine.
//!
//! One thread, virtual time, one seed. The hosts run the real [`rdmesh_nic::Engine`]; memory, queues, programs, links and
//! everything that goes wrong with them are simulated. A model that knows the requests that each program posted checks every
//! single effect that an engine has on memory and queues, as it happens.
//!
//! * [`plan`]: the faults and workload of a seed.
//! * [`world`]: hosts, links and programs at work.
//! * [`model`]: the reference model and its properties.
//! * [`endings`]: requests that were posted before a queue pair ends.
//! * [`golden`]: throughput under loss.
//! * [`paths`]: throughput over several paths.
//! * [`sharing`]: connections that share a link, by congestion control.
//! * [`schedules`]: every order of the packets of a short exchange.

pub mod chance;
pub mod coverage;
pub mod endings;
pub mod golden;
pub mod layout;
pub mod link;
pub mod model;
pub mod paths;
pub mod plan;
pub mod platform;
mod run;
pub mod schedules;
pub mod sharing;
pub mod trace;
pub mod world;

pub use run::{Failure, Outcome, run_many, run_seed};
