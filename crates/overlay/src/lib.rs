//! Network namespaces of the host's endpoints, joined by one bridge per tenant network.
//!
//! Each tenant network of the host has a namespace of its own that holds nothing but a bridge; each endpoint has one
//! with `lo` and an interface `eth0`, or as it was called, whose other end is a port of that bridge. Where there are other hosts, a VXLAN device is another
//! port. Where the endpoints of those are is known before a frame is sent: the bridge answers for them. Nothing is ever added to the host's own namespace, so networks
//! with the same addresses do not meet.
//!
//! * [`Overlay`]: makes and removes all of this.
//! * [`Underlay`]: this host's place on the network between the hosts.
//! * [`Firewall`]: rules that keep others from sending as this host.
//! * [`Guarded`]: an endpoint whose IP a network's bridge filters, as security groups say.
//! * [`NamespaceId`]: finds the processes in a network namespace.
//! * [`Sandbox`]: moves a program that is about to start into an endpoint.
//! * [`Confinement`]: holds programs that share a network namespace to their endpoint's addresses.
//! * [`GuestNetwork`]: gives an endpoint's addresses to a virtual machine.
//! * [`Errors`]: of operations that are all tried.
//! * [`MacAddress`]: the link-layer address that goes with an address.

#![forbid(unsafe_code)]

mod bridge;
mod confine;
mod errors;
mod filter;
mod firewall;
mod forwarding;
mod guest;
mod link;
mod mac;
mod namespace;
mod netlink;
mod overlay;
mod sandbox;
mod streams;
mod underlay;

pub use confine::{ConfineError, Confinement, ControlGroup, check_confinement};
pub use errors::Errors;
pub use filter::{Allowed, Guarded};
pub use firewall::{Firewall, FirewallError};
pub use guest::GuestNetwork;
pub use mac::MacAddress;
pub use namespace::{NamespaceId, in_namespace};
pub use overlay::{Overlay, OverlayError};
pub use sandbox::{Sandbox, SandboxError};
pub use streams::has_undelivered;
pub use underlay::{Underlay, UnderlayError};
