//! Devices that outlive their programs, and processes that take them over.
//!
//! * [`taken`]: a device that was taken over; [`api`]: the functions of `rdmesh_linger.h`.

mod api;
mod taken;
