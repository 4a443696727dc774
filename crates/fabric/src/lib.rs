//! Control vocabulary of rdmesh: networks, endpoints and hosts, the store that keeps them, and the client of a router's API.
//!
//! * [`Network`], [`Endpoint`], [`Host`], [`Quota`], [`Name`]: the objects.
//! * [`Peers`]: the operator's list of the other hosts.
//! * [`store`]: the key-value store, with revisions, leases and watches; embedded on one host.
//! * [`Registry`]: the rules for names and addresses, over a store; [`Topology`]: a copy of its contents.
//! * [`StateDir`]: a router's files and their ownership checks; [`printable`]: escaped text for the terminal.
//! * [`api`] and [`Client`]: a router's HTTP+JSON API on a Unix socket.

#![forbid(unsafe_code)]

pub mod api;
mod client;
mod endpoint;
mod host;
mod interface;
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
pub use interface::{InterfaceName, InvalidInterfaceName};
pub use key::{KeyError, TunnelKey, read_secret};
pub use name::{InvalidName, Name};
pub use network::{DEFAULT_NETWORK, Network};
pub use peers::{Peer, PeerEndpoint, Peers, PeersError, PeersFileError};
pub use quota::Quota;
pub use registry::{Added, EndpointRequest, Owner, Registry, RegistryError};
pub use state::{API_SOCKET, ENDPOINT_MOUNT, KEYS, LOCK, LOG, StateDir, StateError};
pub use text::{printable, printable_lines};
pub use topology::{Topology, TopologyWatch};
