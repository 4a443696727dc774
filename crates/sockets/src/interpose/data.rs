//! Functions that carry bytes.
#![allow(unsafe_code)]

use super::replace;
use crate::stream::{Deadline, Stream};
use crate::table::with_stream;
use libc::{
    c_int, c_long, c_uint, c_void, cmsghdr, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec,
};
use rdmesh_preload::system_call::pass_on;
use rdmesh_preload::{errno, real};
use rdmesh_streams::report::Reason;
use rdmesh_streams::ring::Piece;
use rustix::io::Errno;

replace! {
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
        if count == 0 {
            return real::early_read(fd, buffer, count);
        }
        receive(fd, buffer, count, 0).unwrap_or_else(|| real::early_read(fd, buffer, count))
    }

    fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t) -> ssize_t {
        checked(fd, buffer, count, room, 0).unwrap_or_else(|| real::__read_chk(fd, buffer, count, room))
    }

    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
        send_one(fd, buffer, count, 0).unwrap_or_else(|| real::write(fd, buffer, count))
    }

    fn recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
        receive(fd, buffer, count, flags).unwrap_or_else(|| real::recv(fd, buffer, count, flags))
    }

    fn __recv_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t, flags: c_int) -> ssize_t {
        checked(fd, buffer, count, room, flags).unwrap_or_else(|| real::__recv_chk(fd, buffer, count, room, flags))
    }

    fn recvfrom(
        fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t,
    ) -> ssize_t {
        receive(fd, buffer, count, flags).map(|received| without_name(received, from, from_len))
            .unwrap_or_else(|| real::recvfrom(fd, buffer, count, flags, from, from_len))
    }

    fn __recvfrom_chk(
        fd: c_int, buffer: *mut c_void, count: size_t, room: size_t, flags: c_int, from: *mut sockaddr,
        from_len: *mut socklen_t,
    ) -> ssize_t {
        checked(fd, buffer, count, room, flags).map(|received| without_name(received, from, from_len))
            .unwrap_or_else(|| real::__recvfrom_chk(fd, buffer, count, room, flags, from, from_len))
    }

    fn send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t {
        send_one(fd, buffer, count, flags).unwrap_or_else(|| real::send(fd, buffer, count, flags))
    }

    fn sendto(
        fd: c_int, buffer: *const c_void, count: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t,
    ) -> ssize_t {
        send_one(fd, buffer, count, flags).unwrap_or_else(|| real::sendto(fd, buffer, count, flags, to, to_len))
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        receive_parts(fd, parts, count, 0).unwrap_or_else(|| real::readv(fd, parts, count))
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        send_parts(fd, parts, count, 0).unwrap_or_else(|| real::writev(fd, parts, count))
    }

    fn preadv2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        without_offset(at, flags, |flags| receive_parts(fd, parts, count, flags))
            .unwrap_or_else(|| real::preadv2(fd, parts, count, at, flags))
    }

    fn preadv64v2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        without_offset(at, flags, |flags| receive_parts(fd, parts, count, flags))
            .unwrap_or_else(|| real::preadv64v2(fd, parts, count, at, flags))
    }

    fn pwritev2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        without_offset(at, flags, |flags| send_parts(fd, parts, count, flags))
            .unwrap_or_else(|| real::pwritev2(fd, parts, count, at, flags))
    }

    fn pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        without_offset(at, flags, |flags| send_parts(fd, parts, count, flags))
            .unwrap_or_else(|| real::pwritev64v2(fd, parts, count, at, flags))
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        with_stream(fd, |stream| received_message(stream, fd, message, flags))
            .unwrap_or_else(|| real::recvmsg(fd, message, flags))
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        with_stream(fd, |stream| sent_message(stream, fd, message, flags)).unwrap_or_else(|| {
            super::programs::descriptors_leave(message);
            real::sendmsg(fd, message, flags)
        })
    }

    fn recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec,
    ) -> c_int {
        // SAFETY: the program hands a time, or NULL.
        received_messages(fd, messages, count, flags, unsafe { timeout.as_mut() })
            .unwrap_or_else(|| real::recvmmsg(fd, messages, count, flags, timeout))
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        each_message(fd, messages, count, |stream, message, _| sent_message(stream, fd, message, flags))
            .unwrap_or_else(|| real::sendmmsg(fd, messages, count, flags))
    }

    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        sent_file(out, from, offset, count).unwrap_or_else(|| kernel_sendfile(out, from, offset, count))
    }

    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        sent_file(out, from, offset, count).unwrap_or_else(|| kernel_sendfile(out, from, offset, count))
    }

    fn splice(
        from: c_int, from_offset: *mut libc::loff_t, to: c_int, to_offset: *mut libc::loff_t, count: size_t, flags: c_uint,
    ) -> ssize_t {
        // Pages of pipes are the kernel's: it does it, on TCP.
        for fd in [from, to] {
            with_stream(fd, |stream| stream.move_to_tcp(fd, Reason::Splice));
        }
        let [in_offset, out_offset] = [from_offset, to_offset].map(|offset| offset.expose_provenance() as c_long);
        let call =
            [libc::SYS_splice, from.into(), in_offset, to.into(), out_offset, count as c_long, flags.into()];
        pass_on(&call) as ssize_t
    }
}

