//! Socket functions: NETLINK_RDMA sockets are answered here, all others passed on.
#![allow(unsafe_code)]

use super::short::Piece;
use super::waits::{Way, on_socket};
use super::{replace, short};
use crate::descriptors;
use crate::errno::{minus_one, zero_or_minus_one};
use crate::netlink::{self, NetlinkSocket, address};
use crate::{endpoint, real};
use libc::{c_int, c_void, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rdmesh_uverbs::abi::netlink::NETLINK_RDMA;
use rustix::io::Errno;
use std::ptr::null;
use std::sync::Arc;

replace! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        if domain == libc::AF_NETLINK
            && protocol == NETLINK_RDMA
            && let Some(endpoint) = endpoint::present()
        {
            return netlink::open(endpoint, kind).unwrap_or_else(minus_one);
        }
        real::socket(domain, kind, protocol)
    }

    fn bind(fd: c_int, name: *const sockaddr, len: socklen_t) -> c_int {
        let Some(socket) = netlink_socket(fd) else { return real::bind(fd, name, len) };
        // SAFETY: the program's address, of its length.
        let address = unsafe { address::read(name, len) };
        zero_or_minus_one(address.and_then(|(port_id, groups)| match groups {
            0 => socket.bind(port_id),
            // Multicast groups are for administrators.
            _ => Err(Errno::PERM),
        }))
    }

    fn connect(fd: c_int, name: *const sockaddr, len: socklen_t) -> c_int {
        let Some(socket) = netlink_socket(fd) else { return on_socket(fd, Way::Out, || real::connect(fd, name, len)) };
        // SAFETY: the program's address, of its length.
        let connected = unsafe { address::must_be_kernel(name, len) };
        zero_or_minus_one(connected.and_then(|()| socket.bind(0)))
    }

    fn getsockname(fd: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let Some(socket) = netlink_socket(fd) else { return real::getsockname(fd, name, len) };
        // SAFETY: the program gives room for `*len` bytes.
        unsafe { address::write(socket.port_id(), name, len) };
        0
    }

    fn getpeername(fd: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if netlink_socket(fd).is_none() {
            return real::getpeername(fd, name, len);
        }
        // SAFETY: the program gives room for `*len` bytes.
        unsafe { address::write(KERNEL, name, len) };
        0
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        let Some(socket) = netlink_socket(fd).filter(|_| level == libc::SOL_NETLINK) else {
            return real::setsockopt(fd, level, name, value, len);
        };
        if value.is_null() || (len as usize) < size_of::<c_int>() {
            return minus_one(Errno::INVAL);
        }
        // SAFETY: the program's value is at least as long.
        let value = unsafe { value.cast::<c_int>().read_unaligned() };
        zero_or_minus_one(socket.with_options(|options| options.set(name, value)))
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        let Some(answer) = netlink_socket(fd).and_then(|socket| option(&socket, level, name)) else {
            return real::getsockopt(fd, level, name, value, len);
        };
        if value.is_null() || len.is_null() {
            return minus_one(Errno::FAULT);
        }
        // SAFETY: the program gives room for `*len` bytes; no more are written.
        zero_or_minus_one(answer.and_then(|answer| unsafe {
            if (*len as usize) < size_of::<c_int>() {
                return Err(Errno::INVAL);
            }
            value.cast::<c_int>().write_unaligned(answer);
            *len = size_of::<c_int>() as socklen_t;
            Ok(())
        }))
    }

    fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        let Some(socket) = netlink_socket(fd) else {
            return short::whole(len, || true, |done| {
                on_socket(fd, Way::Out, || real::send(fd, buffer.wrapping_byte_add(done), len - done, flags))
            });
        };
        // SAFETY: the program's buffer.
        let bytes = unsafe { bytes(buffer, len) };
        sent(&socket, bytes)
    }

    fn sendto(
        fd: c_int,
        buffer: *const c_void,
        len: size_t,
        flags: c_int,
        name: *const sockaddr,
        name_len: socklen_t,
    ) -> ssize_t {
        let Some(socket) = netlink_socket(fd) else {
            return short::whole(len, || true, |done| {
                let buffer = buffer.wrapping_byte_add(done);
                on_socket(fd, Way::Out, || real::sendto(fd, buffer, len - done, flags, name, name_len))
            });
        };
        // SAFETY: the program's address and buffer.
        let bytes = unsafe { address::must_be_kernel(name, name_len).and_then(|()| bytes(buffer, len)) };
        sent(&socket, bytes)
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        let Some(socket) = netlink_socket(fd) else {
            return send_parts(fd, message, flags);
        };
        if message.is_null() {
            return minus_one(Errno::FAULT);
        }
        // SAFETY: the program's message.
        let bytes = unsafe {
            let message = &*message;
            address::must_be_kernel(message.msg_name.cast(), message.msg_namelen).and_then(|()| gathered(message))
        };
        sent(&socket, bytes.as_deref().map_err(|errno| *errno))
    }

    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        let result = short::whole(len, || flags & (libc::MSG_WAITALL | libc::MSG_PEEK) == libc::MSG_WAITALL, |done| {
            on_socket(fd, Way::In, || real::recv(fd, buffer.wrapping_byte_add(done), len - done, flags))
        });
        received(fd, result)
    }

    /// `recv` under `_FORTIFY_SOURCE`.
    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        let result = short::whole(len, || flags & (libc::MSG_WAITALL | libc::MSG_PEEK) == libc::MSG_WAITALL, |done| {
            let (buffer, room) = (buffer.wrapping_byte_add(done), room.saturating_sub(done));
            on_socket(fd, Way::In, || real::__recv_chk(fd, buffer, len - done, room, flags))
        });
        received(fd, result)
    }

    fn recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        flags: c_int,
        name: *mut sockaddr,
        name_len: *mut socklen_t,
    ) -> ssize_t {
        receive_from(fd, name, name_len, || real::recvfrom(fd, buffer, len, flags, name, name_len))
    }

    /// `recvfrom` under `_FORTIFY_SOURCE`.
    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
        name: *mut sockaddr,
        name_len: *mut socklen_t,
    ) -> ssize_t {
        receive_from(fd, name, name_len, || real::__recvfrom_chk(fd, buffer, len, room, flags, name, name_len))
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        if !is_netlink(fd) || message.is_null() {
            return on_socket(fd, Way::In, || real::recvmsg(fd, message, flags));
        }
        // SAFETY: the program's message; the length of its address is overwritten by the call.
        let room = unsafe { (*message).msg_namelen };
        let result = on_socket(fd, Way::In, || real::recvmsg(fd, message, flags));
        if result >= 0 {
            // SAFETY: the program's message, with room for an address of the length that it said.
            unsafe {
                let mut len = room;
                address::write(KERNEL, (*message).msg_name.cast(), &raw mut len);
                (*message).msg_namelen = if (*message).msg_name.is_null() { 0 } else { len };
            }
        }
        received(fd, result)
    }
}

