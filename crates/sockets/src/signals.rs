//! Signals that interrupt a wait.
#![allow(unsafe_code)]

use std::ffi::c_int;

/// Whether a system call that a signal has interrupted goes on after its handler (`SA_RESTART`). Which signal it was is not known:
/// the handlers of all of them must say so.
pub(crate) fn all_restart() -> bool {
    (1..=LAST).all(|signal| {
        // SAFETY: plain data, which the call fills; it changes nothing.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut action) != 0 {
                return true;
            }
            action
        };
        let has_handler = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        !has_handler || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// Sends this thread SIGPIPE, as a write to a connection without a reader does.
pub(crate) fn raise_sigpipe() {
    // SAFETY: a signal to the thread itself, handled as the program wants.
    unsafe { libc::raise(libc::SIGPIPE) };
}

const LAST: c_int = 64;
