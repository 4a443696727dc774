//! `librdmesh-sockets.so`: TCP connections between programs of one host, over shared memory.
//!
//! The library is preloaded into unmodified programs. Their TCP connections stay the kernel's; where both ends have the library,
//! bytes move to rings in shared memory and back, and no program can tell but by the speed. What a ring cannot do exactly as TCP
//! does is done by TCP.
//!
//! * [`interpose`]: the libc functions that are replaced.
//! * [`table`]: which of the program's descriptors are of interest.
//! * [`stream`]: a connection, its two directions, and its moves between TCP and rings.
//! * [`epoll`], [`poll`]: waiting for many descriptors.
//! * [`process`]: this process among others: inboxes, links, the agent; [`registry`]: how they find each other.
//! * [`wake`], [`spin`]: doorbells that are rung late, and polling before a sleep.

mod address;
mod epoll;
mod fork;
mod interpose;
mod kernel;
mod lock;
mod numbered;
mod poll;
mod process;
mod registry;
mod signals;
mod spin;
mod start;
mod stream;
mod table;
mod wake;
