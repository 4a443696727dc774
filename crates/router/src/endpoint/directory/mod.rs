//! An endpoint's directory.

use super::{Library, gids::gid_table, sysfs};
use rdmesh_fabric::Endpoint;
use rdmesh_streams::RELAY_NAME;
use rdmesh_uverbs::session::{LIBRARY_NAME, MPI_LIBRARY_NAME, SOCKET_NAME, SOCKETS_LIBRARY_NAME, SYSFS_NAME};
use rustix::fs::{Gid as Group, Mode, Uid, chmod, chown};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The directory of an endpoint; removed when this is dropped.
#[derive(Debug)]
pub struct EndpointDir {
    path: PathBuf,
}

/// The listening sockets in an endpoint's directory: non-blocking sequenced packet sockets.
#[derive(Debug)]
pub struct Listeners {
    /// Of programs that open the device.
    pub verbs: OwnedFd,
    /// Of programs with accelerated connections.
    pub streams: OwnedFd,
}

/// Error of making a directory.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The path does not fit into a socket address.
    #[error("{} is too long for a socket's path: use a shorter --state-dir", .0.display())]
    PathTooLong(PathBuf),
    /// The kernel refused.
    #[error("making {}: {source}", .path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl EndpointDir {
    /// Makes the directory `path` for `endpoint`; one that a router which has died left there stays, with its inode, because
    /// containers may have it mounted, and gets new contents. Returns it and the listening sockets in it, which are
    /// open to the endpoint's user only if it has one. One directory is made at a time.
    pub fn create(path: &Path, endpoint: &Endpoint, library: &Library) -> Result<(Self, Listeners), EndpointError> {
        SocketAddrUnix::new(path.join(RELAY_NAME)).map_err(|_| EndpointError::PathTooLong(path.join(RELAY_NAME)))?;
        let failed = |source| EndpointError::Io { path: path.to_owned(), source };
        make(path).map_err(failed)?;
        let directory = Self { path: path.to_owned() };
        let contents = Contents { path: path.with_file_name(STAGING) };
        let listeners = contents.fill(endpoint, library).map_err(failed)?;
        directory.take(&contents).map_err(failed)?;
        Ok((directory, listeners))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces what is in the directory by `contents`. A container's root may have put anything there, links too: nothing in it
    /// is written to, or followed.
    fn take(&self, contents: &Contents) -> io::Result<()> {
        let old = contents.path.join(OLD);
        fs::create_dir(&old)?;
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            fs::rename(entry.path(), old.join(entry.file_name()))?;
        }
        // The socket comes last: a program that can connect finds the rest.
        let libraries = [LIBRARY_NAME, SOCKETS_LIBRARY_NAME, MPI_LIBRARY_NAME];
        let installed = libraries.into_iter().filter(|name| contents.path.join(name).exists());
        let mut names = [SYSFS_NAME, DEVICES_NAME].into_iter().chain(installed).chain([RELAY_NAME, SOCKET_NAME]);
        names.try_for_each(|name| fs::rename(contents.path.join(name), self.path.join(name)))
    }
}

/// The contents of a directory, made where no program sees them.
struct Contents {
    path: PathBuf,
}

impl Contents {
    fn fill(&self, endpoint: &Endpoint, library: &Library) -> io::Result<Listeners> {
        remove(&self.path)?;
        DirBuilder::new().mode(0o700).create(&self.path)?;
        sysfs::write(&self.path.join(SYSFS_NAME), endpoint, &gid_table(endpoint))?;
        self.list_devices()?;
        library.copy_to(&self.path)?;
        let listen = |name| self.listen(name, endpoint.allowed_uid);
        Ok(Listeners { verbs: listen(SOCKET_NAME)?, streams: listen(RELAY_NAME)? })
    }

    fn listen(&self, name: &str, allowed_uid: Option<u32>) -> io::Result<OwnedFd> {
        let (path, flags) = (self.path.join(name), SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(&path)?)?;
        admit(&path, allowed_uid)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    /// Makes the entries that a program sees when it lists `/dev/infiniband`. The library handles opening them.
    fn list_devices(&self) -> io::Result<()> {
        let folder = self.path.join(DEVICES_NAME).join("infiniband");
        fs::create_dir_all(&folder)?;
        ["uverbs0", "rdma_cm"].iter().try_for_each(|name| fs::write(folder.join(name), ""))
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot empty the endpoint's directory");
        }
    }
}

impl Drop for EndpointDir {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the endpoint's directory");
        }
    }
}

/// Lets `uid`, or every user who sees the socket, connect to it.
fn admit(socket: &Path, uid: Option<u32>) -> io::Result<()> {
    let Some(uid) = uid else { return Ok(chmod(socket, Mode::from_raw_mode(0o666))?) };
    chmod(socket, Mode::from_raw_mode(0o600))?;
    if rustix::process::geteuid().as_raw() != uid {
        chown(socket, Some(Uid::from_raw(uid)), None::<Group>)?;
    }
    Ok(())
}

/// Makes a directory, if there is none.
fn make(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::set_permissions(path, Permissions::from_mode(0o755)),
        Ok(_) => fs::remove_file(path).and_then(|()| make(path)),
        Err(_) => DirBuilder::new().mode(0o755).create(path),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

const BACKLOG: i32 = 128;
const DEVICES_NAME: &str = "dev";
/// Staging directory for new contents, beside the endpoint's directory: its name is no endpoint's, and shorter than any, so
/// that a socket's path fits.
const STAGING: &str = ".n";
/// Name for the old contents, in the same place.
const OLD: &str = "old";

#[cfg(test)]
mod tests;