#[inline]
fn send_parts(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's message, or null, which the call itself refuses.
    let (parts, count) =
        unsafe { message.as_ref() }.map_or((null(), 0), |message| (message.msg_iov.cast_const(), message.msg_iovlen));
    let all = || on_socket(fd, Way::Out, || real::sendmsg(fd, message, flags));
    let one = |Piece { at, len, .. }| on_socket(fd, Way::Out, || real::send(fd, at, len, flags));
    short::whole_parts(parts, count as c_int, || true, all, one)
}

#[inline]
fn is_netlink(fd: c_int) -> bool {
    descriptors::peek_as::<NetlinkSocket>(fd).is_some()
}

#[inline]
fn netlink_socket(fd: c_int) -> Option<Arc<NetlinkSocket>> {
    if is_netlink(fd) { netlink::find(fd) } else { None }
}

/// Sends the bytes that the program wrote to a netlink socket by `write()`; none where `fd` is not one.
pub(super) fn write_netlink(fd: c_int, bytes: &[u8]) -> Option<ssize_t> {
    netlink_socket(fd).map(|socket| sent(&socket, Ok(bytes)))
}

fn sent(socket: &NetlinkSocket, bytes: Result<&[u8], Errno>) -> ssize_t {
    match bytes.and_then(|bytes| socket.send(bytes).map(|()| bytes.len())) {
        Ok(len) => len as ssize_t,
        Err(errno) => minus_one(errno),
    }
}

/// Called after a receive. Nothing is held while a thread waits in it, since the thread may be cancelled there.
fn received(fd: c_int, result: ssize_t) -> ssize_t {
    if result >= 0
        && let Some(socket) = netlink_socket(fd)
    {
        socket.received();
    }
    result
}

fn receive_from(fd: c_int, name: *mut sockaddr, name_len: *mut socklen_t, call: impl FnMut() -> ssize_t) -> ssize_t {
    if !is_netlink(fd) || name.is_null() || name_len.is_null() {
        let result = on_socket(fd, Way::In, call);
        return received(fd, result);
    }
    // SAFETY: the program's length, which the call overwrites.
    let mut room = unsafe { *name_len };
    let result = on_socket(fd, Way::In, call);
    if result >= 0 {
        // SAFETY: the program gives room for as many bytes as it said.
        unsafe {
            address::write(KERNEL, name, &raw mut room);
            *name_len = room;
        }
    }
    received(fd, result)
}

/// Options for which a netlink socket answers differently from the socket behind it.
fn option(socket: &NetlinkSocket, level: c_int, name: c_int) -> Option<Result<c_int, Errno>> {
    match (level, name) {
        (libc::SOL_NETLINK, _) => Some(socket.with_options(|options| options.value(name))),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => Some(Ok(libc::AF_NETLINK)),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Some(Ok(NETLINK_RDMA)),
        (libc::SOL_SOCKET, libc::SO_TYPE) => Some(Ok(socket.kind().as_raw().cast_signed())),
        _ => None,
    }
}

/// # Safety
/// `buffer` must be null or valid for `len` bytes.
unsafe fn bytes<'a>(buffer: *const c_void, len: size_t) -> Result<&'a [u8], Errno> {
    match len {
        0 => Ok(&[]),
        _ if buffer.is_null() => Err(Errno::FAULT),
        _ if len > isize::MAX as usize => Err(Errno::MSGSIZE),
        // SAFETY: by the contract.
        _ => Ok(unsafe { std::slice::from_raw_parts(buffer.cast(), len) }),
    }
}

/// The parts of a message, together.
///
/// # Safety
/// The message's parts must be valid.
unsafe fn gathered(message: &msghdr) -> Result<Vec<u8>, Errno> {
    let mut all = Vec::new();
    for at in 0..message.msg_iovlen {
        // SAFETY: by the contract.
        all.extend_from_slice(unsafe {
            let part = *message.msg_iov.add(at);
            bytes(part.iov_base, part.iov_len)?
        });
    }
    Ok(all)
}

/// The kernel's own port.
const KERNEL: u32 = 0;
