//! Identity of this process: forks, and children that share its memory.

use std::sync::atomic::{AtomicU32, Ordering};

/// Process id of the owner of this memory; a vfork child, which shares it, has another.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Forks between the process that loaded the library and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Makes this process the owner of the library's state, at the start.
pub fn claim() {
    OWNER.store(process_id(), Ordering::Relaxed);
}

/// Whether this process may change the library's state. A vfork child may not: its descriptors are not its parent's, but its
/// memory is.
pub fn is_owner() -> bool {
    match OWNER.load(Ordering::Relaxed) {
        // Called before the constructor.
        0 => {
            claim();
            true
        }
        owner => owner == process_id(),
    }
}

/// Number of forks that led to this process: identifies the process in which an object was made.
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// This process is the child of a fork.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    claim();
}

fn process_id() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().unsigned_abs()
}
