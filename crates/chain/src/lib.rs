//! Chains: queues whose work requests modify later work requests, so that a NIC computes without a processor (RedN, NSDI 2022).

#![forbid(unsafe_code)]

pub mod model;
