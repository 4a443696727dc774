//! The libc functions that this library replaces.
//!
//! Each passes on what is not the device's with one cheap test. Variadic functions are defined with the arguments that
//! they can have: the calling conventions of the supported machines pass both alike. Many are cancellation points, where
//! a cancelled thread unwinds.
//!
//! * [`files`]: functions that take a path.
//! * [`stats`]: the `stat` family.
//! * [`calls`]: functions that take a descriptor, `socket` and `fork`.

mod calls;
mod files;
mod stats;

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
