//! The router's sockets: the engine's datagrams from and to other machines.
//!
//! This module does not interpret datagrams, but it seals those that leave through the tunnel and opens those that arrive
//! there. Workers receive in batches, with segments that the kernel has put together, and hand datagrams to the engine; they
//! take trains of datagrams from it, and send each with one message.
//!
//! * [`Sockets`]: the sockets of one worker.
//! * [`ExternalPaths`]: the sockets in programs' network namespaces.
//! * [`Faults`]: fault injection.
//! * [`fn@probe`]: the check that the kernel supports plain RoCEv2.

mod clock;
mod control;
mod counters;
mod external;
mod faults;
mod forward;
mod outbox;
mod raw;
mod socket;
mod sockets;
mod steering;
mod tunnel;

pub use clock::Clock;
pub use counters::IoStats;
pub use external::{
    ExternalPath, ExternalPathError, ExternalPathWatcher, ExternalPaths, ExternalSockets, Interface, ProbeError, Terms,
    Uplink, probe,
};
pub(crate) use external::{find_interface, open_namespace};
pub use faults::{Burst, Chance, Faults, InvalidFaults};
pub use sockets::Sockets;
pub use tunnel::{Rehearsal, StrangersSeen};

pub(crate) use counters::Counters;
pub(crate) use forward::Mailbox;
pub(crate) use tunnel::{Ends, Sessions, Table, Tunnel, pair_key};

pub use rdmesh_nic::{CongestionControl, LossRecovery, NativeConfig};
use std::net::IpAddr;

/// Network configuration of a router.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoConfig {
    /// This host's address towards the other routers; none where it is the only one.
    pub underlay: Option<IpAddr>,
    /// Whether packets in the tunnel are not authenticated: every sender that uses another host's address is believed.
    pub is_insecure: bool,
    /// Faults to begin with.
    pub faults: Option<Faults>,
    /// Connections to other routers.
    pub native: NativeConfig,
}

#[cfg(test)]
mod tests;
