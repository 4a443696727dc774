//! Functions that open a path, ask for access to it, or read it as a link.
#![allow(unsafe_code)]

use super::replace;
use super::route::{fail, route};
use crate::errno::minus_one;
use crate::place::{self, Device, Last, Place, view};
use crate::session::{self, cm, counters};
use crate::{endpoint, real};
use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, FILE, c_char, c_int, c_void, dirent, mode_t, size_t, ssize_t};
use rustix::fd::{AsRawFd, IntoRawFd};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::ptr::null_mut;

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

/// As in sysfs no file can be made, and the modes allow no writing; a superuser could write to the files in the endpoint's
/// directory.
fn may_open(path: &CStr, flags: c_int) -> Result<(), Errno> {
    let is_to_make = flags & libc::O_CREAT != 0;
    let is_to_write = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
    if flags & libc::O_PATH != 0 || !is_to_make && !is_to_write {
        return Ok(());
    }
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return Err(Errno::OPNOTSUPP);
    }
    match rustix::fs::stat(path) {
        Ok(_) if is_to_make && flags & libc::O_EXCL != 0 => Err(Errno::EXIST),
        Ok(about) if FileType::from_raw_mode(about.st_mode).is_dir() => Err(Errno::ISDIR),
        Ok(_) if is_to_write => Err(Errno::ACCESS),
        Ok(_) => Ok(()),
        Err(Errno::NOENT) if is_to_make && has_parent(path) => Err(Errno::ACCESS),
        Err(errno) => Err(errno),
    }
}

fn has_parent(path: &CStr) -> bool {
    let path = path.to_bytes();
    let parent = path.iter().rposition(|&byte| byte == b'/').map(|end| &path[..end]);
    parent.is_some_and(|parent| rustix::fs::stat(parent).is_ok())
}

#[inline]
pub(super) fn open_at(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    real: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    const EXCLUSIVE: c_int = libc::O_CREAT | libc::O_EXCL;
    let is_link = flags & libc::O_NOFOLLOW != 0 || flags & EXCLUSIVE == EXCLUSIVE;
    let opened = match place::of(at, path, if is_link { Last::Keep } else { Last::Follow }) {
        Place::Elsewhere => return real(at, path),
        Place::Above => {
            view::opened();
            return real(at, path);
        }
        Place::Outside(path) => {
            view::opened();
            return real(AT_FDCWD, path.as_ptr());
        }
        Place::File(path) => match may_open(&path, flags) {
            Ok(()) => {
                view::opened();
                return real(AT_FDCWD, path.as_ptr());
            }
            Err(errno) => Err(errno),
        },
        Place::Counter(path) => {
            counters::open(&path, OFlags::from_bits_retain(flags.cast_unsigned())).map(IntoRawFd::into_raw_fd)
        }
        Place::Device(device) => open_device(device, flags),
        Place::Failed(errno) => Err(errno),
    };
    opened.unwrap_or_else(minus_one)
}

#[inline]
fn open_stream(path: *const c_char, mode: *const c_char, real: impl FnOnce(*const c_char) -> *mut FILE) -> *mut FILE {
    let opened = match place::of(AT_FDCWD, path, Last::Follow) {
        Place::Elsewhere | Place::Above => return real(path),
        Place::Outside(path) => return real(path.as_ptr()),
        Place::File(path) => match may_open(&path, stream_flags(mode)) {
            Ok(()) => return real(path.as_ptr()),
            Err(errno) => Err(errno),
        },
        Place::Counter(path) => stream_counter(&path, mode, real),
        Place::Device(_) => Err(Errno::NXIO),
        Place::Failed(errno) => Err(errno),
    };
    opened.unwrap_or_else(fail)
}

/// The flags for a mode of `fopen`.
fn stream_flags(mode: *const c_char) -> c_int {
    // SAFETY: a C string of the caller's.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let access = if mode.contains(&b'+') { libc::O_RDWR } else { libc::O_WRONLY };
    let kept = if mode.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    kept | match mode.first() {
        Some(b'r') if access == libc::O_WRONLY => libc::O_RDONLY,
        Some(b'r') => access,
        _ => access | libc::O_CREAT,
    }
}

