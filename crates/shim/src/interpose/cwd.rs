//! The working directory. In the endpoint's tree the real one is below the endpoint's directory.
#![allow(unsafe_code)]

use super::replace;
use super::route::{fail, route};
use crate::place::{self, Last, view};
use crate::real;
use libc::{AT_FDCWD, PATH_MAX, c_char, c_int, size_t};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;

/// Calls `real` unless the working directory is in the tree; then writes the path that the program is shown to `buffer`, or to
/// new memory where that is null, of `size` bytes or as large as necessary.
fn directory(buffer: *mut c_char, size: size_t, real: impl FnOnce() -> *mut c_char) -> *mut c_char {
    let Some(path) = shown_directory() else { return real() };
    let size = match (buffer.is_null(), size) {
        (true, 0) => path.len() + 1,
        (false, 0) => return fail(Errno::INVAL),
        _ => size,
    };
    if size <= path.len() {
        return fail(Errno::RANGE);
    }
    // SAFETY: the caller frees it, as getcwd's contract says.
    let buffer = if buffer.is_null() { unsafe { libc::malloc(size) }.cast() } else { buffer };
    if !buffer.is_null() {
        // SAFETY: there are `size` bytes, more than the path has.
        unsafe {
            std::ptr::copy_nonoverlapping(path.as_ptr().cast(), buffer, path.len());
            buffer.add(path.len()).write(0);
        }
    }
    buffer
}

fn shown_directory() -> Option<Vec<u8>> {
    if !view::is_any_near() {
        return None;
    }
    let path = rustix::process::getcwd(Vec::new()).ok()?;
    view::shown(path.as_bytes()).map(<[u8]>::to_vec)
}

/// The working directory according to the shell (`PWD`), where that is right.
fn named_directory() -> Option<Vec<u8>> {
    let name = std::env::var_os("PWD").filter(|name| name.as_bytes().starts_with(b"/"))?;
    let about = |path: &CStr| rustix::fs::stat(path).ok().map(|about| (about.st_dev, about.st_ino));
    // The name may lead into the tree: it is translated like the program's paths.
    let named = about(&place::kernels(&CString::new(name.as_bytes()).ok()?)?)?;
    (about(c".")? == named).then(|| name.into_encoded_bytes())
}

replace! {
    fn chdir(path: *const c_char) -> c_int {
        let real = |_, path| moved(real::chdir(path));
        route(AT_FDCWD, path, Last::Follow, real, |_| Err(Errno::NOTDIR))
    }

    fn fchdir(fd: c_int) -> c_int {
        moved(real::fchdir(fd))
    }

    fn getcwd(buffer: *mut c_char, size: size_t) -> *mut c_char {
        directory(buffer, size, || real::getcwd(buffer, size))
    }

    /// `getcwd` under `_FORTIFY_SOURCE`.
    fn __getcwd_chk(buffer: *mut c_char, size: size_t, room: size_t) -> *mut c_char {
        directory(buffer, size, || real::__getcwd_chk(buffer, size, room))
    }

    fn getwd(buffer: *mut c_char) -> *mut c_char {
        directory(buffer, PATH_MAX as size_t, || real::getwd(buffer))
    }

    fn get_current_dir_name() -> *mut c_char {
        match shown_directory().and_then(|_| named_directory()) {
            // SAFETY: the name is copied with a NUL behind it; the caller frees the copy.
            Some(name) => unsafe { libc::strndup(name.as_ptr().cast(), name.len()) },
            None => directory(null_mut(), 0, real::get_current_dir_name),
        }
    }
}

fn moved(result: c_int) -> c_int {
    if result == 0 {
        view::moved();
    }
    result
}
