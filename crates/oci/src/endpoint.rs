//! The endpoint of a container.

use crate::failure::Failure;
use crate::wish::Wish;
use rdmesh_fabric::api::{CreateEndpoint, Netns};
use rdmesh_fabric::{Client, ClientError, InterfaceName, Isolation, Name, StateDir};
use rustix::fs::{Mode, OFlags, open};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The router of this host.
pub(crate) struct Router {
    state: StateDir,
    client: Client,
}

impl Router {
    /// That of the user, or the one whose state directory `RDMESH_STATE` names.
    pub(crate) fn find() -> Result<Self, Failure> {
        let named = std::env::var_os("RDMESH_STATE").filter(|named| !named.is_empty()).map(PathBuf::from);
        let state = StateDir::locate(named, rustix::process::geteuid().as_raw())?;
        let client = Client::new(state.api_socket());
        Ok(Self { state, client })
    }

    /// Makes the directory that container `id` mounts, and that the router fills when it makes the endpoint.
    pub(crate) fn prepare(&self, id: &str, wish: &Wish) -> Result<PathBuf, Failure> {
        // A router that cannot be reached is told of before anything is begun.
        let library = self.client.status()?.library;
        if wish.is_accelerated && !library.with_file_name("librdmesh-sockets.so").exists() {
            return Err(Failure::NoSockets);
        }
        // A container of that id which was not deleted in order.
        self.remove(id)?;
        let directory = self.state.endpoints().join(format!("{}.{}", wish.network, name_of(id)));
        let made = DirBuilder::new().mode(0o755).recursive(true).create(&directory);
        made.map_err(|source| Failure::File { file: directory.clone(), source })?;
        Ok(directory)
    }

    /// Makes the endpoint of container `id`, whose first process is in `pid_file`, in the network namespace of that.
    pub(crate) fn make(&self, id: &str, wish: &Wish, pid_file: &Path) -> Result<(), Failure> {
        let netns = namespace(pid_file)?;
        let mut refused = None;
        // Other containers of a pod have the same namespace.
        for number in 0..INTERFACES {
            let interface: InterfaceName = format!("rdmesh{number}").parse().expect("a short name");
            let request = CreateEndpoint {
                addresses: wish.addresses.clone(),
                isolation: Isolation::Given,
                netns: Some(Netns::Descriptor(netns.as_raw_fd().unsigned_abs())),
                interface: Some(interface.clone()),
                ..CreateEndpoint::new(wish.network.clone(), name_of(id))
            };
            match self.client.create_endpoint(&request) {
                Ok(_) => return Ok(()),
                Err(error) if is_taken(&error, &interface) => refused = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        refused.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Removes the endpoint of container `id`, and its directory, if it has one.
    pub(crate) fn remove(&self, id: &str) -> Result<(), Failure> {
        let name = name_of(id);
        let directories = self.directories(&name);
        if directories.is_empty() {
            // It has none, as most containers: the router is not asked.
            return Ok(());
        }
        let endpoints = match self.client.endpoints() {
            // With the router all endpoints have gone, or the next one brings them back: containers can be deleted.
            Err(ClientError::Unreachable { .. }) => return Ok(()),
            found => found?,
        };
        for endpoint in endpoints.iter().map(|info| &info.endpoint).filter(|endpoint| endpoint.name == name) {
            self.client.clear_endpoint(&endpoint.network, &name)?;
        }
        // One that no endpoint has filled is left.
        directories.into_iter().try_for_each(|file| match fs::remove_dir(&file) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Failure::File { file, source }),
            _ => Ok(()),
        })
    }

    /// Directories of endpoints of a name, on any network.
    fn directories(&self, name: &Name) -> Vec<PathBuf> {
        let suffix = format!(".{name}");
        let entries = fs::read_dir(self.state.endpoints()).into_iter().flatten().filter_map(Result::ok);
        entries
            .filter(|entry| entry.file_name().to_string_lossy().ends_with(&suffix))
            .map(|entry| entry.path())
            .collect()
    }
}

/// The network namespace of the process whose number is in a file.
fn namespace(pid_file: &Path) -> Result<OwnedFd, Failure> {
    let failed = |file: &Path, source: io::Error| Failure::File { file: file.to_owned(), source };
    let text = fs::read_to_string(pid_file).map_err(|source| failed(pid_file, source))?;
    let wrong = |_| failed(pid_file, io::ErrorKind::InvalidData.into());
    let pid: u32 = text.trim().parse().map_err(wrong)?;
    let file = PathBuf::from(format!("/proc/{pid}/ns/net"));
    let opened = open(&file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|errno| failed(&file, errno.into()))
}

/// Name of a container's endpoint: `oci-` and the beginning of its id, which engines choose at random, or all of it.
fn name_of(id: &str) -> Name {
    let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_' || *c == '-';
    let id: String = id.chars().filter(plain).take(ID).collect();
    format!("oci-{id}").parse().expect("letters, digits and dashes are a name")
}

/// Whether the namespace has an interface of that name already.
fn is_taken(error: &ClientError, interface: &InterfaceName) -> bool {
    matches!(error, ClientError::Refused { message, .. } if message.contains(&format!("has an interface `{}` already", interface.as_str())))
}

/// Characters of an id in a name.
const ID: usize = 24;
/// Most endpoints in one network namespace that have interfaces by this runtime.
const INTERFACES: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_ids() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        assert_eq!(name_of(id).as_str(), "oci-0123456789abcdef01234567");
        assert_eq!(name_of("web/1").as_str(), "oci-web1");
    }
}