/// Opens a counter's present value, as a stream: by its descriptor's path, so that `freopen` works too.
fn stream_counter(
    path: &CStr,
    mode: *const c_char,
    real: impl FnOnce(*const c_char) -> *mut FILE,
) -> Result<*mut FILE, Errno> {
    let figure = counters::open(path, OFlags::from_bits_retain(stream_flags(mode).cast_unsigned()))?;
    let path = CString::new(format!("/proc/self/fd/{}", figure.as_raw_fd())).map_err(|_| Errno::INVAL)?;
    Ok(real(path.as_ptr()))
}

fn link_at(
    at: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    len: size_t,
    real: impl FnOnce(c_int, *const c_char) -> ssize_t,
) -> ssize_t {
    match place::of(at, path, Last::Keep) {
        Place::Elsewhere | Place::Above if view::is_any_near() => kernels_link(at, path, buffer, len, real),
        Place::Elsewhere | Place::Above => real(at, path),
        Place::File(path) | Place::Counter(path) | Place::Outside(path) => real(AT_FDCWD, path.as_ptr()),
        Place::Device(_) => minus_one(Errno::INVAL),
        Place::Failed(errno) => minus_one(errno),
    }
}

/// A link of `/proc` may lead to a directory of the tree, for which the program is shown another path.
fn kernels_link(
    at: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    len: size_t,
    real: impl FnOnce(c_int, *const c_char) -> ssize_t,
) -> ssize_t {
    // SAFETY: a C string of the caller's; null leads elsewhere too, and fails.
    let is_kernels = !path.is_null() && unsafe { CStr::from_ptr(path) }.to_bytes().starts_with(b"/proc/");
    if !is_kernels {
        return real(at, path);
    }
    // SAFETY: as above.
    match rustix::fs::readlinkat(rustix::fs::CWD, unsafe { CStr::from_ptr(path) }, Vec::new()) {
        Ok(target) => match view::shown(target.as_bytes()) {
            Some(shown) => {
                let len = len.min(shown.len());
                // SAFETY: the caller gives `len` bytes.
                unsafe { std::ptr::copy_nonoverlapping(shown.as_ptr().cast(), buffer, len) };
                len as ssize_t
            }
            None => real(at, path),
        },
        Err(_) => real(at, path),
    }
}

fn last(flags: c_int) -> Last {
    if flags & AT_SYMLINK_NOFOLLOW != 0 { Last::Keep } else { Last::Follow }
}

/// The path of `canonical` as `realpath` gives it.
fn give_path(path: &CStr, resolved: *mut c_char) -> *mut c_char {
    if resolved.is_null() {
        // SAFETY: a C string; the caller frees the copy, as realpath's contract says.
        return unsafe { libc::strdup(path.as_ptr()) };
    }
    let bytes = path.to_bytes_with_nul();
    if bytes.len() > libc::PATH_MAX as usize {
        return fail(Errno::NAMETOOLONG);
    }
    // SAFETY: realpath's caller gives room for PATH_MAX bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), resolved, bytes.len()) };
    resolved
}

/// Translates a path of the kernel's, in memory of the caller's, to the one that the program is shown.
fn show(path: *mut c_char) -> *mut c_char {
    if !path.is_null() && view::is_any_near() {
        // SAFETY: libc has just written a C string; what is shown is its end.
        unsafe {
            if let Some(shown) = view::shown(CStr::from_ptr(path).to_bytes()) {
                std::ptr::copy(shown.as_ptr().cast(), path, shown.len() + 1);
            }
        }
    }
    path
}

