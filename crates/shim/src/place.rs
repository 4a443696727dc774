//! Which paths stand for the endpoint.
#![allow(unsafe_code)]

use crate::endpoint;
use arrayvec::ArrayVec;
use libc::c_char;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Where a path leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not ours: the call goes on as it is.
    Elsewhere,
    /// The device.
    Device,
    /// `/dev/infiniband`, with what stands for it.
    Folder(CString),
    /// A file or directory of the endpoint.
    Redirected(CString),
    /// Ours, and not there.
    Absent,
}

/// The device's path.
pub(crate) const DEVICE_PATH: &CStr = c"/dev/infiniband/uverbs0";
/// Major and minor number of the device.
pub(crate) const DEVICE_NUMBER: (u32, u32) = (231, 192);

const FOLDER: &[u8] = b"dev/infiniband";
const DEVICE: &[u8] = b"dev/infiniband/uverbs0";
const DEVICE_BY_NUMBER: &[u8] = b"dev/char/231:192";
const SYSFS: &[u8] = b"sys/";
/// What of `/sys` is ours: every path that begins so.
const SYSFS_PREFIXES: [&[u8]; 2] = [b"sys/class/infiniband", b"sys/class/misc/rdma_cm"];

/// Finds out where a path of the program leads.
///
/// `path` must be null or a C string.
#[inline]
pub(crate) fn of(path: *const c_char) -> Place {
    if !may_be_ours(path) {
        return Place::Elsewhere;
    }
    // SAFETY: not null, and a C string by the contract.
    classify(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// A cheap look at the first few bytes, enough for almost all paths of a program.
#[inline]
fn may_be_ours(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: a C string; each byte is read only where the one before it was not the NUL.
    unsafe {
        let mut at = path.cast::<u8>();
        if *at != b'/' {
            return false;
        }
        while *at == b'/' {
            at = at.add(1);
        }
        let first = *at;
        (first == b'd' && *at.add(1) == b'e' && *at.add(2) == b'v')
            || (first == b's' && *at.add(1) == b'y' && *at.add(2) == b's')
            || first == b'.'
    }
}

#[cold]
fn classify(path: &[u8]) -> Place {
    let Some(path) = normalise(path) else { return Place::Elsewhere };
    let in_folder = path.strip_prefix(FOLDER).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    let is_device = path[..] == *DEVICE || path[..] == *DEVICE_BY_NUMBER;
    let in_sysfs = SYSFS_PREFIXES.iter().any(|prefix| path.starts_with(prefix));
    if !in_folder && !is_device && !in_sysfs {
        return Place::Elsewhere;
    }
    let Some(endpoint) = endpoint::present() else { return Place::Elsewhere };
    match &path[..] {
        _ if is_device => Place::Device,
        FOLDER => c_string(endpoint.directory().join(Path::new(OsStr::from_bytes(FOLDER))))
            .map_or(Place::Absent, Place::Folder),
        _ if in_folder => Place::Absent,
        _ => {
            let rest = Path::new(OsStr::from_bytes(&path[SYSFS.len()..]));
            c_string(endpoint.sysfs(rest)).map_or(Place::Absent, Place::Redirected)
        }
    }
}

fn c_string(path: PathBuf) -> Option<CString> {
    CString::new(path.into_os_string().into_vec()).ok()
}

/// The path without its leading, double and trailing slashes and its dots; none where it is too long to be ours.
fn normalise(path: &[u8]) -> Option<ArrayVec<u8, 512>> {
    let mut out = ArrayVec::<u8, 512>::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                let parent = out.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                out.truncate(parent);
            }
            _ => {
                if !out.is_empty() {
                    out.try_push(b'/').ok()?;
                }
                out.try_extend_from_slice(part).ok()?;
            }
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_without_their_detours() {
        let clean = |path: &str| String::from_utf8(normalise(path.as_bytes()).unwrap().to_vec()).unwrap();
        assert_eq!(clean("//sys//class/./infiniband/"), "sys/class/infiniband");
        assert_eq!(clean("/sys/class/infiniband/../net"), "sys/class/net");
        assert_eq!(clean("/../dev/infiniband"), "dev/infiniband");
    }

    #[test]
    fn most_paths_are_dismissed_at_a_glance() {
        assert!(!may_be_ours(std::ptr::null()));
        for (path, ours) in
            [(c"", false), (c"relative", false), (c"/etc/passwd", false), (c"/s", false), (c"/sys", true)]
        {
            assert_eq!(may_be_ours(path.as_ptr()), ours, "{path:?}");
        }
        assert!(may_be_ours(c"//dev/infiniband".as_ptr()));
    }
}
