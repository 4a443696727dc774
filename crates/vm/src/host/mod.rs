//! Device process of a virtual machine: the host's end of its virtio-vsock device.
//!
//! One process for each virtual machine, because the machine monitor cannot connect to its devices again: the router may restart, this
//! process stays. What a guest sends is checked here before the router sees it: a guest reaches its own memory and its own
//! endpoint, whatever it says.

mod device;
mod memory;
mod monitor;
mod session;
mod streams;
mod tree;

#[doc(hidden)]
pub use device::Trial;
pub use device::{Device, DeviceError};
pub use memory::GuestMemory;
pub use monitor::spawn_bound;
