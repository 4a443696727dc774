//! The NIC: every rule of RDMA, and no I/O.
//!
//! An [`Engine`] is one shard of a host's virtual NIC. It owns protection domains, memory keys, completion queues and
//! queue pairs; it is told of commands, doorbells, packets and the time, and it is asked for packets, events and the
//! next deadline. It reads no clock, opens no socket, starts no thread, and touches tenant memory only through the
//! [`platform`] traits. The same engine runs in the router, in tests and under the fuzzer. Commands go to a [`Device`], which
//! the engine gives out for as long as a command takes.
//!
//! There is no standard library here; the feature `std` only lets the check sum of packets use what the processor has.
//!
//! ```text
//!   commands, doorbells ──►┌────────┐──► completions (into CompletionQueue)
//!   handle_packet       ──►│ Engine │──► poll_packet   (towards this or another shard)
//!   poll(now)           ──►└────────┘──► poll_transmit (datagrams), poll_event, poll_timeout
//! ```
//!
//! After input a driver calls [`Engine::poll`], then takes `poll_transmit`, `poll_packet` and `poll_event` until they are empty,
//! and begins again as long as `poll` says that there is more; then it waits for input, or for `poll_timeout`.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod capture;
mod chain;
pub mod cm;
mod command;
mod congestion;
mod device;
mod engine;
mod exec;
mod memory;
mod numbers;
mod packet;
mod path;
pub mod platform;
pub mod policy;
mod qp;
mod schedule;
mod seeded;
mod timer;
mod transport;
pub mod wire;

pub use capture::{CaptureFilter, Captured, Captures};
pub use chain::{
    ChainEntry, ChainFault, ChainQueue, ChainSlot, ChainState, ChainWait, Executed, INLINE_COPIES, Image, Manage,
    ManageSend, RingInit, TRACE_BYTES,
};
pub use command::{
    Capabilities, CommandError, CongestionState, ContextId, CqEntry, CqInit, DeferredDrop, LaneCounts, MwType, PdEntry,
    QpCounters, QpEntry, QpInfo, QpInit, SrqAttr, SrqEntry, SrqInit,
};
pub use congestion::CongestionControl;
pub use device::{Context, Event};
pub use engine::{
    AccessCounters, Budget, Config, Device, Engine, MadError, MovingDevice, Owners, PathProbes, ProbeError, ProbeReply,
    ProbeRequest, ProbeState, ReceivedMad, RingRegion, WireCounters,
};
pub use numbers::Numbers;
pub use packet::Packet;
pub use path::{
    AccessRules, ClassRules, Datagram, ExternalId, ExternalPort, Form, Grant, Lane, LossRecovery, NativeConfig,
    Network, Opened, Origin, Path, Peers, ROCE_PORT, Route, Routes, TUNNEL_PORT, Target, Train, Transmits,
};
pub use timer::Time;
pub use transport::{LEAST_SILENCE, MOST_LANES};
