//! Which paths stand for the endpoint.
#![allow(unsafe_code)]

use crate::endpoint;
use crate::session::counters;
use arrayvec::ArrayVec;
use libc::c_char;
use rdmesh_uverbs::session::{CM_DEVICE, VERBS_DEVICE};
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Where a path leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not ours: the call goes on as it is.
    Elsewhere,
    /// One of the devices.
    Device(Device),
    /// `/dev/infiniband`, with what stands for it.
    Folder(CString),
    /// A file or directory of the endpoint.
    Redirected(CString),
    /// A counter, and the empty file that stands for it.
    Counter(CString),
    /// Ours, and not there.
    Absent,
}

/// A device of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// `uverbs0`.
    Verbs,
    /// `rdma_cm`.
    Cm,
}

impl Device {
    const ALL: [Self; 2] = [Self::Verbs, Self::Cm];

    /// Its path.
    pub(crate) fn path(self) -> &'static CStr {
        match self {
            Self::Verbs => c"/dev/infiniband/uverbs0",
            Self::Cm => c"/dev/infiniband/rdma_cm",
        }
    }

    /// Its major and minor number, which the tree for `/sys` names too.
    pub(crate) fn number(self) -> (u32, u32) {
        match self {
            Self::Verbs => VERBS_DEVICE,
            Self::Cm => CM_DEVICE,
        }
    }

    fn is_at(self, path: &[u8]) -> bool {
        let (major, minor) = self.number();
        let by_number =
            || path.strip_prefix(BY_NUMBER).is_some_and(|rest| rest == format!("{major}:{minor}").as_bytes());
        self.path().to_bytes()[1..] == *path || by_number()
    }
}

const BY_NUMBER: &[u8] = b"dev/char/";
const FOLDER: &[u8] = b"dev/infiniband";
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
    let device = Device::ALL.into_iter().find(|device| device.is_at(&path));
    let in_sysfs = SYSFS_PREFIXES.iter().any(|prefix| path.starts_with(prefix));
    if !in_folder && device.is_none() && !in_sysfs {
        return Place::Elsewhere;
    }
    let Some(endpoint) = endpoint::present() else { return Place::Elsewhere };
    if let Some(device) = device {
        return Place::Device(device);
    }
    match &path[..] {
        FOLDER => c_string(endpoint.directory().join(Path::new(OsStr::from_bytes(FOLDER))))
            .map_or(Place::Absent, Place::Folder),
        _ if in_folder => Place::Absent,
        _ => {
            let rest = Path::new(OsStr::from_bytes(&path[SYSFS.len()..]));
            let place = if counters::is_counter(&path) { Place::Counter } else { Place::Redirected };
            c_string(endpoint.sysfs(rest)).map_or(Place::Absent, place)
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
    fn devices_have_two_paths_each() {
        let at = |path: &str| Device::ALL.into_iter().find(|device| device.is_at(path.as_bytes()));
        assert_eq!((at("dev/infiniband/uverbs0"), at("dev/char/231:192")), (Some(Device::Verbs), Some(Device::Verbs)));
        assert_eq!((at("dev/infiniband/rdma_cm"), at("dev/char/10:58")), (Some(Device::Cm), Some(Device::Cm)));
        assert_eq!((at("dev/infiniband/uverbs1"), at("dev/infiniband")), (None, None));
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
