//! The per-host daemon, as a library.
//!
//! * [`memory`]: registered tenant memory, as the engine reaches it.
//! * [`worker`]: the threads that run the engine, and the work done on them.

pub mod memory;
pub mod worker;
