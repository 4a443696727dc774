//! Endpoint directories: the device's socket, its sysfs tree and the preload library.

mod counters;
mod device;
mod directory;
mod gids;
mod library;
pub(crate) mod lids;
mod sysfs;

pub(crate) use counters::{counter, hw_counters};
pub(crate) use device::PORT;
pub use device::{DEVICE_NAME, EndpointId};
pub use directory::{EndpointDir, EndpointError, Listeners};
pub use gids::{GID_TABLE_LEN, gid_table};
pub use library::{Library, LibraryError};
pub use rdmesh_uverbs::session::{LIBRARY_NAME, MPI_LIBRARY_NAME, SOCKETS_LIBRARY_NAME};
