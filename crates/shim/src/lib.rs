//! `librdmesh.so`: makes the rdmesh device appear inside an unmodified program.
//!
//! Loaded with `LD_PRELOAD`, the library answers the few libc calls through which rdma-core meets a kernel device:
//! it redirects `/dev/infiniband` and `/sys/class/infiniband*` into the endpoint's directory, carries `write()` commands
//! to the router, and rings doorbells in shared memory. Where there is no endpoint it changes nothing.
//!
//! * [`interpose`]: the libc functions that are replaced, and [`real`], the ones behind them.
//! * [`endpoint`], [`place`]: where the endpoint is, and which paths stand for it.
//! * [`descriptors`]: which file descriptors are the device's.
//! * [`session`]: open devices: contexts and channels of the connection manager, commands, doorbells.
//! * [`memory`]: registered memory: pages turned into shared ones, fork, `rdmesh_malloc`.
//! * [`netlink`]: sockets of NETLINK_RDMA, the `rdma` tool's way to devices.
//! * [`sanitizer`], [`valgrind`]: what AddressSanitizer and valgrind are told, under which programs run too.
//! * [`polling`]: yields the processor after empty polls where processors are scarce.
//!
//! Inside the library system calls are made directly (rustix), never through a function that it replaces.

mod descriptors;
mod endpoint;
mod errno;
mod interpose;
mod memory;
mod netlink;
mod place;
mod polling;
mod real;
mod sanitizer;
mod session;
mod start;
mod valgrind;
