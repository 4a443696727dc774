//! Chains of programs: the C API of `rdmesh_chain.h`, its examples, and their clients, on one host and between two.

mod header;
mod offloads;
mod queues;
mod services;
mod wanted;
