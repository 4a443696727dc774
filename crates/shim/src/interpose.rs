//! Interposed libc functions.
//!
//! Each passes calls that do not concern the device on, after one cheap test. Variadic functions are defined with the arguments
//! that they can have: the calling conventions of the supported machines pass both alike. Many are cancellation points, where a
//! cancelled thread unwinds.
//!
//! * [`route`]: path translation.
//! * [`files`]: functions that open a path, ask for access to it, or read it as a link.
//! * [`stats`]: the `stat` family; [`attributes`]: other queries of a path.
//! * [`cwd`]: the working directory.
//! * [`limits`]: the limit on locked memory.
//! * [`listing`], [`walks`], [`fts`]: directories, and functions that walk a tree.
//! * [`calls`]: functions that take a descriptor, and `fork`.
//! * [`sockets`]: functions of sockets.
//! * [`waits`]: functions that wait.
//! * [`raw`]: `syscall`, `_Fork` and `clone`.

mod attributes;
mod calls;
mod cwd;
mod files;
mod fts;
mod limits;
mod listing;
mod raw;
mod route;
mod sockets;
mod stats;
mod waits;
mod walks;

/// Defines functions under their C names; in unit tests under Rust's, so that the tests run on plain libc.
macro_rules! replace {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block)*) => {$(
        $(#[$meta])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        extern "C-unwind" fn $name($($arg: $ty),*) -> $ret $body
    )*};
}
pub(crate) use replace;
pub(crate) use waits::again;
