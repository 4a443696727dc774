//! `librdmesh.so`: makes the rdmesh device appear inside an unmodified program.
//!
//! Loaded with `LD_PRELOAD`, the library answers the few libc calls through which rdma-core meets a kernel device:
//! it redirects `/dev/infiniband` and `/sys/class/infiniband*` into the endpoint's directory, carries `write()` commands
//! to the router, and rings doorbells in shared memory. Where there is no endpoint it changes nothing.
//!
//! * [`interpose`]: the libc functions that are replaced.
//! * [`place`]: the paths that lead to the endpoint's directory.
//! * [`descriptors`]: table of the devices' descriptors; [`polled`]: what threads that poll look at of a device.
//! * [`session`]: open devices: contexts and channels of the connection manager, commands, doorbells.
//! * [`linger`]: leases, by which devices outlive their programs, and devices that were taken over.
//! * [`memory`]: registered memory: conversion of private pages into shared ones, fork, `rdmesh_malloc`.
//! * [`chain`]: the chain API, which programs call; [`libibverbs`]: the objects that it works on.
//! * [`netlink`]: sockets of NETLINK_RDMA, the `rdma` tool's way to devices.
//! * [`sanitizer`], [`valgrind`]: support for programs under AddressSanitizer and valgrind.
//! * [`polling`]: yields the processor after empty polls where processors are scarce.
//!
//! The base that it shares with other preload libraries is `rdmesh-preload`. Inside the library system calls are made directly (rustix),
//! never through a function that it replaces.

mod chain;
mod descriptors;
mod interpose;
mod libibverbs;
mod linger;
mod memory;
mod netlink;
mod place;
mod polled;
mod polling;
mod sanitizer;
mod session;
mod start;
mod valgrind;

use rdmesh_preload::{endpoint, errno, real};
