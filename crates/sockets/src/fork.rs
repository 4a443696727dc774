//! Forks: a child has its parent's connections, and not its threads.

use crate::process::Process;
use crate::spin::now;
use crate::stream::Stream;
use crate::table::for_each_stream;
use crate::wake;
use rdmesh_preload::{gate, process, real};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Has the library's state survive forks.
pub(crate) fn watch() {
    real::at_fork(prepare, in_parent, in_child);
}

/// Connections that are on TCP stay there as long as parent and child can both use them: rings would be one's only.
extern "C" fn prepare() {
    gate::close();
    let fork = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
    for_each_stream(|_, stream| stream.share(fork));
}

extern "C" fn in_parent() {
    gate::open();
}

extern "C" fn in_child() {
    process::forked();
    Process::forget();
    wake::forget();
    crate::table::for_each_epoll(|epoll| epoll.unlock());
    for_each_stream(|_, stream| Stream::unlock(stream));
    FORKED_AT.store(now(), Ordering::Relaxed);
    gate::open();
}

/// Nanoseconds since the fork that made this process.
pub(crate) fn age() -> u64 {
    now().saturating_sub(FORKED_AT.load(Ordering::Relaxed))
}

/// Forks that this process has begun, and those that led to it.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Time of the fork that made this process; 0 where it is no child of one.
static FORKED_AT: AtomicU64 = AtomicU64::new(0);
