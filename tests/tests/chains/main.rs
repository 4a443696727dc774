//! Chains of programs: the C API of `rdmesh_chain.h`, its examples, and their clients, on one host and between two; devices
//! that outlive their programs.

mod header;
mod kv;
mod linger;
mod offloads;
mod queues;
mod services;
mod wanted;
