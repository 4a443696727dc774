//! A device as its program has opened it: its objects, and what the engine gives out for it.

mod context;
mod inbox;
mod output;
mod slab;

pub(crate) use context::{Ah, Context, Cq, Pd, Srq};
pub use output::Event;
pub(crate) use output::Outputs;
pub(crate) use slab::Slab;
