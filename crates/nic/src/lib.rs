//! The NIC: every rule of RDMA, and no I/O.
//!
//! An [`Engine`] is one shard of a host's virtual NIC. It owns protection domains, memory keys, completion queues and
//! queue pairs; it is told of commands, doorbells, packets and the time, and it is asked for packets, events and the
//! next deadline. It reads no clock, opens no socket, starts no thread, and touches tenant memory only through the
//! [`platform`] traits. The same engine runs in the router, in tests and under the fuzzer.
//!
//! ```text
//!   commands, doorbells ──►┌────────┐──► completions (into CompletionQueue)
//!   handle_packet       ──►│ Engine │──► poll_packet   (towards this or another shard)
//!   handle_timeout(now) ──►└────────┘──► poll_event, poll_timeout
//! ```

#![forbid(unsafe_code)]

mod capture;
pub mod cm;
mod command;
mod congestion;
mod engine;
mod memory;
mod net;
pub mod platform;
mod roce;
mod schedule;
mod time;
mod timer;
pub mod wire;

pub use capture::{CaptureFilter, Captured};
pub use command::{
    Capabilities, CommandError, ContextId, CqInit, MwType, Network, Path, QpCounters, QpInfo, QpInit, Remains, SrqAttr,
    SrqInit,
};
pub use engine::{
    Budget, Config, CqEntry, Engine, Event, MadError, Owners, Packet, PdEntry, QpEntry, ReceivedMad, SrqEntry,
    WireCounters,
};
pub use net::{Datagram, Origin, Plain, PlainId, ROCE_PORT, Route, Routes, TUNNEL_PORT, Target, Train, Transmits};
pub use time::Time;
