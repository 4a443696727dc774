//! Control vocabulary of rdmesh: networks, endpoints and hosts, the store that keeps them, and the client of a router's API.
//!
//! * [`Tenant`], [`Network`], [`Endpoint`], [`Host`], [`SecurityGroup`] with its [`Rule`]s, [`Policy`], [`Quota`], [`Name`]: the objects; [`Validate`]: their rules.
//! * [`Peers`]: the operator's list of the other hosts.
//! * [`store`]: the key-value store, with revisions, leases and watches; embedded on one host.
//! * [`cluster`]: the records that the hosts of a cluster share.
//! * [`Registry`]: the rules for names and addresses, over a store; [`Topology`]: a copy of its contents.
//! * [`StateDir`]: a router's files and their ownership checks; [`printable`]: escaped text for the terminal.
//! * [`api`] and [`Client`]: a router's HTTP+JSON API on a Unix socket.

#![forbid(unsafe_code)]

pub mod api;
mod client;
pub mod cluster;
mod endpoint;
mod group;
mod host;
mod interface;
mod invalid;
mod key;
mod labels;
mod name;
mod network;
mod peers;
mod policy;
mod pool;
mod quota;
mod registry;
mod state;
pub mod store;
mod tenant;
mod text;
mod topology;

pub use client::{Client, ClientError, Connect, Stream};
pub use endpoint::{Endpoint, Isolation};
pub use group::{Counterpart, Groups, InvalidRule, NetworkGroups, Rule, SecurityGroup};
pub use host::{Capabilities, Host};
pub use interface::{InterfaceName, InvalidInterfaceName};
pub use invalid::{InvalidField, Validate};
pub use key::{KeyError, PublicKey, Rotated, TunnelKey, read_secret};
pub use labels::{InvalidLabels, Labels, POD, POD_NAMESPACE};
pub use name::{InvalidName, Name, short_hash};
pub use network::{DEFAULT_NETWORK, Network};
pub use peers::{Peer, PeerEndpoint, Peers, PeersError, PeersFileError};
pub use policy::{EffectivePolicy, InvalidScope, Policy, PolicyScope, PolicyTree, Priority, Rate};
pub use pool::{Pool, PoolMember};
pub use quota::Quota;
pub use registry::{Acquisition, Added, EndpointRequest, JoinPool, Owner, Registry, RegistryError};
pub use state::{API_SOCKET, ENDPOINT_MOUNT, IDENTITY, KEYS, LOCK, LOG, StateDir, StateError, mounted_libraries};
pub use tenant::{DEFAULT_TENANT, Tenant, default_tenant};
pub use text::{printable, printable_lines};
pub use topology::{Topology, TopologyWatch};
