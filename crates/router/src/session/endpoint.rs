//! Endpoint state of the session server: a tenant address with its device, and the account of all its users.

use super::accounting::{ObjectCounts, ObjectKind};
use super::lookups::Seeker;
use super::mistakes::Mistakes;
use super::traffic::{Told, Traffic};
use crate::budget::{Budget, Resource, Share};
use crate::disposal::{Disposal, Reclaimer};
use crate::endpoint::EndpointId;
use crate::errands::Errands;
use crate::io::PlainError;
use crate::memory::{Arenas, Patience};
use rdmesh_fabric::Quota;
use rdmesh_verbs::{DeviceLimits, Gid, Vni};
use rustix::io::Errno;
use std::collections::HashSet;
use std::net::IpAddr;

/// Maximum number of log messages about an endpoint's programs.
const MAX_COMPLAINTS: u32 = 32;
/// Channels of rdma_cm: more than programs with one for each of a thousand connections need.
const MAX_CHANNELS: u32 = 4096;
/// Memberships in multicast groups, of all queue pairs.
const MAX_GROUPS: u32 = 65_536;

/// Configuration of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointSpec {
    /// Its name in this server.
    pub id: EndpointId,
    /// Its name in its network.
    pub name: String,
    /// The tenant network's name.
    pub network: String,
    /// The tenant network.
    pub vni: Vni,
    /// The GID table; empty slots are zero.
    pub gids: Vec<Gid>,
    /// Limits on the objects of its programs together.
    pub quota: Quota,
    /// The only user who may connect; anyone who can reach the socket where none is named.
    pub allowed_uid: Option<u32>,
}

impl EndpointSpec {
    /// The addresses of its GIDs.
    fn addresses(&self) -> Vec<IpAddr> {
        self.gids.iter().filter(|gid| !gid.is_zero()).map(|gid| gid.ip()).collect()
    }

    /// The device's node GUID, big-endian: the interface identifier of the first GID, or, without one, a number made
    /// from the endpoint's name (RFC 4291, appendix A, with the bit of locally made identifiers). Never zero.
    pub fn node_guid(&self) -> [u8; 8] {
        let first = self.gids.first().map_or([0; 8], |gid| {
            let mut id = [0; 8];
            id.copy_from_slice(&gid.0[8..]);
            id
        });
        if first != [0; 8] {
            return first;
        }
        let names = self.network.bytes().chain([0]).chain(self.name.bytes());
        let hash = names.fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        (hash | 2 << 56).to_be_bytes()
    }
}

/// An endpoint that is open.
pub(super) struct Endpoint {
    pub(super) spec: EndpointSpec,
    pub(super) contexts: u32,
    pub(super) connections: u32,
    pub(super) counts: ObjectCounts,
    pub(super) pinned: u64,
    /// Its account in the router's budget.
    pub(super) share: Share,
    /// Its programs' registered memory.
    pub(super) arenas: Arenas,
    /// Memberships in multicast groups.
    pub(super) groups: u32,
    /// Lookups for its programs, with the back-off for slow ones, and for unreachable memory.
    pub(super) seeker: Seeker,
    /// Traffic of its destroyed queue pairs.
    pub(super) traffic: Traffic,
    /// The last reported values of its counters.
    pub(super) told: Option<Told>,
    /// Unmaps the memory and closes the descriptors of its programs.
    pub(super) disposal: Disposal,
    /// Recent failed requests of its programs.
    pub(super) mistakes: Mistakes,
    /// The limit that was reached last, until it has been recorded.
    pub(super) refusal: Option<&'static str>,
    warned: HashSet<&'static str>,
    complaints: u32,
}

impl Endpoint {
    pub(super) fn new(spec: EndpointSpec, budget: &Budget, reclaimer: &Reclaimer) -> Self {
        let share = budget.share(spec.quota.mappings);
        let disposal = Disposal::new(share.clone(), reclaimer);
        let seeker = Seeker {
            errands: Errands::new("rdmesh-lookup", None),
            patience: Patience::default(),
            share: share.clone(),
            addresses: spec.addresses(),
        };
        Self {
            spec,
            contexts: 0,
            connections: 0,
            counts: ObjectCounts::default(),
            pinned: 0,
            arenas: Arenas::new(disposal.clone()),
            groups: 0,
            seeker,
            traffic: Traffic::default(),
            told: None,
            disposal,
            mistakes: Mistakes::default(),
            refusal: None,
            warned: HashSet::new(),
            complaints: 0,
            share,
        }
    }

    /// Connections that may be open: some for every context's forked children, and one for each of rdma_cm's channels.
    pub(super) fn max_connections(&self) -> u32 {
        let quota = &self.spec.quota;
        // Each channel takes three descriptors of the router's.
        let channels = quota.qps.saturating_mul(2).min(MAX_CHANNELS);
        quota.contexts.saturating_mul(4).saturating_add(channels).saturating_add(16)
    }

