//! `syscall`: calls past the functions that are replaced. libuv, and so Node.js, closes its sockets that way.
#![allow(unsafe_code)]

use super::connections;
use super::descriptors::closing;
use super::replace;
use crate::poll::{self, Sets};
use crate::table::{TABLE, for_each_stream, with_stream};
use libc::{c_int, c_long, c_uint, c_void, size_t, ssize_t};
use rdmesh_preload::system_call::{Call, pass_on};
use rdmesh_preload::{errno, own};
use rdmesh_streams::report::Reason;
use rustix::io::Errno;

replace! {
    fn syscall(
        number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long,
    ) -> c_long {
        let call = [number, a, b, c, d, e, f];
        instead(&call).unwrap_or_else(|| pass_on(&call))
    }
}

/// The result of the function that a call stands for, where that one is more than the call; else none.
fn instead(call: &Call) -> Option<c_long> {
    match call[0] {
        libc::SYS_close if own::is_own(call[1] as c_int) => Some(errno::minus_one(Errno::BADF)),
        libc::SYS_close => {
            closing(call[1] as c_int);
            None
        }
        libc::SYS_io_uring_setup => {
            // What is queued there is seen by the kernel only.
            connections::stop();
            for_each_stream(|fd, stream| stream.move_to_tcp(fd, Reason::IoUring));
            None
        }
        _ => carried(call).or_else(|| waited(call)).or_else(|| changed(call)),
    }
}

/// A call that carries bytes of a stream, or waits for one.
fn carried(call: &Call) -> Option<c_long> {
    let [number, first, b, c, d, e, f] = *call;
    let fd = first as c_int;
    if !CARRIERS.contains(&number) || with_stream(fd, |_| ()).is_none() {
        return None;
    }
    // SAFETY: the program's own call, made by the function for it.
    let result: ssize_t = unsafe {
        match number {
            libc::SYS_read => libc::read(fd, pointer(b), c as size_t),
            libc::SYS_write => libc::write(fd, pointer(b), c as size_t),
            libc::SYS_readv => libc::readv(fd, pointer(b), c as c_int),
            libc::SYS_writev => libc::writev(fd, pointer(b), c as c_int),
            libc::SYS_recvfrom => libc::recvfrom(fd, pointer(b), c as size_t, d as c_int, pointer(e), pointer(f)),
            libc::SYS_sendto => libc::sendto(fd, pointer(b), c as size_t, d as c_int, pointer(e), f as libc::socklen_t),
            libc::SYS_recvmsg => libc::recvmsg(fd, pointer(b), c as c_int),
            libc::SYS_sendmsg => libc::sendmsg(fd, pointer(b), c as c_int),
            libc::SYS_recvmmsg => wide(libc::recvmmsg(fd, pointer(b), c as c_uint, d as _, pointer(e))),
            libc::SYS_sendmmsg => wide(libc::sendmmsg(fd, pointer(b), c as c_uint, d as _)),
            // Their offset is 64 bits wide on every machine that is supported, in the first of two arguments.
            libc::SYS_preadv2 => libc::preadv2(fd, pointer(b), c as c_int, d, f as c_int),
            libc::SYS_pwritev2 => libc::pwritev2(fd, pointer(b), c as c_int, d, f as c_int),
            _ => libc::sendfile(fd, b as c_int, pointer(c), d as size_t),
        }
    };
    Some(result as c_long)
}

