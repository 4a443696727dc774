//! The router as a host's part of the mesh: everything but its API.

mod access;
mod capture;
mod cluster;
mod config;
mod endpoints;
mod error;
mod faults;
mod full_name;
mod host;
mod identity;
mod instance;
mod interfaces;
mod keyring;
mod keys;
mod mesh;
mod owners;
mod peers;
mod policies;
mod probes;
mod records;
mod restore;

pub use capture::Captures;
pub use cluster::SharedStore;
pub use config::{DaemonConfig, LocalPath};
pub use endpoints::Endpoints;
pub use error::HostError;
pub use faults::FaultControl;
pub use host::Host;
pub(crate) use instance::Instance;
pub use instance::InstanceError;
pub use interfaces::Interfaces;
pub use keys::TunnelKeys;
pub use peers::PeerHosts;
pub use records::Records;

// What a host tells of itself is in terms of its parts.
pub use crate::io::{Faults, IoStats};
pub use crate::session::{
    BadIndices, ChainError, ChainRow, CmTotals, ConnectionInfo, ContextInfo, FailedRequestInfo, HeldEndpoint,
    HeldTimes, MoveError, QpRow, QueueRow, SessionServer, SessionTotals, StepRow,
};
pub use crate::worker::WorkerStats;
