//! Reads and writes of several parts, and at a place of a file.
#![allow(unsafe_code)]

use super::short::Piece;
use super::waits::{Way, never_waits, on_socket};
use super::{replace, short};
use crate::real;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

replace! {
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        short::whole(len, || never_waits(fd), |done| {
            on_socket(fd, Way::In, || real::__read_chk(fd, buffer.wrapping_byte_add(done), len - done, room.saturating_sub(done)))
        })
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        let all = || on_socket(fd, Way::In, || real::readv(fd, parts, count));
        short::whole_parts(parts, count, || never_waits(fd), all, |Piece { at, len, .. }| real::read(fd, at, len))
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        let all = || on_socket(fd, Way::Out, || real::writev(fd, parts, count));
        let one = |Piece { at, len, .. }| on_socket(fd, Way::Out, || real::write(fd, at, len));
        short::whole_parts(parts, count, || true, all, one)
    }

    fn pread(fd: c_int, buffer: *mut c_void, len: size_t, at: off_t) -> ssize_t {
        from_place(len, at, |done, at| real::pread(fd, buffer.wrapping_byte_add(done), len - done, at))
    }

    fn pread64(fd: c_int, buffer: *mut c_void, len: size_t, at: off_t) -> ssize_t {
        from_place(len, at, |done, at| real::pread64(fd, buffer.wrapping_byte_add(done), len - done, at))
    }

    fn __pread_chk(fd: c_int, buffer: *mut c_void, len: size_t, at: off_t, room: size_t) -> ssize_t {
        from_place(len, at, |done, at| {
            real::__pread_chk(fd, buffer.wrapping_byte_add(done), len - done, at, room.saturating_sub(done))
        })
    }

    fn __pread64_chk(fd: c_int, buffer: *mut c_void, len: size_t, at: off_t, room: size_t) -> ssize_t {
        from_place(len, at, |done, at| {
            real::__pread64_chk(fd, buffer.wrapping_byte_add(done), len - done, at, room.saturating_sub(done))
        })
    }

    fn pwrite(fd: c_int, buffer: *const c_void, len: size_t, at: off_t) -> ssize_t {
        from_place(len, at, |done, at| real::pwrite(fd, buffer.wrapping_byte_add(done), len - done, at))
    }

    fn pwrite64(fd: c_int, buffer: *const c_void, len: size_t, at: off_t) -> ssize_t {
        from_place(len, at, |done, at| real::pwrite64(fd, buffer.wrapping_byte_add(done), len - done, at))
    }

    fn preadv(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t {
        read_parts_at(fd, parts, count, at, || real::preadv(fd, parts, count, at))
    }

    fn preadv64(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t {
        read_parts_at(fd, parts, count, at, || real::preadv64(fd, parts, count, at))
    }

    fn pwritev(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t {
        write_parts_at(fd, parts, count, at, || real::pwritev(fd, parts, count, at))
    }

    fn pwritev64(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t {
        write_parts_at(fd, parts, count, at, || real::pwritev64(fd, parts, count, at))
    }
}

/// `call` is told how many bytes are done, and the place of the next.
#[inline]
fn from_place(len: size_t, at: off_t, mut call: impl FnMut(size_t, off_t) -> ssize_t) -> ssize_t {
    short::whole(len, || true, |done| call(done, at + done as off_t))
}

#[inline]
fn read_parts_at(fd: c_int, parts: *const iovec, count: c_int, at: off_t, all: impl FnOnce() -> ssize_t) -> ssize_t {
    let one = |piece: Piece| real::pread(fd, piece.at, piece.len, at + piece.done as off_t);
    short::whole_parts(parts, count, || true, all, one)
}

#[inline]
fn write_parts_at(fd: c_int, parts: *const iovec, count: c_int, at: off_t, all: impl FnOnce() -> ssize_t) -> ssize_t {
    let one = |piece: Piece| real::pwrite(fd, piece.at, piece.len, at + piece.done as off_t);
    short::whole_parts(parts, count, || true, all, one)
}
