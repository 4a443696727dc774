//! Location of this program's endpoint directory.
#![allow(unsafe_code)]

use crate::settings::settings;
use rdmesh_uverbs::session::{GUEST_NAME, SOCKET_NAME};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use std::ffi::{CStr, OsStr, c_void};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The directory that the router made for this program.
#[derive(Debug)]
pub struct Endpoint {
    directory: PathBuf,
    real: OnceLock<PathBuf>,
    seen: AtomicBool,
    is_in_guest: OnceLock<bool>,
}

/// The endpoint of this program; none where the router has not made one, or the settings exclude the program.
///
/// An endpoint that was there once stays: when its router dies the device fails, and the host's device does not take its place.
pub fn present() -> Option<&'static Endpoint> {
    let endpoint = find()?;
    if !endpoint.seen.load(Ordering::Relaxed) {
        rustix::fs::accessat(CWD, endpoint.socket(), Access::EXISTS, AtFlags::empty()).ok()?;
        endpoint.seen.store(true, Ordering::Relaxed);
    }
    Some(endpoint)
}

/// Finds the directory. Called once early, while the working directory is still the one in which the loader resolved relative
/// paths.
pub fn find() -> Option<&'static Endpoint> {
    static ENDPOINT: OnceLock<Option<Endpoint>> = OnceLock::new();
    ENDPOINT
        .get_or_init(|| {
            let named = settings().endpoint().map(Path::to_owned);
            let directory = named.or_else(own_directory).filter(|_| !settings().is_excluded())?;
            Some(Endpoint::new(absolute(directory)))
        })
        .as_ref()
}

impl Endpoint {
    fn new(directory: PathBuf) -> Self {
        Self { directory, real: OnceLock::new(), seen: AtomicBool::new(false), is_in_guest: OnceLock::new() }
    }

    /// The endpoint in `directory`, for a test.
    #[doc(hidden)]
    pub fn at(directory: &Path) -> &'static Self {
        Box::leak(Box::new(Self::new(directory.to_owned())))
    }

    /// The session socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET_NAME)
    }

    /// The directory itself.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether this is a virtual machine, whose programs share their memory or cannot register it: the router does not reach a
    /// process of another kernel.
    pub fn is_in_guest(&self) -> bool {
        let marker = || rustix::fs::accessat(CWD, self.directory.join(GUEST_NAME), Access::EXISTS, AtFlags::empty());
        *self.is_in_guest.get_or_init(|| marker().is_ok())
    }

    /// The kernel's path of the directory, without links.
    pub fn real_directory(&self) -> &Path {
        self.real.get_or_init(|| without_links(&self.directory).unwrap_or_else(|| self.directory.clone()))
    }
}

/// The directory that this library was loaded from.
fn own_directory() -> Option<PathBuf> {
    // SAFETY: the struct is plain data that dladdr fills; the address is one of this library's functions.
    let file = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(own_directory as *const c_void, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname)
    };
    Path::new(OsStr::from_bytes(file.to_bytes())).parent().map(Path::to_owned)
}

fn absolute(directory: PathBuf) -> PathBuf {
    if directory.is_absolute() {
        return directory;
    }
    without_links(&directory).unwrap_or(directory)
}

fn without_links(directory: &Path) -> Option<PathBuf> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(CWD, directory, flags, Mode::empty()).ok()?;
    let path = rustix::fs::readlinkat(CWD, format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new()).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}
