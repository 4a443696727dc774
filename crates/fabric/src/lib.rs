//! The control vocabulary of rdmesh: what exists, where it is kept, and how programs talk to a router about it.
//!
//! * [`Network`], [`Endpoint`], [`Quota`], [`Name`]: the things themselves.
//! * [`store`]: where they are kept, with revisions, leases and watches; embedded on one host.
//! * [`Registry`]: the rules (who may have which name and address) over a store.
//! * [`api`] and [`Client`]: a router's HTTP+JSON API on a Unix socket.

#![forbid(unsafe_code)]

pub mod api;
mod client;
mod endpoint;
mod name;
mod network;
mod quota;
mod registry;
mod state;
pub mod store;

pub use client::{Client, ClientError};
pub use endpoint::{Endpoint, Isolation};
pub use name::{InvalidName, Name};
pub use network::{DEFAULT_NETWORK, Network};
pub use quota::Quota;
pub use registry::{EndpointRequest, Registry, RegistryError};
pub use state::{API_SOCKET, ENDPOINT_MOUNT, StateDir};
