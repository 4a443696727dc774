//! Replaced libc functions.
//!
//! Each passes on what does not concern a stream, after one look at a table.
//!
//! * [`data`]: functions that carry bytes.
//! * [`connections`]: connections that begin, and options of them.
//! * [`descriptors`]: descriptors that are closed and duplicated.
//! * [`readiness`]: functions that wait for many descriptors.
//! * [`programs`]: other programs that inherit descriptors.
//! * [`raw`]: the function `syscall`.

mod connections;
mod data;
mod descriptors;
mod programs;
mod raw;
mod readiness;

pub(crate) use rdmesh_preload::replace;
