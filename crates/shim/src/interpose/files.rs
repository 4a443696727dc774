//! Functions that take a path.
#![allow(unsafe_code)]

use super::replace;
use crate::errno::{self, minus_one};
use crate::place::{self, DEVICE_PATH, Place};
use crate::{endpoint, real, session};
use libc::{DIR, FILE, c_char, c_int, c_void, dirent, mode_t, size_t, ssize_t};
use rustix::io::Errno;
use std::ptr::null_mut;

/// Calls `real` with the path that the program's path leads to, or `device` where it is the device.
#[inline]
fn route<T>(
    path: *const c_char,
    real: impl FnOnce(*const c_char) -> T,
    device: impl FnOnce() -> Result<T, Errno>,
    fail: impl FnOnce(Errno) -> T,
) -> T {
    let done = match place::of(path) {
        Place::Elsewhere => return real(path),
        Place::Redirected(path) | Place::Folder(path) => return real(path.as_ptr()),
        Place::Device => device(),
        Place::Absent => Err(Errno::NOENT),
    };
    done.unwrap_or_else(fail)
}

fn no_pointer<T>(errno: Errno) -> *mut T {
    errno::set(errno);
    null_mut()
}

fn open_device(flags: c_int) -> Result<c_int, Errno> {
    if flags & libc::O_DIRECTORY != 0 {
        return Err(Errno::NOTDIR);
    }
    session::open(endpoint::present().ok_or(Errno::NODEV)?, flags & libc::O_CLOEXEC != 0)
}

fn access_device(mode: c_int) -> Result<c_int, Errno> {
    if mode & libc::X_OK != 0 { Err(Errno::ACCESS) } else { Ok(0) }
}

#[inline]
fn open_at(path: *const c_char, flags: c_int, real: impl FnOnce(*const c_char) -> c_int) -> c_int {
    route(path, real, || open_device(flags), minus_one)
}

replace! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(path, flags, |path| real::open(path, flags, mode))
    }

    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(path, flags, |path| real::open64(path, flags, mode))
    }

    fn openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(path, flags, |path| real::openat(at, path, flags, mode))
    }

    fn openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(path, flags, |path| real::openat64(at, path, flags, mode))
    }

    /// What `open` without a mode becomes under `_FORTIFY_SOURCE`; so are the next three.
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(path, flags, |path| real::open(path, flags, 0))
    }

    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(path, flags, |path| real::open64(path, flags, 0))
    }

    fn __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(path, flags, |path| real::openat(at, path, flags, 0))
    }

    fn __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(path, flags, |path| real::openat64(at, path, flags, 0))
    }

    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        route(path, |path| real::fopen(path, mode), || Err(Errno::NXIO), no_pointer)
    }

    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        route(path, |path| real::fopen64(path, mode), || Err(Errno::NXIO), no_pointer)
    }

    fn opendir(path: *const c_char) -> *mut DIR {
        route(path, real::opendir, || Err(Errno::NOTDIR), no_pointer)
    }

    fn scandir(
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: *const c_void,
        order: *const c_void,
    ) -> c_int {
        route(path, |path| real::scandir(path, list, filter, order), || Err(Errno::NOTDIR), minus_one)
    }

    fn scandir64(
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: *const c_void,
        order: *const c_void,
    ) -> c_int {
        route(path, |path| real::scandir64(path, list, filter, order), || Err(Errno::NOTDIR), minus_one)
    }

    fn access(path: *const c_char, mode: c_int) -> c_int {
        route(path, |path| real::access(path, mode), || access_device(mode), minus_one)
    }

    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        route(path, |path| real::euidaccess(path, mode), || access_device(mode), minus_one)
    }

    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        route(path, |path| real::eaccess(path, mode), || access_device(mode), minus_one)
    }

    fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        route(path, |path| real::faccessat(at, path, mode, flags), || access_device(mode), minus_one)
    }

    fn readlink(path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t {
        route(path, |path| real::readlink(path, buffer, len), || Err(Errno::INVAL), minus_one)
    }

    fn readlinkat(at: c_int, path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t {
        route(path, |path| real::readlinkat(at, path, buffer, len), || Err(Errno::INVAL), minus_one)
    }

    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
        route(path, |path| real::realpath(path, resolved), || Ok(device_path(resolved)), no_pointer)
    }

    /// `realpath` under `_FORTIFY_SOURCE`.
    fn __realpath_chk(path: *const c_char, resolved: *mut c_char, _room: size_t) -> *mut c_char {
        realpath(path, resolved)
    }

    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        realpath(path, null_mut())
    }
}

fn device_path(resolved: *mut c_char) -> *mut c_char {
    if resolved.is_null() {
        // SAFETY: a C string; the caller frees the copy, as realpath's contract says.
        return unsafe { libc::strdup(DEVICE_PATH.as_ptr()) };
    }
    let bytes = DEVICE_PATH.to_bytes_with_nul();
    // SAFETY: realpath's caller gives room for PATH_MAX bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), resolved, bytes.len()) };
    resolved
}
