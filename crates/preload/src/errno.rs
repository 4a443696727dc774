//! `errno` of the C callers.
#![allow(unsafe_code)]

use rustix::io::Errno;

/// Sets `errno`.
pub fn set(errno: Errno) {
    // SAFETY: the address is this thread's own errno, always valid.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

/// The present `errno`.
pub fn get() -> Errno {
    // SAFETY: as above.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Calls `work`, which leaves `errno` as it was.
pub fn kept<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: as above. Zero is a value too, which [`Errno`] does not have.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *place };
    let result = work();
    // SAFETY: as above.
    unsafe { *place = before };
    result
}

/// Whether `errno` is this one.
pub fn is(errno: Errno) -> bool {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() == errno.raw_os_error() }
}

/// The value of a call that fails with -1, with `errno` set.
pub fn minus_one<T: From<i8>>(errno: Errno) -> T {
    set(errno);
    T::from(-1)
}

/// The value of a call that returns 0 or fails with -1.
pub fn zero_or_minus_one(result: Result<(), Errno>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(errno) => minus_one(errno),
    }
}
