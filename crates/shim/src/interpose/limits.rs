//! The limit on locked memory, as programs with libibverbs see it.
//!
//! Such programs read it because a kernel device locks registered memory, and refuse to start where it is small. This device
//! locks no memory, so they are told that the limit is infinite. For a program's own locks (`mlock`) the real limit holds, and
//! programs without libibverbs are told that one.
#![allow(unsafe_code)]

use super::replace;
use crate::{endpoint, errno, real};
use libc::{RLIM_INFINITY, c_int, c_uint, pid_t, rlimit};
use rustix::io::Errno;

const MEMLOCK: c_uint = libc::RLIMIT_MEMLOCK as c_uint;

/// Whether the query concerns the limit on locked memory, in a program with libibverbs.
fn concerns(resource: c_uint) -> bool {
    if resource != MEMLOCK || endpoint::present().is_none() {
        return false;
    }
    // SAFETY: only checks whether it is loaded; nothing is loaded, and the reference is released.
    unsafe {
        let library = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        !library.is_null() && libc::dlclose(library) == 0
    }
}

fn get(resource: c_uint, out: *mut rlimit, real: impl FnOnce() -> c_int) -> c_int {
    let result = real();
    if result == 0 && !out.is_null() && concerns(resource) {
        // SAFETY: libc has just filled it.
        unsafe { *out = rlimit { rlim_cur: RLIM_INFINITY, rlim_max: RLIM_INFINITY } };
    }
    result
}

/// A program that sets the infinite limit that it was shown gets the highest permitted one.
fn set(resource: c_uint, new: *const rlimit, real: impl Fn(*const rlimit) -> c_int) -> c_int {
    let result = real(new);
    if result == 0 || new.is_null() || !concerns(resource) {
        return result;
    }
    // SAFETY: libc has read it.
    let asked = unsafe { *new };
    if asked.rlim_max != RLIM_INFINITY || !errno::is(Errno::PERM) {
        return result;
    }
    let mut limit = rlimit { rlim_cur: 0, rlim_max: 0 };
    if real::getrlimit(resource, &mut limit) != 0 {
        return -1;
    }
    limit.rlim_cur = asked.rlim_cur.min(limit.rlim_max);
    real(&limit)
}

fn is_self(process: pid_t) -> bool {
    process == 0 || process == rustix::process::getpid().as_raw_nonzero().get()
}

replace! {
    fn getrlimit(resource: c_uint, out: *mut rlimit) -> c_int {
        get(resource, out, || real::getrlimit(resource, out))
    }

    fn getrlimit64(resource: c_uint, out: *mut rlimit) -> c_int {
        get(resource, out, || real::getrlimit64(resource, out))
    }

    fn setrlimit(resource: c_uint, new: *const rlimit) -> c_int {
        set(resource, new, |new| real::setrlimit(resource, new))
    }

    fn setrlimit64(resource: c_uint, new: *const rlimit) -> c_int {
        set(resource, new, |new| real::setrlimit64(resource, new))
    }

    fn prlimit(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        if !is_self(process) {
            return real::prlimit(process, resource, new, old);
        }
        get(resource, old, || set(resource, new, |new| real::prlimit(process, resource, new, old)))
    }

    fn prlimit64(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        if !is_self(process) {
            return real::prlimit64(process, resource, new, old);
        }
        get(resource, old, || set(resource, new, |new| real::prlimit64(process, resource, new, old)))
    }
}
