//! Path lookup: paths that lie in the endpoint's tree instead of the real `/sys` and `/dev`.
//!
//! * [`mod@walk`]: resolution of a path, component by component.
//! * [`view`]: the working directory and open directories, as the program sees them.
#![allow(unsafe_code)]

use crate::endpoint::{self, Endpoint};
use crate::session::counters;
use arrayvec::ArrayVec;
use libc::{c_char, c_int};
use rdmesh_uverbs::session::{CM_DEVICE, DeviceNumber, VERBS_DEVICE};
use rustix::fs::{CWD, Dir, DirEntry, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};

pub(crate) mod view;
mod walk;

pub(crate) use walk::Last;
use walk::{Node, Walked, walk};

/// Target of a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not ours: the call goes on as it is.
    Elsewhere,
    /// Not ours, but a directory above the endpoint's paths.
    Above,
    /// Not ours, but reached through the endpoint's tree: the kernel finds it by this path.
    Outside(CString),
    /// One of the devices.
    Device(Device),
    /// A file or directory of the endpoint, which the kernel finds by this path.
    File(CString),
    /// A counter, and its empty file in the tree.
    Counter(CString),
    /// Ours, and the call fails.
    Failed(Errno),
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
    pub(crate) fn number(self) -> DeviceNumber {
        match self {
            Self::Verbs => VERBS_DEVICE,
            Self::Cm => CM_DEVICE,
        }
    }

    fn is_at(self, path: &[u8]) -> bool {
        let DeviceNumber { major, minor } = self.number();
        let by_number =
            || path.strip_prefix(BY_NUMBER).is_some_and(|rest| rest == format!("{major}:{minor}").as_bytes());
        self.path().to_bytes()[1..] == *path || by_number()
    }

    fn at(path: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|device| device.is_at(path))
    }
}

const BY_NUMBER: &[u8] = b"dev/char/";
/// Paths of the endpoint's tree, with all that is below them.
const OURS: [&[u8]; 8] = [
    b"dev/infiniband",
    b"dev/char/231:192",
    b"dev/char/10:58",
    b"sys/class/misc/rdma_cm",
    b"sys/devices/virtual/misc/rdma_cm",
    b"sys/devices/virtual/rdmesh",
    b"sys/dev/char/231:192",
    b"sys/dev/char/10:58",
];
/// Prefixes of the endpoint's tree: every class of RDMA devices.
const FAMILIES: [&[u8]; 2] = [b"sys/class/infiniband", b"sys/devices/virtual/infiniband"];

/// Resolves a path of the program, which is relative to the directory `at`.
///
/// `path` must be null or a C string.
#[inline]
pub(crate) fn of(at: c_int, path: *const c_char, last: Last) -> Place {
    if !may_be_ours(at, path) {
        return Place::Elsewhere;
    }
    // SAFETY: not null, and a C string by the contract.
    classify(at, unsafe { CStr::from_ptr(path) }.to_bytes(), last)
}

/// The canonical path of `path`, as the program is shown it. None where it does not lead through the endpoint's tree.
///
/// `path` must be null or a C string.
pub(crate) fn canonical(path: *const c_char) -> Option<Result<CString, Errno>> {
    if !may_be_ours(libc::AT_FDCWD, path) {
        return None;
    }
    // SAFETY: as in `of`.
    let (endpoint, found) = match resolve(libc::AT_FDCWD, unsafe { CStr::from_ptr(path) }.to_bytes(), Last::Follow)? {
        Ok(found) if found.1.entered => found,
        Ok(_) => return None,
        Err(errno) => return Some(Err(errno)),
    };
    let path = CString::new([b"/", &found.at[..]].concat()).map_err(|_| Errno::INVAL);
    Some(match place(endpoint, found) {
        Place::File(real) | Place::Counter(real) | Place::Outside(real) => rustix::fs::stat(&*real).and(path),
        Place::Failed(errno) => Err(errno),
        _ => path,
    })
}

/// The kernel's path for `path`; none for a device.
pub(crate) fn kernels(path: &CStr) -> Option<CString> {
    match of(libc::AT_FDCWD, path.as_ptr(), Last::Follow) {
        Place::Elsewhere | Place::Above => Some(path.to_owned()),
        Place::File(path) | Place::Counter(path) | Place::Outside(path) => Some(path),
        Place::Device(_) | Place::Failed(_) => None,
    }
}

/// The path of the placeholder file for `device` in listings of its directory.
pub(crate) fn stand_in(device: Device) -> CString {
    let path = endpoint::find().map(|endpoint| view::real(endpoint, &device.path().to_bytes()[1..]));
    path.and_then(|path| CString::new(path).ok()).unwrap_or_default()
}

