//! AddressSanitizer options.
//!
//! Its runtime refuses to start behind another preloaded library, because its own definitions of libc's functions have
//! to come first. Of the functions that both define this library's come first, and call the sanitizer's: nothing is
//! missed. So the runtime is told not to refuse, by the function that it asks for its defaults. A program that has that
//! function itself has to say the same: `rdmesh run` does it for it in `ASAN_OPTIONS`.
#![allow(unsafe_code)]

use libc::c_char;
use rdmesh_preload::replace;

replace! {
    fn __asan_default_options() -> *const c_char {
        c"verify_asan_link_order=0".as_ptr()
    }
}
