//! Chains: queues whose work requests modify later work requests, so that a NIC computes without a processor (RedN, NSDI 2022).
//!
//! A chain is a program of work requests: a request of a client's is scattered straight into them, COMPARE_SWAPs turn NOPs
//! into the operations that answer it, and the server's processor has no part in it. The first chain answers whether a number
//! is the one that lies in memory:
//!
//! ```
//! use rdmesh_chain::build::{Design, Program, U56, send_imm};
//! use rdmesh_chain::model::{Fetch, Model, Schedule};
//!
//! let mut p = Program::new("guess");
//! let secret = p.table("secret", 8);
//! let guess = p.arg::<U56>("guess");
//! let right = p.declare("right", send_imm(1));
//! let wrong = p.declare("wrong", send_imm(0));
//! p.on_request();
//! p.read(secret.at(0)).into([right.operand()]);
//! p.when(right.operand().eq(guess)).run(right).otherwise(wrong).done();
//! p.rearm();
//! let chain = p.lower(Design::Local);
//! println!("{chain}{}", chain.cost());
//!
//! let mut nic = Model::new(Fetch::Earliest);
//! let client = nic.create_client();
//! let installed = chain.install(&mut nic, Some(client));
//! nic.bytes_mut(installed.regions[secret.number()])[0] = 42;
//! nic.send(installed.receives[0], vec![42, 0, 0, 0, 0, 0, 0]);
//! assert!(nic.run(Schedule::First, 1000));
//! assert_eq!(nic.take_messages(client)[0].imm, Some(1));
//! ```
//!
//! * [`build`] makes chains by label and field; it knows what must be ordered.
//! * [`program`] has them as queues of labelled requests, with their listing and their cost.
//! * [`assemble`] reads a listing back.
//! * [`verify`] refuses what could go wrong, by the label of the first cause.
//! * [`offload`] has services: hash get, list walk, locks, counters.
//! * [`model`] is the reference interpreter: what a chain means.

#![forbid(unsafe_code)]

mod access;
pub mod assemble;
pub mod build;
mod explain;
mod image;
mod install;
mod instances;
mod listing;
pub mod model;
pub mod offload;
pub mod program;
mod renumber;
pub mod verify;

pub use image::SealedSlot;
pub use install::{Installed, Site};

/// The tutorial's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorials/chains.md")]
struct Tutorial;
