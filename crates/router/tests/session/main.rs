//! Session tests: a client that speaks the socket's messages, without the preload library.

#![allow(clippy::unwrap_used, reason = "all of this is tests")]

mod chain_attacks;
mod chains;
mod client;
mod closing;
mod commands;
mod counters;
mod ending;
mod fairness;
mod guests;
mod hostile;
mod leases;
mod netlink;
mod rings;
mod traffic;
mod world;
