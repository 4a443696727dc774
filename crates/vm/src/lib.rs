//! Virtual machines: how a program in a guest uses the device of an endpoint of the host.
//!
//! ```text
//!  guest   program ── librdmesh.so ── Unix socket ── agent (rdmesh-guest) ── vsock ──┐
//!                 └── rings, context page, registered memory: pages of the guest     │
//!  host    router ── Unix socket ─────────────────── device process (rdmesh vm) ─────┘
//! ```
//!
//! The library in the guest is the host's own. To it, the [agent](guest) is the router. The agent pins what the program shares, finds
//! the guest-physical addresses of its pages, and sends both over a vsock stream of its own for each connection. The
//! [device process](host), one for each virtual machine, is the other end of the guest's virtio-vsock device: it turns guest-physical
//! addresses into offsets in the memfd that is the guest's memory, and is an ordinary program to the router. The router maps that
//! memfd, and reads and writes the guest's buffers in place.

mod closing;
pub mod guest;
pub mod host;
pub mod wire;
