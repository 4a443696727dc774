//! Connections that begin, and options of those that there are.
#![allow(unsafe_code)]

use super::replace;
use crate::address;
use crate::kernel;
use crate::process::{Process, has_relay};
use crate::stream::{Stream, Way, known};
use crate::table::{self, Object, with_stream};
use libc::{c_int, c_ulong, c_void, sockaddr, sockaddr_storage, socklen_t};
use rdmesh_preload::settings::settings;
use rdmesh_preload::{errno, process, real};
use rdmesh_streams::ends::Ends;
use rdmesh_streams::report::Reason;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

replace! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = real::socket(domain, kind, protocol);
        if fd >= 0 {
            errno::kept(|| table::is_new(fd));
        }
        fd
    }

    fn accept(fd: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> c_int {
        accepted_by(from, from_len, |from, from_len| real::accept(fd, from, from_len))
    }

    fn accept4(fd: c_int, from: *mut sockaddr, from_len: *mut socklen_t, flags: c_int) -> c_int {
        accepted_by(from, from_len, |from, from_len| real::accept4(fd, from, from_len, flags))
    }

    fn connect(fd: c_int, to: *const sockaddr, to_len: socklen_t) -> c_int {
        let result = real::connect(fd, to, to_len);
        if (result == 0 || errno::is(Errno::INPROGRESS))
            && let Some(to) = address::parse(to, to_len)
        {
            errno::kept(|| connected(fd, to));
        }
        result
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        let result = real::listen(fd, backlog);
        if result == 0 && is_wanted() && has_relay() && is_tcp(fd) {
            // Its clients are in other endpoints, and their relays find this one's before the first connection.
            errno::kept(|| Process::get().and_then(Process::relay));
        }
        result
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        if how != libc::SHUT_RD {
            with_stream(fd, |stream| stream.ending(fd));
        }
        let result = real::shutdown(fd, how);
        if result == 0 {
            with_stream(fd, |stream| stream.shut(fd, how));
        }
        result
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        let answer = with_stream(fd, |stream| match request as c_ulong {
            FIONREAD => Some(stream.unread(fd)),
            SIOCOUTQ => Some(stream.unsent(fd)),
            SIOCATMARK => {
                stream.move_to_tcp(fd, Reason::Option);
                None
            }
            _ => None,
        });
        match answer.flatten() {
            Some(count) if !argument.is_null() => {
                // SAFETY: the program hands a place for a number.
                unsafe { argument.cast::<c_int>().write_unaligned(c_int::try_from(count).unwrap_or(c_int::MAX)) };
                0
            }
            _ => real::ioctl(fd, request, argument),
        }
    }

    fn sockatmark(fd: c_int) -> c_int {
        with_stream(fd, |stream| stream.move_to_tcp(fd, Reason::Option));
        let mut mark: c_int = 0;
        if real::ioctl(fd, SIOCATMARK, (&raw mut mark).cast()) == 0 { mark } else { -1 }
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        if is_for_tcp_only(level, name) {
            with_stream(fd, |stream| stream.move_to_tcp(fd, Reason::Option));
        }
        let result = real::setsockopt(fd, level, name, value, len);
        match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_INQ) => drop(with_stream(fd, Stream::ask_again_for_left)),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) if result == 0 => set_time_out(fd, Way::In, value),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW) if result == 0 => set_time_out(fd, Way::Out, value),
            _ => {}
        }
        result
    }
}

/// Accepts with room for the peer's address, which the program need not ask for.
fn accepted_by(
    from: *mut sockaddr,
    from_len: *mut socklen_t,
    accept: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int,
) -> c_int {
    if !from.is_null() {
        let fd = accept(from, from_len);
        // SAFETY: the program hands a length with its room.
        let len = if fd < 0 || from_len.is_null() { 0 } else { unsafe { from_len.read_unaligned() } };
        // What the kernel has cut off is not read.
        accepted(fd, address::parse(from, len).or_else(|| (fd >= 0).then(|| address::peer(fd)).flatten()));
        return fd;
    }
    // SAFETY: plain data, of which all zeros is a value.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let fd = accept((&raw mut storage).cast(), &raw mut len);
    accepted(fd, address::parse((&raw const storage).cast(), len));
    fd
}

/// A connection has been accepted.
fn accepted(fd: c_int, peer: Option<SocketAddr>) {
    if fd < 0 {
        return;
    }
    table::is_new(fd);
    let Some(peer) = peer.filter(|_| is_wanted()) else { return };
    errno::kept(|| {
        let Some(own) = address::own(fd) else { return };
        let ends = Ends { connector: peer, acceptor: own };
        if (ends.are_local() || has_relay())
            && is_tcp(fd)
            && let Some(stream) = Stream::new(Some(ends), ends.are_local())
        {
            let process = stream.process();
            let object = known(stream);
            table::set(fd, object.clone());
            if !process.publish(ends, fd, &object) {
                table::forget(fd);
            }
        }
    });
}

/// A connection has been made, or begun.
fn connected(fd: c_int, to: SocketAddr) {
    let before = table::object(fd);
    let is_known = before.as_deref().is_some_and(|object| !matches!(object, Object::Early(_)));
    if !is_wanted() || is_known || !is_tcp(fd) {
        return;
    }
    let is_local =
        to.ip().is_loopback() || to.ip().is_unspecified() || address::own(fd).is_some_and(|own| own.ip() == to.ip());
    if (is_local || has_relay())
        && let Some(stream) = Stream::new(None, is_local)
    {
        table::set(fd, known(stream));
        if let Some(Object::Early(early)) = before.as_deref() {
            early.hand_over(fd);
        }
    } else {
        table::forget(fd);
    }
}

/// Leaves all connections that begin from now on on TCP.
pub(super) fn stop() {
    IS_STOPPED.store(true, Ordering::Relaxed);
}

fn is_wanted() -> bool {
    !IS_STOPPED.load(Ordering::Relaxed)
        && settings().upgrade_after().is_some()
        && !settings().is_excluded()
        && process::is_owner()
}

fn is_tcp(fd: c_int) -> bool {
    kernel::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// Options that ask for what a ring does not do.
fn is_for_tcp_only(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => {
            matches!(
                name,
                libc::SO_ZEROCOPY
                    | libc::SO_TIMESTAMP
                    | libc::SO_TIMESTAMPNS
                    | libc::SO_TIMESTAMPING
                    | libc::SO_OOBINLINE
                    | libc::SO_ATTACH_FILTER
                    | libc::SO_ATTACH_BPF
                    | libc::SO_RCVLOWAT
            )
        }
        libc::IPPROTO_TCP => matches!(name, libc::TCP_ULP | libc::TCP_REPAIR | libc::TCP_MD5SIG),
        _ => false,
    }
}

/// The kernel has taken the time-out.
fn set_time_out(fd: c_int, way: Way, value: *const c_void) {
    // SAFETY: the kernel has taken a time from there.
    let time = unsafe { value.cast::<libc::timeval>().read_unaligned() };
    with_stream(fd, |stream| stream.set_never_waits(way, time.tv_sec < 0));
}

/// The program uses what this library cannot see.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);
/// asm-generic/socket.h; the `libc` crate does not have them for all machines.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
const FIONREAD: c_ulong = libc::FIONREAD as c_ulong;
const SIOCOUTQ: c_ulong = libc::TIOCOUTQ as c_ulong;
const SIOCATMARK: c_ulong = 0x8905;
