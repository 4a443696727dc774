//! Control vocabulary of rdmesh: networks, endpoints and hosts, the store that keeps them, and the client of a router's API.
//!
//! * [`Network`], [`Endpoint`], [`Host`], [`Quota`], [`Name`]: the things themselves.
//! * [`Peers`]: what an operator says of the other hosts.
//! * [`store`]: where they are kept, with revisions, leases and watches; embedded on one host.
//! * [`Registry`]: the rules (who may have which name and address) over a store; [`Topology`]: a copy of what it holds.
//! * [`StateDir`]: a router's files, and whose they may be; [`printable`]: others' text, for the terminal.
//! * [`api`] and [`Client`]: a router's HTTP+JSON API on a Unix socket.

#![forbid(unsafe_code)]

pub mod api;
mod client;
mod endpoint;
mod host;
mod key;
mod name;
mod network;
mod peers;
mod quota;
mod registry;
mod state;
pub mod store;
mod text;
mod topology;

pub use client::{Client, ClientError};
pub use endpoint::{Endpoint, Isolation};
pub use host::Host;
pub use key::{KeyError, TunnelKey, read_secret};
pub use name::{InvalidName, Name};
pub use network::{DEFAULT_NETWORK, Network};
pub use peers::{Peer, PeerEndpoint, Peers, PeersError, PeersFileError};
pub use quota::Quota;
pub use registry::{Added, EndpointRequest, Owner, Registry, RegistryError};
pub use state::{API_SOCKET, ENDPOINT_MOUNT, KEYS, LOCK, LOG, StateDir, StateError};
pub use text::{printable, printable_lines};
pub use topology::{Topology, TopologyWatch};