/// A call that waits for descriptors, of which some are of interest. The function for it does what the call does, but for the time
/// that is left, which the calls of `ppoll` and `pselect` tell.
fn waited(call: &Call) -> Option<c_long> {
    let [number, first, b, c, d, e, f] = *call;
    if !is_wait_of_interest(call) {
        return None;
    }
    // SAFETY: the program's own call, made by the function for it.
    let result = unsafe {
        match number {
            libc::SYS_epoll_ctl => libc::epoll_ctl(first as c_int, b as c_int, c as c_int, pointer(d)),
            libc::SYS_epoll_pwait => libc::epoll_pwait(first as c_int, pointer(b), c as c_int, d as c_int, pointer(e)),
            libc::SYS_epoll_pwait2 => {
                libc::epoll_pwait2(first as c_int, pointer(b), c as c_int, pointer(d), pointer(e))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => libc::epoll_wait(first as c_int, pointer(b), c as c_int, d as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => libc::poll(pointer(first), b as libc::nfds_t, c as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => libc::select(first as c_int, pointer(b), pointer(c), pointer(d), pointer(e)),
            libc::SYS_ppoll => libc::ppoll(pointer(first), b as libc::nfds_t, pointer(c), pointer(d)),
            _ => {
                // A pointer to the mask, and its length.
                let mask = pointer::<*const libc::sigset_t>(f);
                let mask = if mask.is_null() { std::ptr::null() } else { mask.read_unaligned() };
                libc::pselect(first as c_int, pointer(b), pointer(c), pointer(d), pointer(e), mask)
            }
        }
    };
    Some(result.into())
}

/// Whether a call waits for streams, or for an instance of epoll that has some.
fn is_wait_of_interest(call: &Call) -> bool {
    let [number, first, b, c, d, ..] = *call;
    match number {
        libc::SYS_epoll_ctl => [first, c].iter().any(|fd| TABLE.glance(*fd as c_int).is_some()),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => TABLE.glance(first as c_int).is_some(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => TABLE.glance(first as c_int).is_some(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => concerns(first, b),
        libc::SYS_ppoll => concerns(first, b),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => Sets { count: first as c_int, sets: [b, c, d].map(pointer) }.list().is_some(),
        libc::SYS_pselect6 => Sets { count: first as c_int, sets: [b, c, d].map(pointer) }.list().is_some(),
        _ => false,
    }
}

fn concerns(fds: c_long, count: c_long) -> bool {
    let fds = pointer::<libc::pollfd>(fds);
    // SAFETY: the program hands so many entries.
    !fds.is_null() && count > 0 && poll::concerns(unsafe { std::slice::from_raw_parts(fds, count as usize) })
}

/// A call that makes or changes a descriptor.
fn changed(call: &Call) -> Option<c_long> {
    let [number, first, b, c, d, e, _] = *call;
    let fd = first as c_int;
    // SAFETY: the program's own call, made by the function for it.
    let result = unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => libc::epoll_create(fd),
            libc::SYS_epoll_create1 => libc::epoll_create1(fd),
            libc::SYS_socket => libc::socket(fd, b as c_int, c as c_int),
            libc::SYS_connect => libc::connect(fd, pointer(b), c as libc::socklen_t),
            libc::SYS_accept => libc::accept(fd, pointer(b), pointer(c)),
            libc::SYS_accept4 => libc::accept4(fd, pointer(b), pointer(c), d as c_int),
            libc::SYS_shutdown => libc::shutdown(fd, b as c_int),
            libc::SYS_setsockopt => libc::setsockopt(fd, b as c_int, c as c_int, pointer(d), e as libc::socklen_t),
            libc::SYS_dup => libc::dup(fd),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => libc::dup2(fd, b as c_int),
            libc::SYS_dup3 => libc::dup3(fd, b as c_int, c as c_int),
            libc::SYS_fcntl => libc::fcntl(fd, b as c_int, pointer::<c_void>(c)),
            libc::SYS_close_range => libc::close_range(first as c_uint, b as c_uint, c as c_int),
            _ => return None,
        }
    };
    Some(result.into())
}

fn wide(result: c_int) -> ssize_t {
    result as ssize_t
}

fn pointer<T>(argument: c_long) -> *mut T {
    std::ptr::with_exposed_provenance_mut(argument as usize)
}

const CARRIERS: [c_long; 13] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
];
