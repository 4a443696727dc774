//! File system information, extended attributes, watches and handles of a path.
#![allow(unsafe_code)]

use super::files::open_at;
use super::replace;
use super::route::{fail, route};
use crate::place::{self, Last, Place, view};
use crate::real;
use libc::{AT_FDCWD, c_char, c_int, c_void, size_t, ssize_t};
use rustix::io::Errno;
use std::ffi::CStr;

/// Of `openat2`: flags that change the resolution of paths.
const OTHER_ROOT: u64 = libc::RESOLVE_IN_ROOT | libc::RESOLVE_BENEATH;

/// The file system that is reported for `path`: that of `/sys` or `/dev`, not of the endpoint's directory.
fn file_system(path: *const c_char, real: impl FnOnce(*const c_char) -> c_int) -> c_int {
    match place::of(AT_FDCWD, path, Last::Follow) {
        Place::Elsewhere | Place::Above => real(path),
        Place::Outside(path) => real(path.as_ptr()),
        Place::Device(_) => real(c"/dev".as_ptr()),
        Place::File(path) | Place::Counter(path) => match rustix::fs::stat(&*path) {
            Ok(_) => real(top(path.to_bytes()).as_ptr()),
            Err(errno) => fail(errno),
        },
        Place::Failed(errno) => fail(errno),
    }
}

fn top(path: &[u8]) -> &'static CStr {
    if view::shown(path).is_some_and(|path| path.starts_with(b"/dev")) { c"/dev" } else { c"/sys" }
}

/// The same of an open directory of the tree.
fn file_system_of(fd: c_int) -> Option<&'static CStr> {
    view::open_directory(fd).map(|path| top(&path))
}

replace! {
    fn statfs(path: *const c_char, out: *mut libc::statfs) -> c_int {
        file_system(path, |path| real::statfs(path, out))
    }

    fn statfs64(path: *const c_char, out: *mut libc::statfs) -> c_int {
        file_system(path, |path| real::statfs64(path, out))
    }

    fn statvfs(path: *const c_char, out: *mut libc::statvfs) -> c_int {
        file_system(path, |path| real::statvfs(path, out))
    }

    fn statvfs64(path: *const c_char, out: *mut libc::statvfs) -> c_int {
        file_system(path, |path| real::statvfs64(path, out))
    }

    fn fstatfs(fd: c_int, out: *mut libc::statfs) -> c_int {
        file_system_of(fd).map_or_else(|| real::fstatfs(fd, out), |path| real::statfs(path.as_ptr(), out))
    }

    fn fstatfs64(fd: c_int, out: *mut libc::statfs) -> c_int {
        file_system_of(fd).map_or_else(|| real::fstatfs64(fd, out), |path| real::statfs64(path.as_ptr(), out))
    }

    fn fstatvfs(fd: c_int, out: *mut libc::statvfs) -> c_int {
        file_system_of(fd).map_or_else(|| real::fstatvfs(fd, out), |path| real::statvfs(path.as_ptr(), out))
    }

    fn fstatvfs64(fd: c_int, out: *mut libc::statvfs) -> c_int {
        file_system_of(fd).map_or_else(|| real::fstatvfs64(fd, out), |path| real::statvfs64(path.as_ptr(), out))
    }

    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
        attribute(path, Last::Follow, |path| real::getxattr(path, name, value, size))
    }

    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
        attribute(path, Last::Keep, |path| real::lgetxattr(path, name, value, size))
    }

    fn listxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t {
        attribute(path, Last::Follow, |path| real::listxattr(path, list, size))
    }

    fn llistxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t {
        attribute(path, Last::Keep, |path| real::llistxattr(path, list, size))
    }

    /// A watch reports accesses to a file, not changes of its content: as in sysfs.
    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int {
        let last = if mask & libc::IN_DONT_FOLLOW != 0 { Last::Keep } else { Last::Follow };
        let real = |_, path| real::inotify_add_watch(fd, path, mask);
        route(AT_FDCWD, path, last, real, |_| Err(Errno::NOSPC))
    }

    fn name_to_handle_at(
        at: c_int,
        path: *const c_char,
        handle: *mut c_void,
        mount: *mut c_int,
        flags: c_int,
    ) -> c_int {
        let last = if flags & libc::AT_SYMLINK_FOLLOW != 0 { Last::Follow } else { Last::Keep };
        let real = |at, path| real::name_to_handle_at(at, path, handle, mount, flags);
        route(at, path, last, real, |_| Err(Errno::OPNOTSUPP))
    }

    fn openat2(at: c_int, path: *const c_char, how: *const libc::open_how, size: size_t) -> c_int {
        if how.is_null() || size < size_of::<libc::open_how>() {
            return real::openat2(at, path, how, size);
        }
        // SAFETY: the caller's struct, of at least this size.
        let (flags, resolve) = unsafe { ((*how).flags as c_int, (*how).resolve) };
        if resolve & OTHER_ROOT != 0 {
            return real::openat2(at, path, how, size);
        }
        open_at(at, path, flags, |at, path| real::openat2(at, path, how, size))
    }
}

fn attribute(path: *const c_char, last: Last, real: impl FnOnce(*const c_char) -> ssize_t) -> ssize_t {
    route(AT_FDCWD, path, last, |_, path| real(path), |_| Err(Errno::OPNOTSUPP))
}
