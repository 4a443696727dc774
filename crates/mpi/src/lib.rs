//! `librdmesh-mpi.so`: large messages of unmodified MPI programs, read by RDMA from the sender's buffer into the receiver's.
//!
//! The library is preloaded into every rank of a job. A small message stays MPI's own. In the place of a large one MPI carries an
//! [`announcement`], by the same communicator, tag and destination, so that matching, order and wildcards stay MPI's own; the
//! receiver reads the data from where the program has it, and tells the sender (VMPI; "rendezvous" in MPI's terms).
//!
//! * [`interpose`]: the MPI functions that are intercepted; [`library`]: those behind them; [`abi`]: what differs between MPIs.
//! * [`job`]: the messages and the other ranks; [`rank`]: this process as one of them, and how it waits; [`helper`]: its thread.
//! * [`verbs`]: the RDMA device; [`cache`]: registered memory; [`memory`]: copies by address.
//! * [`control`]: the way to the launcher and to other ranks; [`launcher`]: its other end, [`launch`]: its start; [`report`]: how messages went.

pub mod abi;
mod announcement;
mod cache;
pub mod control;
mod helper;
mod interpose;
mod job;
pub mod launch;
pub mod launcher;
mod library;
mod memory;
mod rank;
pub mod report;
mod settings;
mod verbs;

pub use settings::{CACHE_ENV, DEVICE_ENV, THRESHOLD_ENV};