    /// Whether one more object of this kind fits.
    pub(super) fn admit(&mut self, kind: ObjectKind, limits: &DeviceLimits) -> Result<(), Errno> {
        let quota = &self.spec.quota;
        let (limit, advice) = match kind {
            ObjectKind::Pd => (limits.max_pd, "protection domains"),
            ObjectKind::Mr => (quota.mrs.min(limits.max_mr), "memory regions: raise the quota `mrs`"),
            ObjectKind::Mw => (quota.mrs.min(limits.max_mw), "memory windows: raise the quota `mrs`"),
            ObjectKind::Cq => (quota.cqs.min(limits.max_cq), "completion queues: raise the quota `cqs`"),
            ObjectKind::Channel => (quota.cqs, "completion channels: raise the quota `cqs`"),
            ObjectKind::Qp => (quota.qps.min(limits.max_qp), "queue pairs: raise the quota `qps`"),
            ObjectKind::Srq => (quota.qps.min(limits.max_srq), "shared receive queues: raise the quota `qps`"),
            ObjectKind::Ah => (limits.max_ah, "address handles"),
        };
        if self.counts.get(kind) >= limit {
            return self.refuse(advice, limit.into());
        }
        Ok(())
    }

    /// Records that a resource of the router is exhausted for it.
    pub(super) fn exhausted(&mut self, resource: Resource) {
        let _ = self.refuse(resource.advice(), self.share.held(resource));
    }

    /// Whether one more membership in a multicast group is possible.
    pub(super) fn admit_group(&mut self) -> Result<(), Errno> {
        if self.groups < MAX_GROUPS { Ok(()) } else { self.refuse("multicast group memberships", MAX_GROUPS.into()) }
    }

    /// Whether `bytes` more may be pinned.
    pub(super) fn admit_pinned(&mut self, bytes: u64) -> Result<(), Errno> {
        let limit = self.spec.quota.pinned_bytes;
        if self.pinned.checked_add(bytes).is_some_and(|sum| sum <= limit) {
            return Ok(());
        }
        self.refuse("bytes of registered memory: raise the quota `pinned_bytes`", limit)
    }

    /// Whether one more context may be opened.
    pub(super) fn admit_context(&mut self) -> Result<(), Errno> {
        let limit = self.spec.quota.contexts;
        if self.contexts < limit {
            return Ok(());
        }
        self.refuse("device contexts: raise the quota `contexts`", limit.into())
    }

    /// Logs, once, why programs do not reach external peers.
    pub(super) fn report_outside(&mut self, error: Option<&PlainError>) {
        let Some(error) = error.filter(|_| self.is_first("outside")) else { return };
        let (endpoint, network) = (&self.spec.name, &self.spec.network);
        match error {
            // An endpoint without such an address is not expected to be reachable there.
            PlainError::NoInterface => tracing::info!(endpoint, network, "RDMA stays within rdmesh: {error}"),
            _ => tracing::warn!(endpoint, network, "RDMA stays within rdmesh: {error}"),
        }
    }

    /// Whether `subject` occurs for the first time; events that a tenant can repeat are logged once.
    pub(super) fn is_first(&mut self, subject: &'static str) -> bool {
        self.warned.insert(subject)
    }

    /// Whether a message about a program may still be logged: the number is limited for each endpoint.
    pub(super) fn may_complain(&mut self) -> bool {
        self.complaints = self.complaints.saturating_add(1);
        self.complaints <= MAX_COMPLAINTS
    }

    fn refuse(&mut self, what: &'static str, limit: u64) -> Result<(), Errno> {
        if self.is_first(what) {
            tracing::warn!(endpoint = self.spec.name, network = self.spec.network, limit, "no more {what}");
        }
        self.refusal = Some(what);
        Err(Errno::NOMEM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Limits;

    fn spec(gids: Vec<Gid>) -> EndpointSpec {
        EndpointSpec {
            id: EndpointId(1),
            name: "a".into(),
            network: "blue".into(),
            vni: Vni(1),
            gids,
            quota: Quota::default(),
            allowed_uid: None,
        }
    }

    #[test]
    fn node_guid_is_that_of_the_link_local_gid() {
        let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(spec(vec![gid]).node_guid(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_ne!(spec(vec![]).node_guid(), [0; 8]);
    }

    #[test]
    fn pinned_bytes_cannot_overflow_the_account() {
        let budget = Budget::new(Limits::of_this_process());
        let mut endpoint = Endpoint::new(spec(vec![]), &budget, &Reclaimer::new(None));
        endpoint.pinned = 4096;
        assert_eq!(endpoint.admit_pinned(u64::MAX), Err(Errno::NOMEM));
        assert_eq!(endpoint.admit_pinned(4096), Ok(()));
    }
}
