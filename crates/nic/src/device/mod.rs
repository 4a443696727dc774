//! A device as its program has opened it: its objects, and what the engine gives out for it.

mod context;
mod cq;
mod inbox;
mod output;
mod slab;
mod srq;

pub use context::Context;
pub use output::Event;
pub(crate) use output::Outputs;
pub(crate) use slab::Slab;
