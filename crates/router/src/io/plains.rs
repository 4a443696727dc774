//! Table of the network namespaces that have sockets for plain RoCEv2, and of their users.

use super::plain::{self, Interface, NamespaceKey, PlainError, PlainSockets};
use super::probe::ProbeError;
use crate::budget::Charge;
use rdmesh_nic::PlainId;
use rustix::io::Errno;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The namespaces whose programs have a device open. Sockets go with the last context that uses them.
#[derive(Debug)]
pub struct Plains {
    probed: Result<(), ProbeError>,
    namespaces: HashMap<NamespaceKey, Entry>,
    next: u32,
}

/// Sockets and their users. The open descriptor keeps the namespace's number from being given to another.
#[derive(Debug)]
struct Entry {
    sockets: Arc<PlainSockets>,
    users: u32,
    _namespace: OwnedFd,
    _charge: Option<Charge>,
}

/// A context's path to external peers, to be given back by [`Plains::release`].
#[derive(Clone, Debug)]
pub struct PlainUse {
    key: NamespaceKey,
    /// The sockets.
    pub sockets: Arc<PlainSockets>,
    /// Whether they were opened for it, so that the workers must be told.
    pub is_first: bool,
}

/// Conditions of the search in a namespace.
#[derive(Debug)]
pub struct Terms {
    /// For [`Plains::DESCRIPTORS`], kept where sockets are opened.
    pub charge: Option<Charge>,
    /// Time-out of the search.
    pub wait: Duration,
}

/// Plain RoCEv2 path of a context, found in its program's namespace.
#[derive(Debug)]
pub struct Place {
    /// The interface that has the endpoint's address.
    pub interface: Option<Interface>,
    /// Its external path.
    pub plain: Result<PlainUse, PlainError>,
}

impl Plains {
    /// Descriptors for one namespace: two sockets, and the namespace.
    pub const DESCRIPTORS: u64 = 3;

    /// An empty table; `probed` says whether the kernel supports plain RoCEv2.
    pub fn new(probed: Result<(), ProbeError>) -> Self {
        Self { probed, namespaces: HashMap::new(), next: 0 }
    }

    /// Finds or opens the sockets of a namespace for an endpoint with these addresses, served by `worker`, on
    /// these `terms`.
    pub fn acquire(
        &mut self,
        namespace: Result<OwnedFd, Errno>,
        addresses: Vec<IpAddr>,
        worker: usize,
        terms: Terms,
    ) -> Place {
        let nothing = |error| Place { interface: None, plain: Err(error) };
        let opened = namespace.and_then(|fd| Ok((NamespaceKey::of(fd.as_fd())?, io_clone(&fd)?, fd)));
        let (key, copy, namespace) = match opened {
            Ok(opened) => opened,
            Err(error) => return nothing(PlainError::Unknown(error)),
        };
        let is_known = self.namespaces.contains_key(&key);
        let found = match plain::visit(copy, addresses, !is_known && self.probed.is_ok(), terms.wait) {
            Ok(found) => found,
            Err(error) => return nothing(error),
        };
        let Some(interface) = found.interface else { return nothing(PlainError::NoInterface) };
        let plain = match found.sockets {
            Some(Ok(sockets)) => {
                let id = PlainId(self.next);
                self.next = self.next.wrapping_add(1);
                let sockets = Arc::new(PlainSockets::new(id, worker, sockets, interface));
                self.namespaces.insert(
                    key,
                    Entry { sockets: sockets.clone(), users: 1, _namespace: namespace, _charge: terms.charge },
                );
                Ok(PlainUse { key, sockets, is_first: true })
            }
            Some(Err(error)) => Err(error),
            None => self.share(key),
        };
        Place { interface: Some(interface), plain }
    }

    /// Gives a context's use back. Returns the sockets' number where it was the last: the workers are to forget them.
    pub fn release(&mut self, plain: &PlainUse) -> Option<PlainId> {
        let entry = self.namespaces.get_mut(&plain.key)?;
        entry.users -= 1;
        if entry.users > 0 {
            return None;
        }
        self.namespaces.remove(&plain.key).map(|entry| entry.sockets.id())
    }

    fn share(&mut self, key: NamespaceKey) -> Result<PlainUse, PlainError> {
        self.probed?;
        let entry = self.namespaces.get_mut(&key).ok_or(PlainError::NoInterface)?;
        entry.users += 1;
        Ok(PlainUse { key, sockets: entry.sockets.clone(), is_first: false })
    }
}

fn io_clone(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0)
}
