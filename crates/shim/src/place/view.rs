//! The working directory, and paths of open directories, as the program sees them.
//!
//! A directory of the endpoint's tree is really one below the endpoint's directory. The kernel knows it by that path; the
//! program is to know it by the one below `/sys`. Relative paths are looked at only where they may lead to the device:
//! when the working directory, or a directory that was opened, is in `/sys` or `/dev` or above them.

use super::is_ours;
use crate::endpoint::{self, Endpoint};
use libc::{AT_FDCWD, c_int};
use rustix::fs::CWD;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the working directory may lead to the device.
static CWD_IS_NEAR: AtomicBool = AtomicBool::new(false);
/// Whether a directory has been opened that may.
static FDS_ARE_NEAR: AtomicBool = AtomicBool::new(false);

/// Whether paths relative to `at` may lead to the device.
#[inline]
pub(super) fn is_near(at: c_int) -> bool {
    if at == AT_FDCWD { CWD_IS_NEAR.load(Ordering::Relaxed) } else { FDS_ARE_NEAR.load(Ordering::Relaxed) }
}

/// Whether the kernel may name a directory of the tree to the program.
pub(crate) fn is_any_near() -> bool {
    is_near(AT_FDCWD) || FDS_ARE_NEAR.load(Ordering::Relaxed)
}

/// To be called when a directory of the tree, or above it, has been opened.
pub(crate) fn opened() {
    FDS_ARE_NEAR.store(true, Ordering::Relaxed);
}

/// To be called when the working directory has changed, and at the start.
pub(crate) fn moved() {
    let is_near = endpoint::find().is_some() && directory(AT_FDCWD).is_some_and(|at| leads_to_devices(&at));
    CWD_IS_NEAR.store(is_near, Ordering::Relaxed);
}

/// To be called before libc changes the working directory by itself.
pub(crate) fn may_move() {
    CWD_IS_NEAR.store(true, Ordering::Relaxed);
}

/// The path of the directory `at`, as the program knows it, without its leading slash.
pub(super) fn directory(at: c_int) -> Option<Vec<u8>> {
    let path = match at {
        AT_FDCWD => rustix::process::getcwd(Vec::new()),
        _ => rustix::fs::readlinkat(CWD, format!("/proc/self/fd/{at}"), Vec::new()),
    };
    let path = path.ok()?.into_bytes();
    path.starts_with(b"/").then(|| shown(&path).unwrap_or(&path)[1..].to_vec())
}

/// The kernel's path of the open file `fd`, where that is in the tree.
pub(crate) fn open_directory(fd: c_int) -> Option<Vec<u8>> {
    if !is_near(fd) {
        return None;
    }
    let path = rustix::fs::readlinkat(CWD, format!("/proc/self/fd/{fd}"), Vec::new()).ok()?.into_bytes();
    shown(&path).is_some().then_some(path)
}

/// The path that the program is shown for the kernel's `path`, where that is in the tree.
pub(crate) fn shown(path: &[u8]) -> Option<&[u8]> {
    let rest = path.strip_prefix(endpoint::find()?.real_directory().as_os_str().as_bytes())?;
    (rest.first() == Some(&b'/') && is_ours(&rest[1..])).then_some(rest)
}

/// The kernel's path for the program's path `at`, which is in the tree and has no leading slash.
pub(super) fn real(endpoint: &Endpoint, at: &[u8]) -> Vec<u8> {
    [endpoint.directory().as_os_str().as_bytes(), b"/", at].concat()
}

fn leads_to_devices(at: &[u8]) -> bool {
    at.is_empty() || [&b"sys"[..], b"dev"].iter().any(|top| at.split(|&byte| byte == b'/').next() == Some(top))
}
