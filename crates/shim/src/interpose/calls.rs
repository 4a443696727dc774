//! Functions that take a descriptor, and `fork`.
#![allow(unsafe_code)]

use super::waits::{self, Way};
use super::{replace, sockets};
use crate::descriptors::{self, Glance, Kind};
use crate::errno::{minus_one, zero_or_minus_one};
use crate::session::{self, Written, cm, completion};
use crate::{memory, real};
use libc::{c_int, c_uint, c_ulong, c_void, size_t, ssize_t};
use rdmesh_uverbs::abi::VERBS_IOCTL;
use rustix::io::Errno;

/// More than any command of the ABI.
const MAX_COMMAND: usize = 0x10_0000;

replace! {
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
        match waits::on_socket(fd, Way::In, || real::early_read(fd, buffer, count)) {
            // Of all descriptors few end, and of those that do few are the device's.
            0 if count != 0 => session::end_of_events(fd, buffer, count),
            result => result,
        }
    }

    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
        let device = match descriptors::glance(fd) {
            Glance::Other => return waits::on_socket(fd, Way::Out, || real::write(fd, buffer, count)),
            device => device,
        };
        if buffer.is_null() || count > MAX_COMMAND {
            return minus_one(Errno::INVAL);
        }
        // SAFETY: the program hands `count` readable bytes.
        let command = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), count) };
        let written = match device {
            Glance::Device(context) => session::write(context, fd, command),
            Glance::Cm => cm::write(fd, command),
            Glance::Netlink | Glance::Other => match sockets::write_netlink(fd, command) {
                Some(written) => return written,
                None => Written::Foreign,
            },
        };
        match written {
            Written::Command(Ok(())) => count as ssize_t,
            Written::Command(Err(errno)) => minus_one(errno),
            Written::Foreign => real::write(fd, buffer, count),
        }
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        // The kernel looks at 32 bits of the request and ignores the others.
        if request as u32 == VERBS_IOCTL && descriptors::peek(fd).is_some() {
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
        match descriptors::kind(fd) {
            Kind::Own => return minus_one(Errno::BADF),
            // Forgotten before its number can be given to something else.
            Kind::Device(_) | Kind::Cm(_) | Kind::Netlink(_) => become_foreign(fd),
            Kind::Foreign => completion::closed(fd),
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

/// After `new` became a duplicate of `old`: its entry becomes that of `old`.
fn inherit(old: c_int, new: c_int) -> c_int {
    if new >= 0 && new != old {
        match descriptors::kind(old) {
            device @ (Kind::Device(_) | Kind::Cm(_) | Kind::Netlink(_)) => {
                let _gate = memory::gate();
                descriptors::set(new, device);
            }
            _ if is_device(new) => become_foreign(new),
            _ => {}
        }
    }
    new
}

fn is_device(fd: c_int) -> bool {
    !matches!(descriptors::glance(fd), Glance::Other)
}

fn become_foreign(fd: c_int) {
    let _gate = memory::gate();
    descriptors::set(fd, Kind::Foreign);
}

/// Closes a range except for the descriptors that are this library's.
fn close_between(first: c_uint, last: c_uint, flags: c_uint) -> c_int {
    completion::closed_between(first, last);
    let (mut from, mut result) = (first, 0);
    descriptors::for_each(|fd| {
        let number = fd as c_uint;
        if number < from || number > last {
            return;
        }
        if is_device(fd) {
            become_foreign(fd);
            return;
        }
        if number > from {
            result |= close_span(from, number - 1, flags);
        }
        from = number + 1;
    });
    if from <= last {
        result |= close_span(from, last, flags);
    }
    result
}

/// `close_range`, also where libc or the kernel has none.
fn close_span(first: c_uint, last: c_uint, flags: c_uint) -> c_int {
    let result = real::close_range(first, last, flags);
    // SAFETY: this thread's errno.
    if result == 0 || unsafe { *libc::__errno_location() } != libc::ENOSYS {
        return result;
    }
    // SAFETY: asks for a number.
    let open_max = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.clamp(0, 1 << 20) as c_uint;
    for fd in first..=last.min(open_max) {
        real::close(fd as c_int);
    }
    0
}
