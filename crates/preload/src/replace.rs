//! Definition of replaced libc functions.

use crate::errno;
use libc::c_int;
use rustix::io::Errno;

/// Defines functions under their C names; in unit tests under Rust's, so that the tests run on plain libc.
///
/// Variadic functions are defined with the arguments that they can have: the calling conventions of the supported machines pass
/// both alike. Many are cancellation points, where a cancelled thread unwinds.
#[macro_export]
macro_rules! replace {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block)*) => {$(
        $(#[$meta])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        extern "C-unwind" fn $name($($arg: $ty),*) -> $ret $body
    )*};
}

/// The value of a call that fails, with `errno` set.
pub fn fail<T: Failed>(errno: Errno) -> T {
    errno::set(errno);
    T::FAILED
}

/// Return value of a failed function.
pub trait Failed {
    /// The value.
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

impl<T> Failed for *mut T {
    const FAILED: Self = std::ptr::null_mut();
}
