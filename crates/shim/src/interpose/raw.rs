//! `syscall`, `_Fork` and `clone`: ways to fork without `fork`, and to wait without the functions of [`waits`](super::waits).
#![allow(unsafe_code)]
#![allow(non_snake_case, reason = "one function's name is not")]

use super::replace;
use super::waits::{End, left_milliseconds};
use crate::memory::{self, again};
use crate::real;
use libc::{c_int, c_long, c_void, timespec};
use rdmesh_preload::system_call::{Call, kernel, or_errno, pass_on};

replace! {
    /// System call without a cancellation point, as libc's own.
    fn syscall(
        number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long
    ) -> c_long {
        let call = [number, a, b, c, d, e, f];
        if forks(&call) {
            return or_errno(memory::fork_by(|| kernel(&call)));
        }
        note_traits(&call);
        match wait_of(&call) {
            None => pass_on(&call),
            Some(wait) => wait.make(call),
        }
    }

    fn pkey_mprotect(at: *mut c_void, len: libc::size_t, rights: c_int, key: c_int) -> c_int {
        memory::may_have_traits(at as u64, len as u64);
        real::pkey_mprotect(at, len, rights, key)
    }

    fn _Fork() -> c_int {
        match memory::fork_by(|| real::_Fork().into()) {
            // It has set errno itself.
            -1 => -1,
            result => or_errno(result) as c_int,
        }
    }

    fn clone(
        function: memory::Start,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        parent: *mut c_int,
        area: *mut c_void,
        child: *mut c_int,
    ) -> c_int {
        if flags & libc::CLONE_VM != 0 || stack.is_null() {
            return real::clone(function, stack, flags, argument, parent, area, child);
        }
        memory::clone_by(function, argument, |function, argument| {
            real::clone(function, stack, flags, argument, parent, area, child)
        })
    }
}

/// Whether a call forks: it makes a process with memory of its own, which continues at the same place.
fn forks(call: &Call) -> bool {
    let own = |flags: u64| flags & libc::CLONE_VM as u64 == 0;
    match call[0] {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => true,
        libc::SYS_clone => own(call[1] as u64) && call[2] == 0,
        libc::SYS_clone3 if call[1] != 0 && call[2] as usize >= size_of::<[u64; 8]>() => {
            // SAFETY: the program hands a `struct clone_args` of at least that size.
            let arguments = unsafe { std::ptr::with_exposed_provenance::<[u64; 8]>(call[1] as usize).read_unaligned() };
            own(arguments[0]) && arguments[5] == 0
        }
        _ => false,
    }
}

/// Records a call that gives memory traits which a conversion must preserve.
fn note_traits(call: &Call) {
    match call[0] {
        // Its ranges are registered later through the descriptor.
        libc::SYS_userfaultfd => memory::may_have_traits(0, u64::MAX),
        libc::SYS_pkey_mprotect => memory::may_have_traits(call[1] as u64, call[2] as u64),
        _ => {}
    }
}

/// Kind of wait of a call that ends with EINTR after any signal handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    /// Without a time-out, until a point in time, or with one that the kernel counts down in place.
    Same,
    /// For the time that this argument points to, if to any.
    Time(usize),
    /// For that many milliseconds.
    Milliseconds(usize),
}

fn wait_of(call: &Call) -> Option<Wait> {
    const EXT_ARG: c_long = 1 << 3;
    Some(match call[0] {
        libc::SYS_futex if call[2] & 0x7f == c_long::from(libc::FUTEX_WAIT) => Wait::Time(4),
        libc::SYS_futex | libc::SYS_ppoll | libc::SYS_pselect6 => Wait::Same,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select | libc::SYS_pause => Wait::Same,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => Wait::Milliseconds(3),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => Wait::Milliseconds(4),
        libc::SYS_epoll_pwait => Wait::Milliseconds(4),
        libc::SYS_epoll_pwait2 => Wait::Time(4),
        libc::SYS_nanosleep => Wait::Time(1),
        libc::SYS_clock_nanosleep if call[2] & c_long::from(libc::TIMER_ABSTIME) == 0 => Wait::Time(3),
        libc::SYS_clock_nanosleep => Wait::Same,
        libc::SYS_rt_sigtimedwait => Wait::Time(3),
        libc::SYS_semtimedop => Wait::Time(4),
        libc::SYS_io_getevents => Wait::Time(5),
        libc::SYS_io_uring_enter if call[4] & EXT_ARG == 0 => Wait::Same,
        _ => return None,
    })
}

impl Wait {
    #[cold]
    fn make(self, mut call: Call) -> c_long {
        let end = self.end(&call);
        let mut left = timespec { tv_sec: 0, tv_nsec: 0 };
        again(|first| {
            match (self, &end) {
                (Self::Time(at), Some(end)) if !first => {
                    left = end.left_timespec();
                    call[at] = (&raw const left) as c_long;
                }
                (Self::Milliseconds(at), end) => {
                    call[at] = left_milliseconds(first, call[at] as c_int, end).into();
                }
                _ => {}
            }
            or_errno(kernel(&call))
        })
    }

    fn end(self, call: &Call) -> Option<End> {
        match self {
            Self::Same => None,
            Self::Milliseconds(at) => End::after_milliseconds(call[at] as c_int),
            Self::Time(at) => End::after_time(libc::CLOCK_MONOTONIC, call[at] as *const timespec),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno;
    use rustix::io::Errno;

    #[test]
    fn ways_to_fork_are_known_from_threads() {
        let clone = |flags: c_int, stack| forks(&[libc::SYS_clone, flags.into(), stack, 0, 0, 0, 0]);
        assert!(clone(libc::SIGCHLD, 0));
        assert!(!clone(libc::CLONE_VM | libc::CLONE_VFORK, 0) && !clone(libc::CLONE_VM | libc::CLONE_THREAD, 1));
        let clone3 = |flags: c_int| {
            let arguments = [flags as u64, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0];
            forks(&[libc::SYS_clone3, (&raw const arguments) as c_long, 64, 0, 0, 0, 0])
        };
        assert!(clone3(0) && !clone3(libc::CLONE_VM));
        assert!(!forks(&[libc::SYS_getpid, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn results_are_libcs() {
        assert_eq!(syscall(libc::SYS_getpid, 0, 0, 0, 0, 0, 0), std::process::id().into());
        assert_eq!(syscall(libc::SYS_close, -1, 0, 0, 0, 0, 0), -1);
        assert!(errno::is(Errno::BADF));
        let time = timespec { tv_sec: 0, tv_nsec: 1000 };
        assert_eq!(syscall(libc::SYS_nanosleep, (&raw const time) as c_long, 0, 0, 0, 0, 0), 0);
    }
}
