//! State directory: the files of a router.

mod private;
mod trust;

pub(crate) use trust::Owners;
pub use trust::StateError;

use crate::{Endpoint, Name, PoolMember};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, openat, statat};
use rustix::io::Errno;
use std::env;
use std::fs::{DirBuilder, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Name of the API socket in the state directory.
pub const API_SOCKET: &str = "api.sock";
/// Name of the log in the state directory.
pub const LOG: &str = "router.log";
/// Name of the locked file in the state directory.
pub const LOCK: &str = "lock";
/// Name of the file of keys in the state directory.
pub const KEYS: &str = "keys";
/// Name of the file with the host's private keys in the state directory.
pub const IDENTITY: &str = "identity";
/// Mount point of the endpoint's directory, for programs in their own mount namespace and for containers.
pub const ENDPOINT_MOUNT: &str = "/run/rdmesh/endpoint";

/// The libraries below [`ENDPOINT_MOUNT`] that programs of a container load, as in `LD_PRELOAD`.
pub fn mounted_libraries(is_accelerated: bool) -> String {
    let device = format!("{ENDPOINT_MOUNT}/librdmesh.so");
    if is_accelerated { format!("{device}:{ENDPOINT_MOUNT}/librdmesh-sockets.so") } else { device }
}

/// A router's state directory and the paths in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// The directory `path`, which is absolute.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The directory `path`, a relative one from the working directory; or the one that is used when none is named, see
    /// [`StateDir::default_for`]. The result has no symbolic links in it, as far as the path exists.
    pub fn locate(path: Option<PathBuf>, uid: u32) -> Result<Self, StateError> {
        let path = path.unwrap_or_else(|| Self::default_for(uid).0);
        let absolute = std::path::absolute(&path).map_err(|source| StateError::Io { path, source })?;
        let path = match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
            (Some(Ok(parent)), Some(name)) => parent.join(name),
            // It ends in `..`, or is the root.
            (_, None) => absolute.canonicalize().unwrap_or(absolute),
            _ => absolute,
        };
        let longest = SOCKET_ADDRESS_LEN - "/".len() - API_SOCKET.len();
        if path.as_os_str().as_bytes().len() > longest {
            return Err(StateError::TooLong { path, longest });
        }
        Ok(Self(path))
    }

    /// The directory that is used when none is named: `$RDMESH_STATE`, `/run/rdmesh` for root, and for others
    /// `$XDG_RUNTIME_DIR/rdmesh`, where that is the user's own, or `/tmp/rdmesh-<uid>`.
    pub fn default_for(uid: u32) -> Self {
        let var = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        Self(match (var("RDMESH_STATE"), uid, var("XDG_RUNTIME_DIR").filter(|path| is_runtime_dir_of(path, uid))) {
            (Some(state), _, _) => state,
            (None, 0, _) => "/run/rdmesh".into(),
            (None, _, Some(runtime)) => runtime.join("rdmesh"),
            (None, uid, None) => format!("/tmp/rdmesh-{uid}").into(),
        })
    }

    /// Makes the directory, with `mode`, if there is none. It must be this process's user's own: only a router that keeps its
    /// files there asks for it.
    pub fn make(&self, mode: u32) -> Result<OwnedFd, StateError> {
        let failed = |source| StateError::Io { path: self.0.clone(), source };
        // An existing one is looked at below; a link without a target is not followed.
        if matches!(statat(CWD, &self.0, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) {
            DirBuilder::new().recursive(true).mode(mode).create(&self.0).map_err(failed)?;
        }
        self.open_own()
    }

    /// Opens the directory, which must be this process's user's own.
    pub fn open_own(&self) -> Result<OwnedFd, StateError> {
        trust::open_directory(&self.0, Owners::own())
    }

    /// Checks that a router in this directory may be trusted: it is this process's user's, or root's.
    pub fn check(&self) -> Result<(), StateError> {
        trust::open_directory(&self.0, Owners::own_or_root()).map(drop)
    }

    /// Opens the file `name` in the directory that [`StateDir::make`] returned for writing; it is made if there is none. It is
    /// a regular file of this user's, with `mode`.
    pub fn open_file(&self, directory: &OwnedFd, name: &str, mode: u32) -> Result<File, StateError> {
        let (path, mode) = (self.0.join(name), Mode::from_raw_mode(mode));
        let failed = |error: Errno| StateError::Io { path: path.clone(), source: error.into() };
        // A pipe without a reader does not block this.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(directory, name, flags, mode) {
            Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => return Err(StateError::NoFile(path)),
            file => file.map_err(failed)?,
        };
        let stat = fstat(&file).map_err(failed)?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_regular || !Owners::own().include(stat.st_uid) || stat.st_nlink != 1 {
            return Err(StateError::NoFile(path));
        }
        fchmod(&file, mode).map_err(failed)?;
        Ok(file.into())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The API's socket.
    pub fn api_socket(&self) -> PathBuf {
        self.0.join(API_SOCKET)
    }

    /// The log of a router in the background.
    pub fn log(&self) -> PathBuf {
        self.0.join(LOG)
    }

    /// The file whose lock says that a router runs.
    pub fn lock(&self) -> PathBuf {
        self.0.join(LOCK)
    }

    /// The store, for the next router. It exists while a router runs, or after one has died.
    pub fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    /// Keys of single hosts, for the next router. The file is there if there are any.
    pub fn keys(&self) -> PathBuf {
        self.0.join(KEYS)
    }

    /// The private keys of a host of a cluster, for the next router. The file is there if their public halves are in the store.
    pub fn identity(&self) -> PathBuf {
        self.0.join(IDENTITY)
    }

    /// The directory of all endpoints' directories.
    pub fn endpoints(&self) -> PathBuf {
        self.0.join("endpoints")
    }

    /// The directory of `endpoint`.
    pub fn endpoint(&self, endpoint: &Endpoint) -> PathBuf {
        self.endpoints().join(endpoint.directory_name())
    }

    /// The directory of network namespaces.
    pub fn namespaces(&self) -> PathBuf {
        self.0.join("netns")
    }

    /// The network namespace of `endpoint`.
    pub fn endpoint_namespace(&self, endpoint: &Endpoint) -> PathBuf {
        self.namespaces().join(endpoint.namespace_name())
    }

    /// The preload library that the endpoints of a pool share: on their file system, so that each can have a link to it.
    pub fn pool_library(&self, network: &Name, pool: &Name) -> PathBuf {
        self.endpoints().join(PoolMember::directory_name(network, pool)).join(LIBRARY)
    }

    /// The network namespace that the endpoints of a pool share.
    pub fn pool_namespace(&self, network: &Name, pool: &Name) -> PathBuf {
        self.namespaces().join(PoolMember::directory_name(network, pool))
    }

    /// The network namespace that holds the bridge of `network`.
    pub fn network_namespace(&self, network: &Name) -> PathBuf {
        self.namespaces().join(network.as_str())
    }
}

/// Whether `path` is a valid `$XDG_RUNTIME_DIR`: a directory of the user `uid` alone. After `su` the variable names another
/// user's.
fn is_runtime_dir_of(path: &Path, uid: u32) -> bool {
    let others = Mode::RWXG | Mode::RWXO;
    path.is_absolute()
        && statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
            let is_private = !Mode::from_raw_mode(stat.st_mode).intersects(others);
            FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_uid == uid && is_private
        })
}

/// File name of a pool's preload library.
const LIBRARY: &str = "librdmesh.so";

/// Bytes of a Unix socket's address, without the final zero (`sun_path`).
const SOCKET_ADDRESS_LEN: usize = 107;

#[cfg(test)]
mod tests;
