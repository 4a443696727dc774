//! Relays: accelerated TCP connections between endpoints, on one host or on two.
//!
//! A process with `librdmesh-sockets.so` knows peers only: processes that share a slot with it ([`rdmesh_streams`]). For a process
//! of another endpoint the endpoint's relay stands in. Each of the two processes shares a slot with its own relay, and the two
//! relays make the slots equal: bytes go from ring to ring as RDMA WRITEs, over a reliable connection that all streams between
//! the two endpoints share (a *trunk*). It is made with the endpoints' own devices and addresses, so that their quotas, rates and
//! security groups hold.
//!
//! * [`server`]: the thread of an endpoint's relay; [`relays`]: the relays of a host.
//! * [`process`], [`stream`], [`trunk`]: what it serves. [`mirror`]: a slot as the copy of another.
//! * [`wire`]: messages between relays.
//! * [`device`]: the endpoint's device, as its programs have it.
//! * [`counters`]: what is counted.
//! * [`trial`]: a mirror between a process and a peer that do not keep to the rules.

mod counters;
mod device;
mod mirror;
mod process;
mod raw;
mod relays;
mod server;
mod stream;
mod trial;
mod trunk;
mod wire;

pub use counters::Totals;
pub use relays::{Relay, Relays};
pub use trial::Trial;