/// Whether a pattern may match a path of the endpoint's.
///
/// `pattern` must be null or a C string.
pub(crate) fn may_match(pattern: *const c_char) -> bool {
    if may_be_ours(libc::AT_FDCWD, pattern) {
        return true;
    }
    // SAFETY: as the contract says.
    let pattern = if pattern.is_null() { c"" } else { unsafe { CStr::from_ptr(pattern) } }.to_bytes();
    let top = pattern.strip_prefix(b"/").and_then(|rest| rest.split(|&byte| byte == b'/').next());
    top.is_some_and(|top| top.iter().any(|byte| b"*?[{\\".contains(byte)))
}

/// Something that the endpoint adds to a directory.
#[derive(Debug)]
pub(crate) struct Added {
    pub(crate) name: Vec<u8>,
    pub(crate) inode: u64,
    /// One of `DT_…`.
    pub(crate) kind: u8,
}

/// Entries that the endpoint adds to the directory `path`, which the kernel has too.
///
/// `path` must be a C string.
pub(crate) fn added_at(at: c_int, path: *const c_char) -> Vec<Added> {
    if !may_be_ours(at, path) {
        return Vec::new();
    }
    // SAFETY: as the contract says.
    match resolve(at, unsafe { CStr::from_ptr(path) }.to_bytes(), Last::Follow) {
        Some(Ok((endpoint, found))) if is_above(&found.at) && found.tail.is_empty() => added(endpoint, &found.at),
        _ => Vec::new(),
    }
}

fn added(endpoint: &Endpoint, at: &[u8]) -> Vec<Added> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, &view::real(endpoint, at)[..], flags, Mode::empty());
    let Ok(directory) = directory.and_then(Dir::new) else { return Vec::new() };
    let is_new = |name: &[u8]| {
        let path = [b"/", at, b"/", name].concat();
        is_ours(&path[1..]) && rustix::fs::lstat(&path[..]).is_err()
    };
    let entries = directory.flatten().filter(|entry| is_new(entry.file_name().to_bytes()));
    let kind = |entry: &DirEntry| if entry.file_type() == FileType::Symlink { libc::DT_LNK } else { libc::DT_DIR };
    entries
        .map(|entry| Added { name: entry.file_name().to_bytes().to_vec(), inode: entry.ino(), kind: kind(&entry) })
        .collect()
}

/// A cheap look at the first few bytes, enough for almost all paths of a program.
#[inline]
fn may_be_ours(at: c_int, path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: a C string; each byte is read only where the one before it was not the NUL.
    unsafe {
        let mut next = path.cast::<u8>();
        match *next {
            0 => return false,
            b'/' => {}
            _ => return view::is_near(at) || *next == b'.' && has_detour(CStr::from_ptr(path)),
        }
        while *next == b'/' {
            next = next.add(1);
        }
        match *next {
            0 | b'.' => true,
            b'd' if *next.add(1) == b'e' && *next.add(2) == b'v' => true,
            b's' if *next.add(1) == b'y' && *next.add(2) == b's' => true,
            _ => has_detour(CStr::from_ptr(path)),
        }
    }
}

/// Whether `path` goes up and then perhaps down into `/sys` or `/dev`.
fn has_detour(path: &CStr) -> bool {
    let path = path.to_bytes();
    let has = |part: &[u8]| path.windows(part.len()).any(|window| window == part);
    path.len() > 3 && has(b"../") && (has(b"/sys/") || has(b"/dev/"))
}

#[cold]
fn classify(at: c_int, path: &[u8], last: Last) -> Place {
    match resolve(at, path, last) {
        None => Place::Elsewhere,
        Some(Err(errno)) => Place::Failed(errno),
        Some(Ok((endpoint, found))) => place(endpoint, found),
    }
}

/// Resolves `path` where that may lead to the endpoint.
fn resolve(at: c_int, path: &[u8], last: Last) -> Option<Result<(&'static Endpoint, Walked), Errno>> {
    let joined;
    let full = if path.starts_with(b"/") {
        path
    } else {
        joined = [b"/", &view::directory(at)?[..], b"/", path].concat();
        &joined
    };
    // No link of the kernel's leads into the tree, so without `..` the normalised path decides.
    if !full.windows(4).any(|part| part == b"/../") && !full.ends_with(b"/..") {
        let lexical = normalise(full)?;
        if !is_ours(&lexical) && !is_above(&lexical) {
            return None;
        }
    }
    let endpoint = endpoint::present()?;
    Some(walk(full, last, is_ours, |at| look(endpoint, at)).map(|found| (endpoint, found)))
}