/// The value of a call: a count, or -1 with `errno` set.
fn value(result: Result<usize, Errno>) -> ssize_t {
    result.map_or_else(errno::minus_one, |count| count as ssize_t)
}

fn receive_parts(fd: c_int, parts: *const iovec, count: c_int, flags: c_int) -> Option<ssize_t> {
    let pieces = || pieces(parts, count as usize, Errno::INVAL);
    with_stream(fd, |stream| value(pieces().and_then(|pieces| stream.receive(fd, pieces, flags))))
}

fn send_parts(fd: c_int, parts: *const iovec, count: c_int, flags: c_int) -> Option<ssize_t> {
    let pieces = || pieces(parts, count as usize, Errno::INVAL);
    with_stream(fd, |stream| value(pieces().and_then(|pieces| stream.send(fd, pieces, flags))))
}

/// Calls `carry` with the flags of a message that are those of `preadv2` or `pwritev2`, at no offset; none where the kernel refuses
/// the call.
fn without_offset(at: off_t, flags: c_int, carry: impl FnOnce(c_int) -> Option<ssize_t>) -> Option<ssize_t> {
    const TAKEN: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND;
    if at != -1 || flags & !TAKEN != 0 {
        return None;
    }
    carry(if flags & libc::RWF_NOWAIT == 0 { 0 } else { libc::MSG_DONTWAIT })
}

