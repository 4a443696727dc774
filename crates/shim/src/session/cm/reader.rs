//! The thread that reads a channel's events.
#![allow(unsafe_code)]

use rustix::process::getpid;
use rustix::thread::gettid;
use std::sync::atomic::{AtomicI32, Ordering};

/// The thread that read the last event of a channel.
pub(super) struct Reader {
    /// Its number; 0 for none.
    thread: AtomicI32,
}

impl Reader {
    /// No thread has read an event.
    pub(super) const fn none() -> Self {
        Self { thread: AtomicI32::new(0) }
    }

    /// The calling thread has read an event.
    pub(super) fn set(&self) {
        self.thread.store(gettid().as_raw_pid(), Ordering::Relaxed);
    }

    /// The reader, where it is another thread than the calling one, and still there. After a fork it is not in the child.
    pub(super) fn other(&self) -> Option<i32> {
        let thread = self.thread.load(Ordering::Relaxed);
        let is_other = thread != 0 && thread != gettid().as_raw_pid();
        (is_other && is_alive(thread)).then_some(thread)
    }

    /// Forgets `thread`, unless another one reads events by now.
    pub(super) fn forget(&self, thread: i32) {
        let _ = self.thread.compare_exchange(thread, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether this process has a thread of that number.
fn is_alive(thread: i32) -> bool {
    // SAFETY: takes numbers only; signal 0 is not delivered.
    unsafe { libc::syscall(libc::SYS_tgkill, getpid().as_raw_pid(), thread, 0) == 0 }
}
