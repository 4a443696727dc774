//! Membership of a host in the cluster: its leases, and what it has under them.

use super::error::ClusterError;
use super::keys;
use super::pool::Pools;
use super::records::{Cluster, decode, encode};
use super::terms::Terms;
use crate::store::{Expect, LeaseId, LocalStore, Store, StoreError, Transaction, settle};
use crate::{Capabilities, Host, Name, PublicKey, Rotated, Validate};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A host in the cluster.
///
/// It has two leases. The *session* is short: with it go the host's record and its endpoints, so that others soon know that they are
/// out of reach. The *tenure* is long: with it go the host's blocks of addresses and its claims on single ones. As long as it
/// lasts no other host gets any of these, and so the host may give away fresh addresses of its blocks while the store is away, and
/// the addresses of a host that has died rest until then.
pub struct Member {
    cluster: Cluster,
    local: Arc<dyn LocalStore>,
    clock: Clock,
    terms: Terms,
    host: Host,
    leases: Mutex<Leases>,
    pub(super) pools: Pools,
    announced: Mutex<Announced>,
    /// Held by who gets addresses from the store: one block is claimed, not one by each that waits.
    pub(super) claiming: tokio::sync::Mutex<()>,
}

/// Announcement of a host to the others on its networks, beside its address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// The networks that interfaces of the host are attached to.
    pub attached: BTreeSet<Name>,
    /// Public halves of its key pairs; none where the operator gives keys to all hosts.
    pub public_keys: Option<Rotated<PublicKey>>,
}

/// Time since some fixed point.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// State of the leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// They go on.
    Kept,
    /// There is a new one: all endpoints must be published again.
    Anew,
}

#[derive(Clone, Copy)]
struct Leases {
    session: LeaseId,
    tenure: LeaseId,
    /// Until then the tenure surely lasts.
    valid_until: Duration,
    /// One of them is new, and [`Member::renew`] has not said so yet.
    is_new: bool,
}

/// The leases as the host itself remembers them.
#[derive(Serialize, Deserialize)]
struct Noted {
    session: u64,
    tenure: u64,
}

