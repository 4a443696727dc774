//! Library constructor, run by the dynamic loader.
#![allow(unsafe_code)]

/// Run by the loader, before the program and before any other thread.
#[cfg_attr(test, allow(dead_code))]
extern "C" fn start() {
    rdmesh_preload::start();
    crate::fork::watch();
}

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls each pointer of this section once, with arguments that `start` does not look at.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