replace! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, path, flags, |_, path| real::open(path, flags, mode))
    }

    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, path, flags, |_, path| real::open64(path, flags, mode))
    }

    fn openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(at, path, flags, |at, path| real::openat(at, path, flags, mode))
    }

    fn openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(at, path, flags, |at, path| real::openat64(at, path, flags, mode))
    }

    /// `open` without a mode under `_FORTIFY_SOURCE`; likewise the next three.
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(AT_FDCWD, path, flags, |_, path| real::open(path, flags, 0))
    }

    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(AT_FDCWD, path, flags, |_, path| real::open64(path, flags, 0))
    }

    fn __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(at, path, flags, |at, path| real::openat(at, path, flags, 0))
    }

    fn __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(at, path, flags, |at, path| real::openat64(at, path, flags, 0))
    }

    fn creat(path: *const c_char, mode: mode_t) -> c_int {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        open_at(AT_FDCWD, path, flags, |_, path| real::open(path, flags, mode))
    }

    fn creat64(path: *const c_char, mode: mode_t) -> c_int {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        open_at(AT_FDCWD, path, flags, |_, path| real::open64(path, flags, mode))
    }

    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        open_stream(path, mode, |path| real::fopen(path, mode))
    }

    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        open_stream(path, mode, |path| real::fopen64(path, mode))
    }

    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        open_stream(path, mode, |path| real::freopen(path, mode, stream))
    }

    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        open_stream(path, mode, |path| real::freopen64(path, mode, stream))
    }

    fn scandir(
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: *const c_void,
        order: *const c_void,
    ) -> c_int {
        let real = |_, path| real::scandir(path, list, filter, order);
        route(AT_FDCWD, path, Last::Follow, real, |_| Err(Errno::NOTDIR))
    }

    fn scandir64(
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: *const c_void,
        order: *const c_void,
    ) -> c_int {
        let real = |_, path| real::scandir64(path, list, filter, order);
        route(AT_FDCWD, path, Last::Follow, real, |_| Err(Errno::NOTDIR))
    }

    fn scandirat(
        at: c_int,
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: *const c_void,
        order: *const c_void,
    ) -> c_int {
        let real = |at, path| real::scandirat(at, path, list, filter, order);
        route(at, path, Last::Follow, real, |_| Err(Errno::NOTDIR))
    }

    fn scandirat64(
        at: c_int,
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: *const c_void,
        order: *const c_void,
    ) -> c_int {
        let real = |at, path| real::scandirat64(at, path, list, filter, order);
        route(at, path, Last::Follow, real, |_| Err(Errno::NOTDIR))
    }

    fn access(path: *const c_char, mode: c_int) -> c_int {
        route(AT_FDCWD, path, Last::Follow, |_, path| real::access(path, mode), |_| access_device(mode))
    }

    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        route(AT_FDCWD, path, Last::Follow, |_, path| real::euidaccess(path, mode), |_| access_device(mode))
    }

    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        route(AT_FDCWD, path, Last::Follow, |_, path| real::eaccess(path, mode), |_| access_device(mode))
    }

    fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        route(at, path, last(flags), |at, path| real::faccessat(at, path, mode, flags), |_| access_device(mode))
    }

    fn readlink(path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t {
        link_at(AT_FDCWD, path, buffer, len, |_, path| real::readlink(path, buffer, len))
    }

    fn readlinkat(at: c_int, path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t {
        link_at(at, path, buffer, len, |at, path| real::readlinkat(at, path, buffer, len))
    }

    /// `readlink` under `_FORTIFY_SOURCE`; the next is `readlinkat`.
    fn __readlink_chk(path: *const c_char, buffer: *mut c_char, len: size_t, room: size_t) -> ssize_t {
        link_at(AT_FDCWD, path, buffer, len, |_, path| real::__readlink_chk(path, buffer, len, room))
    }

    fn __readlinkat_chk(at: c_int, path: *const c_char, buffer: *mut c_char, len: size_t, room: size_t) -> ssize_t {
        link_at(at, path, buffer, len, |at, path| real::__readlinkat_chk(at, path, buffer, len, room))
    }

    fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
        match place::canonical(path) {
            None => show(real::realpath(path, resolved)),
            Some(Ok(path)) => give_path(&path, resolved),
            Some(Err(errno)) => fail(errno),
        }
    }

    /// `realpath` under `_FORTIFY_SOURCE`.
    fn __realpath_chk(path: *const c_char, resolved: *mut c_char, _room: size_t) -> *mut c_char {
        realpath(path, resolved)
    }

    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        realpath(path, null_mut())
    }
}
