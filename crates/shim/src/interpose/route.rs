//! Path translation for functions that take a path.

use crate::place::{self, Device, Last, Place};
use libc::{AT_FDCWD, c_char, c_int};
use rustix::io::Errno;

pub(super) use rdmesh_preload::{Failed, fail};

/// Calls `real` with the translated directory and path, or `device` where they lead to a device.
#[inline]
pub(super) fn route<T: Failed>(
    at: c_int,
    path: *const c_char,
    last: Last,
    real: impl FnOnce(c_int, *const c_char) -> T,
    device: impl FnOnce(Device) -> Result<T, Errno>,
) -> T {
    let done = match place::of(at, path, last) {
        Place::Elsewhere | Place::Above => return real(at, path),
        Place::File(path) | Place::Counter(path) | Place::Outside(path) => return real(AT_FDCWD, path.as_ptr()),
        Place::Device(which) => device(which),
        Place::Failed(errno) => Err(errno),
    };
    done.unwrap_or_else(fail)
}
