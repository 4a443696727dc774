//! The `stat` family: new names, the ones of glibc before 2.33, and `statx`.
#![allow(unsafe_code)]

use super::replace;
use crate::descriptors;
use crate::errno::minus_one;
use crate::place::{self, Device, Last, Place};
use crate::session::{CmChannel, Context};
use crate::{endpoint, real};
use libc::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, S_IFCHR, c_char, c_int, c_uint, c_void};
use rdmesh_uverbs::session::DeviceNumber;
use rustix::io::Errno;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

/// Also the struct of the functions with 64 in their names, on all machines with 64 bits.
type Stat = libc::stat;

/// Permissions of the devices.
const DEVICE_MODE: u32 = 0o666;
/// Subject of a `stat` call.
enum Subject {
    Elsewhere,
    Path(CString),
    Device(Device),
    Failed(Errno),
}

fn subject(at: c_int, path: *const c_char, flags: c_int) -> Subject {
    let last = if flags & AT_SYMLINK_NOFOLLOW != 0 { Last::Keep } else { Last::Follow };
    match place::of(at, path, last) {
        Place::Elsewhere if flags & AT_EMPTY_PATH != 0 && is_empty(path) => {
            device_of(at).map_or(Subject::Elsewhere, Subject::Device)
        }
        Place::Elsewhere | Place::Above => Subject::Elsewhere,
        Place::File(path) | Place::Counter(path) | Place::Outside(path) => Subject::Path(path),
        Place::Device(device) => Subject::Device(device),
        Place::Failed(errno) => Subject::Failed(errno),
    }
}

/// `lstat` and `stat`, for `glob` to call.
pub(super) fn functions() -> [*const c_void; 2] {
    [lstat as *const c_void, stat as *const c_void]
}

/// The device that `fd` is a descriptor of.
fn device_of(fd: c_int) -> Option<Device> {
    let device = descriptors::peek(fd)?;
    if device.as_kind::<Context>().is_some() {
        Some(Device::Verbs)
    } else {
        device.as_kind::<CmChannel>().map(|_| Device::Cm)
    }
}

/// Inode that a device shows.
fn inode(device: Device) -> u64 {
    let DeviceNumber { major, minor } = device.number();
    u64::from(major) * 1000 + u64::from(minor)
}

fn is_empty(path: *const c_char) -> bool {
    // SAFETY: null, or a C string of the caller's.
    path.is_null() || unsafe { *path == 0 }
}

/// The file whose owner and times devices show: the endpoint's socket.
fn model() -> Option<CString> {
    CString::new(endpoint::present()?.socket().as_os_str().as_bytes()).ok()
}

fn stat_at(at: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int {
    match subject(at, path, flags) {
        Subject::Elsewhere => real::fstatat(at, path, out, flags),
        Subject::Path(path) => real::fstatat(AT_FDCWD, path.as_ptr(), out, flags),
        Subject::Device(device) => stat_device(device, out),
        Subject::Failed(errno) => minus_one(errno),
    }
}

/// Fills in the result of `stat` for a device.
pub(super) fn stat_device(device: Device, out: *mut Stat) -> c_int {
    let Some(path) = model() else { return minus_one(Errno::NOENT) };
    let result = real::fstatat(AT_FDCWD, path.as_ptr(), out, 0);
    if result == 0 {
        // SAFETY: the kernel has just filled it.
        let out = unsafe { &mut *out };
        out.st_mode = S_IFCHR | DEVICE_MODE;
        let DeviceNumber { major, minor } = device.number();
        out.st_rdev = libc::makedev(major, minor);
        (out.st_ino, out.st_nlink, out.st_size, out.st_blocks) = (inode(device), 1, 0, 0);
    }
    result
}

fn stat_fd(fd: c_int, out: *mut Stat) -> c_int {
    if let Some(device) = device_of(fd) {
        return stat_device(device, out);
    }
    real::fstatat(fd, c"".as_ptr(), out, AT_EMPTY_PATH)
}

replace! {
    fn stat(path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, out, 0)
    }

    fn stat64(path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, out, 0)
    }

    fn lstat(path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW)
    }

    fn lstat64(path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW)
    }

    fn fstat(fd: c_int, out: *mut Stat) -> c_int {
        stat_fd(fd, out)
    }

    fn fstat64(fd: c_int, out: *mut Stat) -> c_int {
        stat_fd(fd, out)
    }

    fn fstatat(at: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int {
        stat_at(at, path, out, flags)
    }

    fn fstatat64(at: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int {
        stat_at(at, path, out, flags)
    }

    fn __xstat(_version: c_int, path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, out, 0)
    }

    fn __xstat64(_version: c_int, path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, out, 0)
    }

    fn __lxstat(_version: c_int, path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW)
    }

    fn __lxstat64(_version: c_int, path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW)
    }

    fn __fxstat(_version: c_int, fd: c_int, out: *mut Stat) -> c_int {
        stat_fd(fd, out)
    }

    fn __fxstat64(_version: c_int, fd: c_int, out: *mut Stat) -> c_int {
        stat_fd(fd, out)
    }

    fn __fxstatat(_version: c_int, at: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int {
        stat_at(at, path, out, flags)
    }

    fn __fxstatat64(_version: c_int, at: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int {
        stat_at(at, path, out, flags)
    }

    fn statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int {
        let device = match subject(at, path, flags) {
            Subject::Elsewhere => return real::statx(at, path, flags, mask, out),
            Subject::Path(path) => return real::statx(AT_FDCWD, path.as_ptr(), flags, mask, out),
            Subject::Failed(errno) => return minus_one(errno),
            Subject::Device(device) => device,
        };
        let Some(path) = model() else { return minus_one(Errno::NOENT) };
        let result = real::statx(AT_FDCWD, path.as_ptr(), 0, mask, out);
        if result == 0 {
            // SAFETY: libc has just filled it.
            let out = unsafe { &mut *out };
            out.stx_mode = (S_IFCHR | DEVICE_MODE) as u16;
            let DeviceNumber { major, minor } = device.number();
            (out.stx_rdev_major, out.stx_rdev_minor) = (major, minor);
            (out.stx_ino, out.stx_nlink, out.stx_size, out.stx_blocks) = (inode(device), 1, 0, 0);
        }
        result
    }
}