impl Member {
    /// Joins the cluster. A router that comes after one which has died, with the same `local` store, goes on with its leases and
    /// blocks, if they last.
    pub async fn join(
        cluster: Cluster,
        local: Arc<dyn LocalStore>,
        clock: Clock,
        terms: Terms,
        host: Host,
    ) -> Result<(Self, Renewal), ClusterError> {
        host.validate()?;
        let pools = Pools::new(Arc::clone(&local));
        let noted = local.get(LEASES)?.and_then(|entry| decode::<Noted>(&entry).ok());
        let noted = noted.map_or((None, None), |noted| (Some(LeaseId(noted.session)), Some(LeaseId(noted.tenure))));
        let now = clock();
        let (session, tenure) = (kept(cluster.store(), noted.0).await?, kept(cluster.store(), noted.1).await?);
        let is_new = session.is_none() || tenure.is_none();
        if tenure.is_some() {
            pools.restore()?
        } else {
            pools.clear()?
        }
        let tenure = granted(cluster.store(), tenure, terms.tenure).await?;
        let session = granted(cluster.store(), session, terms.session).await?;
        let leases = Leases { session, tenure, valid_until: now + terms.offline(), is_new: false };
        let (leases, claiming) = (Mutex::new(leases), tokio::sync::Mutex::default());
        let announced = Mutex::default();
        let member = Self { cluster, local, clock, terms, host, leases, pools, announced, claiming };
        member.note()?;
        member.register().await?;
        Ok((member, if is_new { Renewal::Anew } else { Renewal::Kept }))
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The cluster that it is in.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Whether its addresses are surely its own: the tenure lasts, whether or not the store can be asked.
    pub fn is_valid(&self) -> bool {
        (self.clock)() < self.leases().valid_until
    }

    /// Pause between two renewals.
    pub fn pause(&self) -> Duration {
        self.terms.pause()
    }

    /// Number of fresh addresses that it keeps on each network.
    pub(super) fn reserve(&self) -> u32 {
        self.terms.reserve
    }

    /// Lets the leases last, or gets new ones where they have ended.
    pub async fn renew(&self) -> Result<Renewal, ClusterError> {
        let (now, Leases { session, tenure, .. }) = ((self.clock)(), *self.leases());
        let kept_tenure = kept(self.store(), Some(tenure)).await?;
        let kept_session = kept(self.store(), Some(session)).await?;
        if kept_tenure.is_none() {
            // Before anything is given away under a new one.
            self.leases().valid_until = Duration::ZERO;
            self.pools.clear()?;
        }
        let is_new = kept_session.is_none() || kept_tenure.is_none();
        let tenure = granted(self.store(), kept_tenure, self.terms.tenure).await?;
        let session = granted(self.store(), kept_session, self.terms.session).await?;
        let was_new = {
            let mut leases = self.leases();
            let was_new = leases.is_new;
            *leases = Leases { session, tenure, valid_until: leases.valid_until, is_new: was_new || is_new };
            was_new
        };
        if was_new || is_new {
            // Where that fails the next renewal says it.
            self.note()?;
            self.register().await?;
        }
        let mut leases = self.leases();
        (leases.valid_until, leases.is_new) = (now + self.terms.offline(), false);
        Ok(if was_new || is_new { Renewal::Anew } else { Renewal::Kept })
    }

    /// Leaves the cluster. Its endpoints must have been released: then nothing is left that has to rest.
    pub async fn leave(&self) -> Result<(), ClusterError> {
        let Leases { session, tenure, .. } = *self.leases();
        self.leases().valid_until = Duration::ZERO;
        for lease in [session, tenure] {
            match self.store().revoke(lease).await {
                Ok(()) | Err(StoreError::LeaseEnded) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.pools.clear()?;
        self.local.delete(LEASES, Expect::Anything)?;
        Ok(())
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        self.cluster.store()
    }

    pub(super) fn session(&self) -> LeaseId {
        self.leases().session
    }

    pub(super) fn tenure(&self) -> LeaseId {
        self.leases().tenure
    }

    pub(super) fn quarantine(&self) -> Duration {
        self.terms.quarantine
    }

    /// Sets what others are told of the host: with its next endpoint on a network, and with [`Member::tell_of_host`].
    pub fn set_announced(&self, announced: Announced) {
        *self.announced.lock().unwrap_or_else(PoisonError::into_inner) = announced;
    }

    /// The host as others on `network` see it.
    pub(super) fn host_on(&self, network: &Name) -> Host {
        let announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        let has_attached = announced.attached.contains(network);
        let capabilities = Capabilities { has_attached, ..self.host.capabilities };
        Host { capabilities, public_keys: announced.public_keys.clone(), ..self.host.clone() }
    }

    /// Puts the host's record under the session. A host of the same name that is there already is another one.
    async fn register(&self) -> Result<(), ClusterError> {
        let key = keys::host(&self.host.name);
        let expect = match self.store().get(&key).await? {
            None => Expect::Absent,
            Some(entry) if entry.lease == Some(self.session()) => Expect::Revision(entry.revision),
            Some(_) => return Err(self.has_double()),
        };
        let record = Transaction::default().expect(&key, expect).put(&key, &encode(&self.host), Some(self.session()));
        match settle(&**self.store(), &record).await {
            Err(StoreError::Conflict(_)) => Err(self.has_double()),
            registered => registered.map(drop).map_err(ClusterError::from),
        }
    }

    fn has_double(&self) -> ClusterError {
        ClusterError::Exists { what: "host", name: self.host.name.to_string() }
    }

    fn note(&self) -> Result<(), StoreError> {
        let Leases { session, tenure, .. } = *self.leases();
        let noted = encode(&Noted { session: session.0, tenure: tenure.0 });
        self.local.put(LEASES, &noted, Expect::Anything, None).map(drop)
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease that goes on; none where there is none, or where it has ended.
async fn kept(store: &Arc<dyn Store>, lease: Option<LeaseId>) -> Result<Option<LeaseId>, StoreError> {
    let Some(lease) = lease else { return Ok(None) };
    match store.keep_alive(lease).await {
        Ok(()) => Ok(Some(lease)),
        Err(StoreError::LeaseEnded) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn granted(store: &Arc<dyn Store>, kept: Option<LeaseId>, ttl: Duration) -> Result<LeaseId, StoreError> {
    match kept {
        Some(lease) => Ok(lease),
        None => store.grant(ttl).await,
    }
}

const LEASES: &str = "cluster/leases";
