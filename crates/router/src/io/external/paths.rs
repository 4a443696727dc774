//! Table of the network namespaces that have sockets for plain RoCEv2, and of their users.
//!
//! A tenant controls how long the search in its namespace takes, so it runs on threads that serve no other. The table is locked
//! for moments only; meanwhile a namespace is *busy*: another search there waits, and an end does not, because a search counts
//! as a user.

use super::probe::ProbeError;
use super::sockets::{self, ExternalPathError, ExternalSockets, Interface, NamespaceKey};
use crate::budget::Charge;
use rdmesh_nic::ExternalId;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The namespaces whose programs have a device open. Sockets go with their last user. Clones share the table.
#[derive(Clone, Debug)]
pub struct ExternalPaths(Arc<Shared>);

/// Part of the router that serves the sockets.
pub trait ExternalPathWatcher: Send + Sync {
    /// Sockets were opened: they are to be served before this returns.
    fn opened(&self, sockets: &Arc<ExternalSockets>);

    /// Sockets have no user any more: nothing holds them when this returns.
    fn closed(&self, id: ExternalId);
}

struct Shared {
    probed: Result<(), ProbeError>,
    watcher: Box<dyn ExternalPathWatcher>,
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    namespaces: HashMap<NamespaceKey, Entry>,
    /// Namespaces in which sockets are looked for, opened or closed at this moment.
    busy: HashSet<NamespaceKey>,
    next: u32,
}

/// Sockets and their users. The open descriptor keeps the namespace's number from being given to another.
#[derive(Debug)]
struct Entry {
    sockets: Arc<ExternalSockets>,
    users: u32,
    _namespace: OwnedFd,
    _charge: Option<Charge>,
}

/// A path to external peers; the sockets are given back when it is dropped.
#[derive(Debug)]
pub struct ExternalPath {
    external_paths: ExternalPaths,
    key: NamespaceKey,
    /// None only at its end.
    sockets: Option<Arc<ExternalSockets>>,
}

/// Conditions of the search in a namespace.
#[derive(Debug)]
pub struct Terms {
    /// For [`ExternalPaths::DESCRIPTORS`], kept where sockets are opened.
    pub charge: Option<Charge>,
    /// Time-out of the search.
    pub wait: Duration,
}

/// Plain RoCEv2 path of a context, found in its program's namespace.
#[derive(Debug)]
pub struct Uplink {
    /// The interface that has the endpoint's address.
    pub interface: Option<Interface>,
    /// Its external path.
    pub external: Result<ExternalPath, ExternalPathError>,
}

/// A busy namespace, until it is dropped.
struct Busy<'a>(&'a Shared, NamespaceKey);

impl ExternalPaths {
    /// Descriptors for one namespace: two sockets, and the namespace.
    pub const DESCRIPTORS: u64 = 3;

    /// An empty table; `probed` says whether the kernel supports plain RoCEv2, `watcher` serves the sockets.
    pub fn new(probed: Result<(), ProbeError>, watcher: impl ExternalPathWatcher + 'static) -> Self {
        Self(Arc::new(Shared { probed, watcher: Box::new(watcher), table: Mutex::default(), changed: Condvar::new() }))
    }

    /// Finds or opens the sockets of a namespace for an endpoint with these addresses, served by `worker`, on these `terms`.
    /// Waits for as long as they say.
    pub fn acquire(
        &self,
        namespace: Result<OwnedFd, Errno>,
        addresses: Vec<IpAddr>,
        worker: usize,
        terms: Terms,
    ) -> Uplink {
        let nothing = |error| Uplink { interface: None, external: Err(error) };
        let opened = namespace.and_then(|fd| Ok((NamespaceKey::of(fd.as_fd())?, io_clone(&fd)?, fd)));
        let (key, copy, namespace) = match opened {
            Ok(opened) => opened,
            Err(error) => return nothing(ExternalPathError::Unknown(error)),
        };
        let Some((_busy, known)) = self.occupy(key, terms.wait) else { return nothing(ExternalPathError::TooSlow) };
        let found = match sockets::visit(copy, addresses, known.is_none() && self.0.probed.is_ok(), terms.wait) {
            Ok(found) => found,
            Err(error) => return nothing(error),
        };
        let Some(interface) = found.interface else { return nothing(ExternalPathError::NoInterface) };
        let external = match (known, found.sockets) {
            (Some(known), _) => Ok(known),
            (None, Some(Ok((v4, v6)))) => {
                let id = ExternalId(self.0.lock().next_id());
                let sockets = Arc::new(ExternalSockets::new(id, worker, v4, v6, interface));
                self.0.watcher.opened(&sockets);
                let entry = Entry { sockets: sockets.clone(), users: 1, _namespace: namespace, _charge: terms.charge };
                self.0.lock().namespaces.insert(key, entry);
                Ok(ExternalPath { external_paths: self.clone(), key, sockets: Some(sockets) })
            }
            (None, Some(Err(error))) => Err(error),
            (None, None) => Err(self.0.probed.err().map_or(ExternalPathError::NoInterface, ExternalPathError::from)),
        };
        Uplink { interface: Some(interface), external }
    }

    /// Waits until a namespace is not busy, and makes it so; none where that takes longer than `wait`. Where it has sockets, they
    /// have one more use from then on, so that they are not closed meanwhile.
    fn occupy(&self, key: NamespaceKey, wait: Duration) -> Option<(Busy<'_>, Option<ExternalPath>)> {
        let is_busy = |table: &mut Table| table.busy.contains(&key);
        let waited = self.0.changed.wait_timeout_while(self.0.lock(), wait, is_busy);
        let (mut table, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !table.busy.insert(key) {
            return None;
        }
        let known = table.namespaces.get_mut(&key).map(|entry| {
            entry.users += 1;
            ExternalPath { external_paths: self.clone(), key, sockets: Some(entry.sockets.clone()) }
        });
        Some((Busy(&self.0, key), known))
    }
}

impl ExternalPath {
    /// The sockets.
    pub fn sockets(&self) -> &Arc<ExternalSockets> {
        self.sockets.as_ref().expect("they are there until the end")
    }
}

impl Drop for ExternalPath {
    fn drop(&mut self) {
        let shared = &self.external_paths.0;
        let mut table = shared.lock();
        let Some(entry) = table.namespaces.get_mut(&self.key) else { return };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        let entry = table.namespaces.remove(&self.key);
        // The next search must not meet sockets that still have the port.
        table.busy.insert(self.key);
        let _busy = Busy(shared, self.key);
        drop(table);
        if let Some(sockets) = self.sockets.take() {
            shared.watcher.closed(sockets.id());
        }
        drop(entry);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn next_id(&mut self) -> u32 {
        let id = self.next;
        self.next = id.wrapping_add(1);
        id
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.lock().busy.remove(&self.1);
        self.0.changed.notify_all();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalPaths")
            .field("probed", &self.probed)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

fn io_clone(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0)
}
