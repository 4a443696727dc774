//! Endpoint directories: the device's socket, its sysfs tree and the preload library.

mod counters;
mod directory;
mod gids;
mod library;
pub(crate) mod lids;
mod sysfs;

pub(crate) use counters::{counter, hw_counters};
pub use directory::{EndpointDir, EndpointError};
pub use gids::{GID_TABLE_LEN, gid_table};
pub use library::{Library, LibraryError};

/// Name of the device; rdma-core takes what begins with `rxe` for its software provider's.
pub const DEVICE_NAME: &str = "rxe0";
