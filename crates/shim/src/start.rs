//! Library constructor, run by the dynamic loader.
#![allow(unsafe_code)]

use crate::{memory, place};

/// Run by the loader. All that is done here would also be done later, at the first use; here the working directory is
/// still the one that a relative `LD_PRELOAD` was meant for, and no other thread exists yet.
#[cfg_attr(test, allow(dead_code))]
extern "C" fn start() {
    rdmesh_preload::start();
    place::view::moved();
    memory::watch_forks();
}

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls each pointer of this section once, with arguments that `start` does not look at.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
