//! Functions that take a descriptor, and `fork`.
#![allow(unsafe_code)]

use super::waits::{self, Way};
use super::{replace, short, sockets};
use crate::descriptors;
use crate::errno::{minus_one, zero_or_minus_one};
use crate::session::{self, CmChannel, Context, Written, cm, completion};
use crate::{memory, real};
use libc::{c_int, c_uint, c_ulong, c_void, size_t, ssize_t};
use rdmesh_preload::own;
use rdmesh_uverbs::abi::VERBS_IOCTL;
use rustix::io::Errno;

/// More than any command of the ABI.
const MAX_COMMAND: usize = 0x10_0000;

replace! {
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
        let read = |done| {
            waits::on_socket(fd, Way::In, || real::early_read(fd, buffer.wrapping_byte_add(done), count - done))
        };
        match short::whole(count, || waits::never_waits(fd), read) {
            // Of all descriptors few end, and of those that do few are the device's.
            0 if count != 0 => session::end_of_events(fd, buffer, count),
            result => result,
        }
    }

    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
        let Some(device) = descriptors::peek(fd) else {
            return short::whole(count, || true, |done| {
                waits::on_socket(fd, Way::Out, || real::write(fd, buffer.wrapping_byte_add(done), count - done))
            });
        };
        if buffer.is_null() || count > MAX_COMMAND {
            return minus_one(Errno::INVAL);
        }
        // SAFETY: the program hands `count` readable bytes.
        let command = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), count) };
        let written = if let Some(context) = device.as_kind::<Context>() {
            session::write(context, fd, command)
        } else if device.as_kind::<CmChannel>().is_some() {
            cm::write(fd, command)
        } else {
            match sockets::write_netlink(fd, command) {
                Some(written) => return written,
                None => Written::Foreign,
            }
        };
        match written {
            Written::Command(Ok(())) => count as ssize_t,
            Written::Command(Err(errno)) => minus_one(errno),
            Written::Foreign => real::write(fd, buffer, count),
        }
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        // The kernel looks at 32 bits of the request and ignores the others.
        if request as u32 == VERBS_IOCTL && descriptors::peek_as::<Context>(fd).is_some() {
            return zero_or_minus_one(session::verbs_ioctl(fd, argument));
        }
        real::ioctl(fd, request, argument)
    }

    fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
        let result = real::early_madvise(addr, len, advice);
        match advice {
            libc::MADV_DONTNEED if result == 0 => memory::discard(addr as u64, len as u64),
            libc::MADV_REMOVE => memory::distrust(),
            libc::MADV_DONTDUMP | libc::MADV_WIPEONFORK => memory::may_have_traits(addr as u64, len as u64),
            _ => {}
        }
        result
    }

    fn close(fd: c_int) -> c_int {
        if is_device(fd) {
            // Forgotten before its number can be given to something else.
            let _gate = memory::gate();
            descriptors::forget(fd);
        } else if own::is_own(fd) {
            return minus_one(Errno::BADF);
        } else {
            completion::closed(fd);
        }
        real::close(fd)
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
        inherit(fd, real::dup(fd))
    }

    fn dup2(fd: c_int, new: c_int) -> c_int {
        replaced(fd, new);
        inherit(fd, real::dup2(fd, new))
    }

    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
        replaced(fd, new);
        inherit(fd, real::dup3(fd, new, flags))
    }

    fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        let result = real::fcntl(fd, command, argument);
        if is_dup(command) { inherit(fd, result) } else { result }
    }

    fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        let result = real::fcntl64(fd, command, argument);
        if is_dup(command) { inherit(fd, result) } else { result }
    }

    fn fork() -> c_int {
        memory::fork()
    }
}

fn is_dup(command: c_int) -> bool {
    command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC
}

/// `new` is about to become a duplicate of `old`, which closes the previous `new`.
fn replaced(old: c_int, new: c_int) {
    if old != new {
        completion::closed(new);
    }
}

/// After `new` became a duplicate of `old`.
fn inherit(old: c_int, new: c_int) -> c_int {
    descriptors::duplicated(old, new);
    new
}

fn is_device(fd: c_int) -> bool {
    descriptors::peek(fd).is_some()
}

/// Closes a range except for the descriptors that are this library's.
fn close_between(first: c_uint, last: c_uint, flags: c_uint) -> c_int {
    completion::closed_between(first, last);
    // A number beyond the largest is no descriptor.
    let number = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
    descriptors::forget_between(number(first), number(last));
    own::close_between(first, last, flags)
}
