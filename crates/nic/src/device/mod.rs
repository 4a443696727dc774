//! A device as its program has opened it: its objects, and what the engine gives out for it.

mod context;
mod cq;
mod held;
mod inbox;
mod ingress;
mod output;
mod slab;
mod srq;

pub use context::Context;
pub(crate) use held::{HeldBytes, HeldCharge};
pub use output::{AccessCounters, Event};
pub(crate) use output::{Outputs, Recovery};
pub(crate) use slab::Slab;
