//! Descriptors that are closed and duplicated.
#![allow(unsafe_code)]

use super::replace;
use crate::kernel;
use crate::process::as_stream;
use crate::stream::Stream;
use crate::table::{self, Object, TABLE, with_stream};
use libc::{c_int, c_uint, c_void};
use rdmesh_preload::{errno, own, process, real};
use rdmesh_streams::report::Reason;
use rustix::io::Errno;
use std::sync::Arc;

replace! {
    fn close(fd: c_int) -> c_int {
        if own::is_own(fd) {
            return errno::minus_one(Errno::BADF);
        }
        let ended = closing(fd);
        let result = real::close(fd);
        errno::kept(|| ended.iter().for_each(tell_end));
        result
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_uint) -> c_int {
        if flags & !libc::CLOSE_RANGE_UNSHARE != 0 || first > last {
            // Closes nothing now, or fails.
            return real::close_range(first, last, flags);
        }
        close_between(first, last, flags)
    }

    fn closefrom(first: c_int) -> () {
        close_between(first.max(0) as c_uint, c_uint::MAX, 0);
    }

    fn dup(fd: c_int) -> c_int {
        duplicated(fd, real::dup(fd))
    }

    fn dup2(fd: c_int, new: c_int) -> c_int {
        replacing(fd, new);
        duplicated(fd, real::dup2(fd, new))
    }

    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
        replacing(fd, new);
        duplicated(fd, real::dup3(fd, new, flags))
    }

    fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        controlled(fd, command, argument, real::fcntl)
    }

    fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        controlled(fd, command, argument, real::fcntl64)
    }
}

fn controlled(fd: c_int, command: c_int, argument: *mut c_void, call: fn(c_int, c_int, *mut c_void) -> c_int) -> c_int {
    // Signals for data (O_ASYNC) are the kernel's to send.
    if command == libc::F_SETOWN || command == libc::F_SETFL && argument as usize & libc::O_ASYNC as usize != 0 {
        with_stream(fd, |stream| stream.move_to_tcp(fd, Reason::Option));
    }
    let result = call(fd, command, argument);
    if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC { duplicated(fd, result) } else { result }
}

/// The program is about to close `fd`. Returns a stream whose other end is to be told once it is closed.
pub(super) fn closing(fd: c_int) -> Option<Arc<Object>> {
    if TABLE.glance(fd).is_none() || !process::is_owner() {
        return None;
    }
    let object = table::object(fd);
    let stream = object.as_deref().and_then(as_stream);
    let has_ended = stream.is_some_and(|stream| stream.closing(fd));
    table::forget(fd);
    // Other threads may wait for it.
    stream.inspect(|stream| stream.wake_own_waiters());
    object.filter(|_| has_ended)
}

/// A stream that has ended by [`closing`] is closed.
fn tell_end(object: &Arc<Object>) {
    as_stream(object).into_iter().for_each(Stream::tell_end);
}

fn close_between(first: c_uint, last: c_uint, flags: c_uint) -> c_int {
    let number = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
    let (from, to) = (number(first), number(last));
    let mut ended = Vec::new();
    TABLE.for_each(|fd| {
        if (from..=to).contains(&fd) {
            ended.extend(closing(fd));
        }
    });
    let result = own::close_between(first, last, flags);
    errno::kept(|| ended.iter().for_each(tell_end));
    result
}

/// `new`, which is about to become a duplicate of `fd`, is closed by that.
fn replacing(fd: c_int, new: c_int) {
    if fd != new && TABLE.glance(new).is_some() && kernel::is_open(fd) {
        closing(new);
    }
}

/// `new` is a duplicate of `fd` now. As standard input or output it is used by stdio and by children, which know no rings.
fn duplicated(fd: c_int, new: c_int) -> c_int {
    if new >= 0 && new != fd {
        if new <= libc::STDERR_FILENO {
            with_stream(fd, |stream| stream.move_to_tcp(fd, Reason::Stdio));
        }
        TABLE.duplicated(fd, new);
    }
    new
}
