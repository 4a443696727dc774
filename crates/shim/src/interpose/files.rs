//! Functions that take a path.
#![allow(unsafe_code)]

use super::replace;
use crate::errno::{self, minus_one};
use crate::place::{self, Device, Place};
use crate::session::{self, cm, counters};
use crate::{endpoint, real};
use libc::{DIR, FILE, c_char, c_int, c_void, dirent, mode_t, size_t, ssize_t};
use rustix::fd::IntoRawFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::CStr;
use std::ptr::null_mut;

/// Calls `real` with the path that the program's path leads to, or `device` where it is a device.
#[inline]
fn route<T>(
    path: *const c_char,
    real: impl FnOnce(*const c_char) -> T,
    device: impl FnOnce(Device) -> Result<T, Errno>,
    fail: impl FnOnce(Errno) -> T,
) -> T {
    route_to(place::of(path), path, real, device, fail)
}

#[inline]
fn route_to<T>(
    place: Place,
    path: *const c_char,
    real: impl FnOnce(*const c_char) -> T,
    device: impl FnOnce(Device) -> Result<T, Errno>,
    fail: impl FnOnce(Errno) -> T,
) -> T {
    let done = match place {
        Place::Elsewhere => return real(path),
        Place::Redirected(path) | Place::Counter(path) | Place::Folder(path) => return real(path.as_ptr()),
        Place::Device(which) => device(which),
        Place::Absent => Err(Errno::NOENT),
    };
    done.unwrap_or_else(fail)
}

fn no_pointer<T>(errno: Errno) -> *mut T {
    errno::set(errno);
    null_mut()
}

fn open_device(device: Device, flags: c_int) -> Result<c_int, Errno> {
    if flags & libc::O_DIRECTORY != 0 {
        return Err(Errno::NOTDIR);
    }
    let endpoint = endpoint::present().ok_or(Errno::NODEV)?;
    match device {
        Device::Verbs => session::open(endpoint, flags & libc::O_CLOEXEC != 0),
        Device::Cm => cm::open(endpoint, OFlags::from_bits_retain(flags.cast_unsigned())),
    }
}

fn access_device(mode: c_int) -> Result<c_int, Errno> {
    if mode & libc::X_OK != 0 { Err(Errno::ACCESS) } else { Ok(0) }
}

#[inline]
fn open_at(path: *const c_char, flags: c_int, real: impl FnOnce(*const c_char) -> c_int) -> c_int {
    match place::of(path) {
        Place::Counter(path) => counters::open(&path, OFlags::from_bits_retain(flags.cast_unsigned()))
            .map_or_else(minus_one, IntoRawFd::into_raw_fd),
        place => route_to(place, path, real, |device| open_device(device, flags), minus_one),
    }
}

#[inline]
fn open_stream(path: *const c_char, mode: *const c_char, real: impl FnOnce(*const c_char) -> *mut FILE) -> *mut FILE {
    match place::of(path) {
        Place::Counter(path) => stream_counter(&path, mode).unwrap_or_else(no_pointer),
        place => route_to(place, path, real, |_| Err(Errno::NXIO), no_pointer),
    }
}

fn stream_counter(path: &CStr, mode: *const c_char) -> Result<*mut FILE, Errno> {
    // SAFETY: a C string of the caller's.
    let asked = unsafe { CStr::from_ptr(mode) }.to_bytes();
    if !asked.starts_with(b"r") || asked.contains(&b'+') {
        return Err(Errno::ACCESS);
    }
    let flags = if asked.contains(&b'e') { OFlags::CLOEXEC } else { OFlags::empty() };
    let fd = counters::open(path, flags)?.into_raw_fd();
    // SAFETY: the descriptor becomes the stream's; the mode is the caller's.
    Ok(unsafe { libc::fdopen(fd, mode) })
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
        open_stream(path, mode, |path| real::fopen(path, mode))
    }

    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        open_stream(path, mode, |path| real::fopen64(path, mode))
    }

    fn opendir(path: *const c_char) -> *mut DIR {
        route(path, real::opendir, |_| Err(Errno::NOTDIR), no_pointer)
    }

    fn scandir(
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: *const c_void,
        order: *const c_void,
    ) -> c_int {
        route(path, |path| real::scandir(path, list, filter, order), |_| Err(Errno::NOTDIR), minus_one)
    }

    fn scandir64(
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: *const c_void,
        order: *const c_void,
    ) -> c_int {
        route(path, |path| real::scandir64(path, list, filter, order), |_| Err(Errno::NOTDIR), minus_one)
    }

    fn access(path: *const c_char, mode: c_int) -> c_int {
        route(path, |path| real::access(path, mode), |_| access_device(mode), minus_one)
    }

    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        route(path, |path| real::euidaccess(path, mode), |_| access_device(mode), minus_one)
    }

    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        route(path, |path| real::eaccess(path, mode), |_| access_device(mode), minus_one)
    }

    fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        route(path, |path| real::faccessat(at, path, mode, flags), |_| access_device(mode), minus_one)
    }

    fn readlink(path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t {
        route(path, |path| real::readlink(path, buffer, len), |_| Err(Errno::INVAL), minus_one)
    }

    fn readlinkat(at: c_int, path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t {
        route(path, |path| real::readlinkat(at, path, buffer, len), |_| Err(Errno::INVAL), minus_one)
    }

    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
        route(path, |path| real::realpath(path, resolved), |device| Ok(device_path(device, resolved)), no_pointer)
    }

    /// `realpath` under `_FORTIFY_SOURCE`.
    fn __realpath_chk(path: *const c_char, resolved: *mut c_char, _room: size_t) -> *mut c_char {
        realpath(path, resolved)
    }

    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        realpath(path, null_mut())
    }
}

fn device_path(device: Device, resolved: *mut c_char) -> *mut c_char {
    if resolved.is_null() {
        // SAFETY: a C string; the caller frees the copy, as realpath's contract says.
        return unsafe { libc::strdup(device.path().as_ptr()) };
    }
    let bytes = device.path().to_bytes_with_nul();
    // SAFETY: realpath's caller gives room for PATH_MAX bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), resolved, bytes.len()) };
    resolved
}
