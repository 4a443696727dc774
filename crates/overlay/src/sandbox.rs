//! Sandbox of a program on an endpoint: network namespace and mount namespace.

use crate::namespace::Namespace;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, Mode, OFlags, openat, statfs};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Sandbox of a program on an endpoint: the endpoint's network namespace, if it has one, and a mount namespace in which only
/// the endpoint's own directory is visible of the router's files.
#[derive(Debug)]
pub struct Sandbox {
    /// The endpoint's network namespace; none: the program stays where it is.
    pub namespace: Option<PathBuf>,
    /// The endpoint's directory.
    pub directory: PathBuf,
    /// The router's state directory, to be hidden.
    pub state: PathBuf,
    /// Mount point of the endpoint's directory.
    pub mount_point: PathBuf,
}

/// Error of moving a program into its sandbox.
#[derive(Debug, thiserror::Error)]
#[error("{action} failed: {source}")]
pub struct SandboxError {
    action: String,
    source: io::Error,
}

impl Sandbox {
    /// Moves the calling thread into the sandbox; programs that it executes stay in it.
    pub fn enter(&self) -> Result<(), SandboxError> {
        self.namespace.as_deref().map_or(Ok(()), enter_network)?;
        unshare(CloneFlags::CLONE_NEWNS).map_err(|e| failed("making a mount namespace".into(), e.into()))?;
        // Unmounts of the host arrive here too, so that nothing is kept alive; mounts made here stay here.
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
            .map_err(|e| failed("separating the mounts".into(), e.into()))?;
        self.hide_router().map_err(|e| failed("hiding the router's files".into(), e))?;
        if self.namespace.is_none() {
            return Ok(());
        }
        show_own_sysfs().map_err(|e| failed("mounting /sys".into(), e))
    }

    fn hide_router(&self) -> io::Result<()> {
        let directory = open(&self.directory)?;
        let mount_point = &self.mount_point;
        let parent = mount_point.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::create_dir_all(parent)?;
        cover(&self.state)?;
        // The state directory may be the mount point's parent, or above it; then it is covered already.
        if !mount_point.starts_with(&self.state) {
            cover(parent)?;
        }
        fs::create_dir_all(mount_point)?;
        Ok(mount_bind(through(&directory), mount_point)?)
    }
}

fn enter_network(path: &Path) -> Result<(), SandboxError> {
    let namespace = Namespace::open(path)
        .and_then(|found| found.ok_or_else(|| io::ErrorKind::NotFound.into()))
        .map_err(|e| failed(format!("opening network namespace {}", path.display()), e))?;
    namespace.enter().map_err(|e| failed("entering the network namespace".into(), e))
}

/// Mounts an empty file system over `path`.
fn cover(path: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("rdmesh", path, "tmpfs", flags, COVER_OPTIONS)?)
}

/// `/sys` shows the interfaces of the network namespace in which it was mounted: a new one goes over the host's. Control
/// groups keep their place in it.
fn show_own_sysfs() -> io::Result<()> {
    if statfs(SYSFS)?.f_type != SYSFS_MAGIC {
        return Ok(());
    }
    let cgroups = match open(Path::new(CGROUPS)) {
        Ok(fd) => Some(fd),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("sysfs", SYSFS, "sysfs", flags, NO_OPTIONS)?;
    match cgroups {
        Some(fd) => Ok(mount_bind_recursive(through(&fd), CGROUPS)?),
        None => Ok(()),
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A path to the open file `fd`, independent of its location.
fn through(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn failed(action: String, source: io::Error) -> SandboxError {
    SandboxError { action, source }
}

const SYSFS: &str = "/sys";
/// `linux/magic.h`.
const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;
const CGROUPS: &str = "/sys/fs/cgroup";
const COVER_OPTIONS: &CStr = c"mode=755,size=64k";
const NO_OPTIONS: Option<&CStr> = None;
