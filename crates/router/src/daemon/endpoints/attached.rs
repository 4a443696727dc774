//! An endpoint with its process, its namespace and its directory.

use crate::daemon::error::NotTakenOver;
use crate::daemon::restore;
use crate::endpoint::{EndpointDir, EndpointId};
use rdmesh_fabric::api::{CreateEndpoint, EndpointInfo};
use rdmesh_fabric::{Endpoint, Isolation, Name, Network};
use rdmesh_overlay::{Confinement, NamespaceId, has_undelivered};
use rdmesh_relay::{Relay, Totals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Counts of an endpoint's relay.
pub(crate) struct RelayedEndpoint {
    pub(crate) network: Name,
    pub(crate) name: Name,
    pub(crate) totals: Totals,
}

/// An endpoint that programs can use, with what goes with it.
pub(super) struct AttachedEndpoint {
    pub(super) id: EndpointId,
    pub(super) endpoint: Endpoint,
    pub(super) network: Network,
    pub(super) namespace: Option<PathBuf>,
    pub(super) owner: Option<OwnedFd>,
    /// User of the process that it goes with, as it was when it made the endpoint.
    pub(super) owner_uid: Option<u32>,
    pub(super) relay: Relay,
    /// Its last moments, from when its owner was first seen to have ended.
    pub(super) ending: Option<Ending>,
    /// Control group of its programs, where it shares its namespace with endpoints whose addresses they must not use.
    pub(super) confinement: Option<Confinement>,
    pub(super) directory: EndpointDir,
}

impl AttachedEndpoint {
    pub(super) fn info(&self) -> EndpointInfo {
        EndpointInfo {
            endpoint: self.endpoint.clone(),
            directory: self.directory.path().to_owned(),
            namespace: self.namespace.clone(),
            cgroup: self.confinement.as_ref().map(|confinement| confinement.group().path().to_owned()),
        }
    }

    /// Why process `caller` cannot take it over from a process that has ended.
    pub(super) fn refusal(&self, request: &CreateEndpoint, caller: i32) -> Option<NotTakenOver> {
        let known = &self.endpoint;
        if !request.addresses.iter().all(|address| known.addresses.contains(address)) {
            return Some(NotTakenOver::Addresses);
        }
        if request.isolation != known.isolation {
            return Some(NotTakenOver::Isolation);
        }
        if request.quota != known.quota {
            return Some(NotTakenOver::Quota);
        }
        if self.owner_uid.is_none() || self.owner_uid != restore::user(caller) {
            return Some(NotTakenOver::User);
        }
        let left = self.processes();
        (!left.is_empty()).then(|| NotTakenOver::Processes(left.join(", ")))
    }

    /// It goes with process `pid`.
    pub(super) fn belong_to(&mut self, pid: i32, process: OwnedFd) {
        (self.owner, self.owner_uid, self.endpoint.owner_pid) = (Some(process), restore::user(pid), Some(pid));
        self.ending = None;
    }

    /// Processes in its network namespace, by number and name.
    pub(super) fn processes(&self) -> Vec<String> {
        self.namespace.as_deref().and_then(NamespaceId::of).map(NamespaceId::processes).unwrap_or_default()
    }

    /// Whether the process that it goes with has ended.
    pub(super) fn is_orphan(&self) -> bool {
        let Some(owner) = &self.owner else { return false };
        let mut fds = [PollFd::from_borrowed_fd(owner.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Whether its relay or the kernel has still to deliver what its programs have sent, which have ended, and there is time for it.
    pub(super) fn is_delivering(&mut self) -> bool {
        let namespace = self.own_namespace().map(Path::to_owned);
        let ending = self.ending.get_or_insert_with(|| Ending::begin(namespace.as_deref()));
        ending.since.elapsed() < DELIVERY && (self.relay.is_busy() || ending.has_undelivered)
    }

    /// Notes what [`kernel_has_undelivered`] says of its namespace.
    pub(super) fn set_undelivered(&mut self, has_undelivered: bool) {
        if let Some(ending) = &mut self.ending {
            ending.has_undelivered = has_undelivered;
        }
    }

    /// Its network namespace, if that ends with it.
    pub(super) fn own_namespace(&self) -> Option<&Path> {
        self.namespace.as_deref().filter(|_| self.endpoint.isolation == Isolation::Namespace)
    }

    /// Name of the endpoint, with the counters of its relay.
    pub(super) fn relayed(&self) -> RelayedEndpoint {
        let Endpoint { network, name, .. } = &self.endpoint;
        RelayedEndpoint { network: network.clone(), name: name.clone(), totals: self.relay.totals() }
    }
}

/// The last moments of an endpoint.
pub(super) struct Ending {
    since: Instant,
    /// Whether the kernel was last seen to have bytes or an end to deliver.
    has_undelivered: bool,
}

impl Ending {
    fn begin(namespace: Option<&Path>) -> Self {
        Self { since: Instant::now(), has_undelivered: namespace.is_some_and(kernel_has_undelivered) }
    }
}

/// Whether the kernel has still to deliver what programs in `namespace` have sent; not so where that cannot be told.
pub(super) fn kernel_has_undelivered(namespace: &Path) -> bool {
    has_undelivered(namespace).unwrap_or_else(|error| {
        // One that has just been removed has nothing left.
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(%error, namespace = %namespace.display(), "cannot tell whether TCP has delivered all");
        }
        false
    })
}

/// Time for an endpoint's relay and the kernel to deliver what programs have sent, from when its owner has ended.
const DELIVERY: Duration = Duration::from_secs(1);
