//! Interposed libc functions.
//!
//! Each passes calls that do not concern the device on, after one cheap test.
//!
//! * [`route`]: path translation.
//! * [`files`]: functions that open a path, ask for access to it, or read it as a link.
//! * [`stats`]: the `stat` family; [`attributes`]: other queries of a path.
//! * [`cwd`]: the working directory.
//! * [`limits`]: the limit on locked memory.
//! * [`listing`], [`walks`], [`fts`]: directories, and functions that walk a tree.
//! * [`calls`]: functions that take a descriptor, and `fork`.
//! * [`sockets`]: functions of sockets.
//! * [`waits`]: functions that wait.
//! * [`transfers`]: reads and writes of parts, and at a place of a file; [`short`]: those that were cut short.
//! * [`raw`]: `syscall`, `_Fork` and `clone`.

mod attributes;
mod calls;
mod cwd;
mod files;
mod fts;
mod limits;
mod listing;
mod raw;
mod route;
mod short;
mod sockets;
mod stats;
mod transfers;
mod waits;
mod walks;

use rdmesh_preload::replace;
