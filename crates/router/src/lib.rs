//! The per-host daemon, as a library.
//!
//! * [`api`]: HTTP and JSON on a Unix socket.
//! * [`budget`]: the router's resources, and each endpoint's share of them.
//! * `cm`: rdma_cm, the names and events of connections.
//! * [`daemon`]: a host's endpoints, peers and keys.
//! * [`disposal`]: unmapping and closing, on threads that serve no program.
//! * [`endpoint`]: an endpoint's directory: socket, sysfs tree, preload library.
//! * `errands`: threads for jobs that take long.
//! * [`events`]: the latest events, for who asks.
//! * [`io`]: the sockets through which the engine reaches other machines.
//! * [`memory`]: registered tenant memory, as the engine reaches it.
//! * `netlink`: messages of NETLINK_RDMA.
//! * [`process`]: the router as a process.
//! * [`routes`]: the host's routes, which all parts share.
//! * [`session`]: the control path between tenants and the engine.
//! * `turns`: round robin over groups.
//! * [`worker`]: the threads that run the engine, and the work done on them.

pub mod api;
pub mod budget;
mod cm;
pub mod daemon;
pub mod disposal;
pub mod endpoint;
mod errands;
pub mod events;
pub mod io;
pub mod memory;
mod netlink;
pub mod process;
pub mod routes;
pub mod session;
mod turns;
pub mod worker;
