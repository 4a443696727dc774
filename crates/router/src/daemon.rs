//! The router as a host's part of the mesh: everything but its API.

mod capture;
mod config;
mod error;
mod host;
mod instance;
mod keyring;
mod keys;
mod mesh;
mod owners;
mod peers;
mod restore;

pub use capture::Captures;
pub use config::{DaemonConfig, LocalPath};
pub use error::HostError;
pub use host::Host;
pub(crate) use instance::Instance;
pub use instance::InstanceError;

// What a host tells of itself is in terms of its parts.
pub use crate::io::{Faults, IoStats};
pub use crate::session::{BadIndices, CmTotals, ConnectionInfo, ContextInfo, FailedRequestInfo, QpRow, SessionTotals};
pub use crate::worker::WorkerStats;
