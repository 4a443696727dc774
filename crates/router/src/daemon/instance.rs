//! Instance lock: one router per state directory.

use super::config::DaemonConfig;
use rdmesh_fabric::{LOCK, StateDir, StateError};
use rdmesh_overlay::{Errors, Firewall, FirewallError, Overlay, OverlayError};
use rdmesh_uverbs::session::{LIBRARY_NAME, MPI_LIBRARY_NAME, SOCKETS_LIBRARY_NAME};
use rustix::fs::{FlockOperation, StatVfsMountFlags, flock, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The right to use a state directory, held by locking a file in it: the kernel releases the lock when the process ends in any
/// way.
#[derive(Debug)]
pub(crate) struct Instance {
    state: StateDir,
    rootless: bool,
    has_predecessor: bool,
    _lock: File,
}

/// Error that prevents the use of a state directory.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Others could change what is in it.
    #[error(transparent)]
    State(#[from] StateError),
    /// Another router uses it.
    #[error("a router is already running in {}: stop it with `rdmesh down`, or use another --state-dir", .0.display())]
    AlreadyRunning(PathBuf),
    /// Programs could not load the library from there.
    #[error("{} is mounted `noexec`, so that no library can be loaded from it: use another --state-dir", .0.display())]
    NoExec(PathBuf),
    /// The kernel refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The path concerned.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Namespaces of an earlier router.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// Its firewall rules.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
    /// Of several operations that were all tried.
    #[error(transparent)]
    Several(#[from] Errors<Self>),
}

impl Instance {
    /// Takes the state directory of `config`, which is made if there is none. State that a dead router left for restoration
    /// stays, all other files are removed.
    pub(crate) fn acquire(config: &DaemonConfig) -> Result<Self, InstanceError> {
        let instance = Self::lock(&config.state, config.rootless)?;
        if instance.has_predecessor {
            instance.remove_files(&[instance.state.api_socket()])?;
        } else {
            instance.clean()?;
        }
        // Other users' programs reach their endpoint through a mount, never from here.
        make_directory(&instance.state.endpoints(), 0o700)?;
        instance.allow_libraries()?;
        Ok(instance)
    }

    /// Locks the state directory without changing it.
    pub(crate) fn lock(state: &StateDir, rootless: bool) -> Result<Self, InstanceError> {
        let directory = state.make(if rootless { 0o700 } else { 0o755 })?;
        // A user who can open it can lock it, and so prevent every router from starting.
        let lock = state.open_file(&directory, LOCK, 0o600)?;
        let deadline = Instant::now() + DYING;
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            match error {
                Errno::WOULDBLOCK if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                Errno::WOULDBLOCK => return Err(InstanceError::AlreadyRunning(state.path().to_owned())),
                error => return Err(at(&state.lock())(error.into())),
            }
        }
        Ok(Self { state: state.clone(), rootless, has_predecessor: state.store().exists(), _lock: lock })
    }

    /// Whether a router that has died left something to be restored.
    pub(crate) fn has_predecessor(&self) -> bool {
        self.has_predecessor
    }

    /// Removes everything but the log and the lock.
    pub(crate) fn clean(&self) -> Result<(), InstanceError> {
        let kernel = if self.rootless { Ok(()) } else { Errors::all(self.clean_kernel()) };
        let remove = |directory: PathBuf| absent_is_fine(fs::remove_dir_all(&directory)).map_err(at(&directory));
        // A namespace that could not be removed is a mount in its directory, which then stays.
        let directories = [self.state.endpoints(), self.state.namespaces()].map(remove);
        let libraries = [LIBRARY_NAME, SOCKETS_LIBRARY_NAME, MPI_LIBRARY_NAME].map(|name| self.state.path().join(name));
        let kept = [self.state.store(), self.state.keys(), self.state.identity()];
        let unfinished = kept.each_ref().map(|file| file.with_extension("new"));
        let files = [&[self.state.api_socket()][..], &libraries, &unfinished, &kept].concat();
        Errors::all([kernel].into_iter().chain(directories).chain([self.remove_files(&files)]))
    }

    /// Removes what is in the kernel: namespaces, firewall rules, a mount.
    fn clean_kernel(&self) -> [Result<(), InstanceError>; 3] {
        let namespaces = Overlay::new(self.state.clone(), None).and_then(|overlay| overlay.clear());
        let rules = Firewall::new(self.state.path()).remove();
        let endpoints = self.state.endpoints();
        let unmounted = match is_mount_of_ours(&endpoints) {
            true => unmount(&endpoints, UnmountFlags::DETACH).map_err(|e| at(&endpoints)(e.into())),
            false => Ok(()),
        };
        [namespaces.map_err(InstanceError::from), rules.map_err(InstanceError::from), unmounted]
    }

    fn remove_files(&self, files: &[PathBuf]) -> Result<(), InstanceError> {
        Errors::all(files.iter().map(|file| absent_is_fine(fs::remove_file(file)).map_err(at(file))))
    }

    /// Programs map the preload library from the endpoints' directories, which a file system mounted `noexec`, as /run
    /// often is, does not allow: there, they get a file system of their own.
    fn allow_libraries(&self) -> Result<(), InstanceError> {
        let path = self.state.endpoints();
        let file_system = statvfs(&path).map_err(|e| at(&path)(e.into()))?;
        if !file_system.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Ok(());
        }
        if self.rootless {
            return Err(InstanceError::NoExec(self.state.path().to_owned()));
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(MOUNT_SOURCE, &path, "tmpfs", flags, c"mode=700").map_err(|e| at(&path)(e.into()))
    }
}

/// Whether a router mounted a file system of its own at `path`.
fn is_mount_of_ours(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let line = format!("{MOUNT_SOURCE} {} tmpfs ", path.display());
    mounts.lines().any(|mount| mount.starts_with(&line))
}

fn make_directory(path: &Path, mode: u32) -> Result<(), InstanceError> {
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(at(path))
}

fn at(path: &Path) -> impl Fn(io::Error) -> InstanceError {
    move |source| InstanceError::Io { path: path.to_owned(), source }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Name by which a later router recognises the mount.
const MOUNT_SOURCE: &str = "rdmesh-endpoints";
/// Time in which a router that was killed releases the lock: the kernel unmaps its memory first.
const DYING: Duration = Duration::from_secs(2);
