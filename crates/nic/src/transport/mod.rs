//! Transports: the ways in which a queue pair reaches its peer.
//!
//! * [`local`]: both on this host; datagrams to other hosts too.
//! * [`roce`]: over the network, with a reliable or unreliable connection; [`native`]: what of it differs between two routers of
//!   this kind.
//! * [`qp`]: a queue pair on its transport: everything that the engine asks of it; [`admission`]: packets that it takes.

mod admission;
pub(crate) mod local;
mod native;
mod qp;
pub(crate) mod roce;

pub use native::MOST_LANES;
pub(crate) use qp::{Env, Qp};
pub use roce::LEAST_SILENCE;

use alloc::boxed::Box;

/// Transport of a queue pair, with its state.
pub(crate) enum Transport<M> {
    /// Within the host; datagrams also go to other hosts.
    Local(local::State<M>),
    /// Connected to a queue pair on another host.
    Roce(Box<roce::Connection>),
}
