//! An endpoint's directory.

use super::{Library, gids::gid_table, sysfs};
use rdmesh_fabric::Endpoint;
use rdmesh_uverbs::session::{LIBRARY_NAME, SOCKET_NAME, SYSFS_NAME};
use rustix::fs::{Gid as Group, Mode, Uid, chmod, chown};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The directory of an endpoint; removed when this is dropped.
#[derive(Debug)]
pub struct EndpointDir {
    path: PathBuf,
}

/// Why a directory could not be made.
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
        /// Why.
        source: io::Error,
    },
}

impl EndpointDir {
    /// Makes the directory `path` for `endpoint`. Returns it and the listening socket in it: non-blocking, a sequenced
    /// packet socket, open to the endpoint's user only if it has one.
    pub fn create(path: &Path, endpoint: &Endpoint, library: &Library) -> Result<(Self, OwnedFd), EndpointError> {
        let address = SocketAddrUnix::new(path.join(SOCKET_NAME))
            .map_err(|_| EndpointError::PathTooLong(path.join(SOCKET_NAME)))?;
        let failed = |source| EndpointError::Io { path: path.to_owned(), source };
        remove(path).map_err(failed)?;
        DirBuilder::new().mode(0o755).create(path).map_err(failed)?;
        let directory = Self { path: path.to_owned() };
        let listener = directory.fill(endpoint, library, &address).map_err(failed)?;
        Ok((directory, listener))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn fill(&self, endpoint: &Endpoint, library: &Library, address: &SocketAddrUnix) -> io::Result<OwnedFd> {
        sysfs::write(&self.path.join(SYSFS_NAME), endpoint, &gid_table(endpoint))?;
        self.list_devices()?;
        library.copy_to(&self.path.join(LIBRARY_NAME))?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, address)?;
        self.admit(endpoint.allowed_uid)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    /// Makes what stands for `/dev/infiniband` where a program lists it. What it opens there is the library's affair.
    fn list_devices(&self) -> io::Result<()> {
        let folder = self.path.join("dev/infiniband");
        fs::create_dir_all(&folder)?;
        ["uverbs0", "rdma_cm"].iter().try_for_each(|name| fs::write(folder.join(name), ""))
    }

    /// Lets `uid`, or everybody who sees the socket, connect to it.
    fn admit(&self, uid: Option<u32>) -> io::Result<()> {
        let socket = self.path.join(SOCKET_NAME);
        let Some(uid) = uid else { return Ok(chmod(&socket, Mode::from_raw_mode(0o666))?) };
        chmod(&socket, Mode::from_raw_mode(0o600))?;
        if rustix::process::geteuid().as_raw() != uid {
            chown(&socket, Some(Uid::from_raw(uid)), None::<Group>)?;
        }
        Ok(())
    }
}

impl Drop for EndpointDir {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "an endpoint's directory stays");
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

const BACKLOG: i32 = 128;

#[cfg(test)]
mod tests;