fn look(endpoint: &Endpoint, at: &[u8]) -> Result<Node, Errno> {
    if Device::at(at).is_some() {
        return Ok(Node::Leaf);
    }
    let path = if is_ours(at) { view::real(endpoint, at) } else { [b"/", at].concat() };
    let about = match rustix::fs::lstat(&path[..]) {
        // The endpoint's paths exist even where the kernel has no directory for them.
        Err(_) if is_above(at) => return Ok(Node::Directory),
        about => about?,
    };
    match FileType::from_raw_mode(about.st_mode) {
        FileType::Symlink => Ok(Node::Link(rustix::fs::readlinkat(CWD, &path[..], Vec::new())?.into_bytes())),
        FileType::Directory => Ok(Node::Directory),
        _ => Ok(Node::Leaf),
    }
}

fn place(endpoint: &Endpoint, found: Walked) -> Place {
    let is_whole = found.tail.is_empty();
    if !found.entered {
        return if is_whole && is_above(&found.at) { Place::Above } else { Place::Elsewhere };
    }
    if let Some(device) = Device::at(&found.at) {
        return if is_whole { Place::Device(device) } else { Place::Failed(Errno::NOTDIR) };
    }
    let slash: &[u8] = if found.directory && is_whole { b"/" } else { b"" };
    let ours = is_ours(&found.at);
    let base = if ours { view::real(endpoint, &found.at) } else { [b"/", &found.at[..]].concat() };
    let Ok(path) = CString::new([&base, &found.tail[..], slash].concat()) else { return Place::Failed(Errno::INVAL) };
    match ours {
        true if is_whole && counters::is_counter(&found.at) => Place::Counter(path),
        true => Place::File(path),
        false => Place::Outside(path),
    }
}

/// Whether `path`, without a leading slash, is the endpoint's.
fn is_ours(path: &[u8]) -> bool {
    let is_below = |top: &&[u8]| path.strip_prefix(*top).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    FAMILIES.iter().any(|family| path.starts_with(family)) || OURS.iter().any(is_below)
}

/// Whether something of the endpoint is below `path`.
fn is_above(path: &[u8]) -> bool {
    let is_above = |top: &&[u8]| path.is_empty() || top.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/"));
    OURS.iter().chain(&FAMILIES).any(is_above)
}

/// The path without its leading, double and trailing slashes and its single dots; none where it is too long to be ours.
fn normalise(path: &[u8]) -> Option<ArrayVec<u8, 512>> {
    let mut out = ArrayVec::<u8, 512>::new();
    for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if !out.is_empty() {
            out.try_push(b'/').ok()?;
        }
        out.try_extend_from_slice(part).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_without_slashes_and_dots() {
        let clean = |path: &str| String::from_utf8(normalise(path.as_bytes()).unwrap().to_vec()).unwrap();
        assert_eq!(clean("//sys//class/./infiniband/"), "sys/class/infiniband");
        assert_eq!(normalise(&[b'a'; 600]), None);
    }

    #[test]
    fn devices_have_two_paths_each() {
        let at = |path: &str| Device::at(path.as_bytes());
        assert_eq!((at("dev/infiniband/uverbs0"), at("dev/char/231:192")), (Some(Device::Verbs), Some(Device::Verbs)));
        assert_eq!((at("dev/infiniband/rdma_cm"), at("dev/char/10:58")), (Some(Device::Cm), Some(Device::Cm)));
        assert_eq!((at("dev/infiniband/uverbs1"), at("dev/infiniband")), (None, None));
    }

    #[test]
    fn what_is_ours_is_told_from_its_neighbours() {
        for path in
            ["sys/class/infiniband", "sys/class/infiniband_mad/x", "dev/infiniband/uverbs1", "sys/dev/char/10:58"]
        {
            assert!(is_ours(path.as_bytes()) && !is_above(path.as_bytes()), "{path}");
        }
        for path in ["", "sys", "sys/class", "sys/class/misc", "sys/devices/virtual", "dev", "dev/char", "sys/dev"] {
            assert!(is_above(path.as_bytes()) && !is_ours(path.as_bytes()), "{path}");
        }
        for path in ["sys/class/net", "dev/infiniband2", "sys/dev/char/10:5", "sys/cla", "dev/null"] {
            assert!(!is_above(path.as_bytes()) && !is_ours(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn most_paths_are_dismissed_at_a_glance() {
        let may_be = |path: &CStr| may_be_ours(libc::AT_FDCWD, path.as_ptr());
        assert!(!may_be_ours(libc::AT_FDCWD, std::ptr::null()));
        for (path, ours) in [
            (c"", false),
            (c"relative", false),
            (c"../relative", false),
            (c"/etc/passwd", false),
            (c"/usr/lib/gcc/../../include", false),
            (c"/s", false),
            (c"/sys", true),
            (c"//dev/infiniband", true),
            (c"/etc/../sys/class", true),
            (c"../../sys/class", true),
        ] {
            assert_eq!(may_be(path), ours, "{path:?}");
        }
    }
}