fn receive(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> Option<ssize_t> {
    with_stream(fd, |stream| value(stream.receive(fd, &[Piece { base: buffer.cast(), len: count }], flags)))
}

/// As the functions that the compiler calls where it knows the buffer's size: a larger count ends the program, in libc's own.
fn checked(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t, flags: c_int) -> Option<ssize_t> {
    if count > room { None } else { receive(fd, buffer, count, flags) }
}

fn send_one(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> Option<ssize_t> {
    with_stream(fd, |stream| value(stream.send(fd, &[Piece { base: buffer.cast_mut().cast(), len: count }], flags)))
}

/// The pieces of a list. Where it is longer than the kernel takes that is `too_long`, which is not the same for all calls.
fn pieces<'a>(parts: *const iovec, count: usize, too_long: Errno) -> Result<&'a [Piece], Errno> {
    match count {
        0 => Ok(&[]),
        _ if count > libc::UIO_MAXIOV as usize => Err(too_long),
        _ if parts.is_null() => Err(Errno::FAULT),
        // SAFETY: the program hands so many; a piece has the layout of an iovec.
        _ => Ok(unsafe { std::slice::from_raw_parts(parts.cast(), count) }),
    }
}

fn received_message(stream: &Stream, fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if message.is_null() || flags & libc::MSG_ERRQUEUE != 0 {
        return real::recvmsg(fd, message, flags);
    }
    // SAFETY: the program hands a message.
    let message = unsafe { &mut *message };
    let received = pieces_of(message).and_then(|pieces| stream.receive(fd, pieces, flags));
    if received.is_ok() {
        // As TCP: no name, and no control message but one.
        let room = std::mem::take(&mut message.msg_controllen);
        message.msg_flags = 0;
        if let Some(left) = stream.left_to_read(fd) {
            put_control(message, room, left);
        }
        if !message.msg_name.is_null() {
            message.msg_namelen = 0;
        }
    }
    value(received)
}

/// Puts a control message of `TCP_INQ` where the program wants it, as the kernel's `put_cmsg` does: cut off where it does not fit.
fn put_control(message: &mut msghdr, room: size_t, value: c_int) {
    const HEADER: usize = size_of::<cmsghdr>();
    if message.msg_control.is_null() || room < HEADER {
        message.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let len = HEADER + size_of::<c_int>();
    if room < len {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
    // SAFETY: plain data, of which all zeros is a value.
    let mut header: cmsghdr = unsafe { std::mem::zeroed() };
    header.cmsg_len = len.min(room) as _;
    (header.cmsg_level, header.cmsg_type) = (libc::IPPROTO_TCP, libc::TCP_INQ);
    let bytes = value.to_ne_bytes();
    // SAFETY: the program hands so much room, and the bytes of the value that fit into it are copied.
    unsafe {
        message.msg_control.cast::<cmsghdr>().write_unaligned(header);
        let to = message.msg_control.cast::<u8>().add(HEADER);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, (len.min(room) - HEADER).min(bytes.len()));
    }
    message.msg_controllen = room.min(HEADER + size_of::<size_t>()) as _;
}

/// The time ends the wait between two messages, and not that for the first, as the kernel's `do_recvmmsg` has it.
fn received_messages(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    mut time: Option<&mut timespec>,
) -> Option<c_int> {
    with_stream(fd, |_| ())?;
    let deadline = match Deadline::after(time.as_deref().copied()) {
        Ok(deadline) => deadline,
        Err(errno) => return Some(errno::minus_one(errno)),
    };
    let received = each_message(fd, messages, count, |stream, message, n| {
        if n != 0 && deadline.is_over() {
            return errno::minus_one(Errno::AGAIN);
        }
        // Only the first is waited for, with MSG_WAITFORONE; after that, what is there.
        let flags = if n != 0 && flags & libc::MSG_WAITFORONE != 0 { flags | libc::MSG_DONTWAIT } else { flags };
        received_message(stream, fd, message, flags & !libc::MSG_WAITFORONE)
    })?;
    if let (1.., Some(time), Some(left)) = (received, &mut time, deadline.left()) {
        **time = left;
    }
    Some(received)
}

fn sent_message(stream: &Stream, fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if message.is_null() {
        return errno::minus_one(Errno::FAULT);
    }
    // SAFETY: the program hands a message.
    let message = unsafe { &*message };
    value(pieces_of(message).and_then(|pieces| stream.send(fd, pieces, flags)))
}

/// The pieces of a message, with the checks of the kernel's `copy_msghdr_from_user`.
fn pieces_of(message: &msghdr) -> Result<&[Piece], Errno> {
    if !message.msg_name.is_null() && message.msg_namelen.cast_signed() < 0 {
        return Err(Errno::INVAL);
    }
    pieces(message.msg_iov, message.msg_iovlen, Errno::MSGSIZE)
}

/// Calls `call` for each message until one fails or comes short; returns how many were done.
fn each_message(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    call: impl Fn(&Stream, *mut msghdr, usize) -> ssize_t,
) -> Option<c_int> {
    with_stream(fd, |stream| {
        let mut done = 0;
        while done < count.min(libc::UIO_MAXIOV as c_uint) as usize {
            // SAFETY: the program hands so many.
            let message = unsafe { &mut *messages.add(done) };
            let result = call(stream, &raw mut message.msg_hdr, done);
            if result < 0 {
                return if done == 0 { -1 } else { done as c_int };
            }
            message.msg_len = result as c_uint;
            done += 1;
        }
        done as c_int
    })
}

/// The value of a call that also tells a name, where the program asks for it: connections have none to tell.
fn without_name(received: ssize_t, name: *mut sockaddr, len: *mut socklen_t) -> ssize_t {
    if received < 0 || name.is_null() {
        return received;
    }
    // SAFETY: the program hands a length, or NULL.
    match unsafe { len.as_mut() } {
        None => errno::minus_one(Errno::FAULT),
        Some(len) if len.cast_signed() < 0 => errno::minus_one(Errno::INVAL),
        Some(len) => {
            *len = 0;
            received
        }
    }
}

fn kernel_sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // What comes from a stream is read by the kernel.
    with_stream(from, |stream| stream.move_to_tcp(from, Reason::Splice));
    let offset = offset.expose_provenance() as c_long;
    pass_on(&[libc::SYS_sendfile, out.into(), from.into(), offset, count as c_long, 0, 0]) as ssize_t
}

/// Reads from a file into the ring of a stream. Where that cannot be read at an offset, as a pipe, the kernel does it, on TCP.
fn sent_file(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> Option<ssize_t> {
    with_stream(out, |stream| {
        stream.channel()?;
        // SAFETY: the program hands an offset, or NULL.
        let mut at = match unsafe { offset.as_ref() } {
            Some(at) => *at,
            // SAFETY: asks for a number.
            None => unsafe { libc::lseek(from, 0, libc::SEEK_CUR) },
        };
        let mut done = 0;
        let failed = loop {
            match send_part(stream, out, from, at, (count - done).min(CHUNK)) {
                Ok(0) => break None,
                Ok(sent) => (done, at) = (done + sent, at + sent as off_t),
                Err(errno) => break Some(errno),
            }
            if done == count {
                break None;
            }
        };
        match failed {
            Some(Errno::SPIPE) if done == 0 => {
                stream.move_to_tcp(out, Reason::Splice);
                return None;
            }
            Some(errno) if done == 0 => return Some(errno::minus_one(errno)),
            _ => {}
        }
        // SAFETY: as above.
        match unsafe { offset.as_mut() } {
            Some(place) => *place = at,
            // SAFETY: moves the program's file behind what was sent, as the kernel does.
            None => drop(unsafe { libc::lseek(from, at, libc::SEEK_SET) }),
        }
        Some(done as ssize_t)
    })
    .flatten()
}

/// Sends a part of a file: straight into the ring, or by a copy where there is no room or the direction is on TCP.
fn send_part(stream: &Stream, out: c_int, from: c_int, at: off_t, most: usize) -> Result<usize, Errno> {
    let read = |piece: Piece| {
        // SAFETY: the piece is writable memory, of a ring or of the buffer below.
        let read = unsafe { libc::pread(from, piece.base.cast(), piece.len, at) };
        usize::try_from(read).map_err(|_| errno::get())
    };
    if let Some(sent) = stream.send_by(out, most, read) {
        return sent;
    }
    let mut buffer = vec![0u8; most.min(SMALL)];
    let piece = Piece { base: buffer.as_mut_ptr(), len: buffer.len() };
    match read(piece)? {
        0 => Ok(0),
        len => stream.send(out, &[Piece { len, ..piece }], 0),
    }
}

const CHUNK: usize = 1 << 20;
/// Bytes that are copied where a file cannot be read straight into the ring.
const SMALL: usize = 16 << 10;
