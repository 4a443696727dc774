//! Endpoints of this host, as others see them.

use super::addresses::{Claim, Wanted};
use super::error::ClusterError;
use super::keys;
use super::member::Member;
use super::records::{ATTEMPTS, decode, encode};
use crate::store::{Expect, LeaseId, Revision, StoreError, Transaction, settle};
use crate::{Endpoint, Name, Network, Validate};

impl Member {
    /// Tells the cluster of an endpoint of this host, whose addresses were taken before; or of one that it knew before the leases
    /// ended. [`ClusterError::AddressTaken`] and [`ClusterError::Elsewhere`]: it is another one's by now.
    pub async fn publish(&self, network: &Network, endpoint: &Endpoint) -> Result<Revision, ClusterError> {
        endpoint.validate()?;
        for _ in 0..ATTEMPTS {
            let publication = self.publication(network, endpoint).await?;
            match settle(&**self.store(), &publication).await {
                Ok(committed) => {
                    endpoint.addresses.iter().for_each(|address| self.pools.set_living(&network.name, *address, true));
                    return Ok(committed.revision);
                }
                Err(StoreError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ClusterError::Contended(keys::endpoint(&endpoint.network, &endpoint.name)))
    }

    /// Tells the cluster that an endpoint of this host has gone. Its addresses rest.
    pub async fn release(&self, endpoint: &Endpoint) -> Result<(), ClusterError> {
        let lease = self.store().grant(self.quarantine()).await?;
        for _ in 0..ATTEMPTS {
            let removal = self.removal(endpoint, lease).await?;
            match settle(&**self.store(), &removal).await {
                Ok(_) => {
                    self.disuse(endpoint);
                    return Ok(());
                }
                Err(StoreError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ClusterError::Contended(keys::endpoint(&endpoint.network, &endpoint.name)))
    }

    /// Records that an endpoint which was refused has gone: its addresses are another one's.
    pub fn disuse(&self, endpoint: &Endpoint) {
        endpoint.addresses.iter().for_each(|address| self.pools.set_living(&endpoint.network, *address, false));
    }

    /// Records which endpoints live on this host, after [`Member::join`]: their addresses are not given to others.
    pub fn adopt(&self, endpoint: &Endpoint) {
        endpoint.addresses.iter().for_each(|address| self.pools.set_living(&endpoint.network, *address, true));
    }

    /// Releases what a router of this host that has died told the cluster of, and which is not among `living`, the endpoints that
    /// this one has on the network.
    pub async fn reconcile(&self, network: &Name, living: &[Endpoint]) -> Result<(), ClusterError> {
        let lives = |name: &Name, address: Option<&str>| {
            living.iter().any(|endpoint| {
                let has = |address: &str| endpoint.addresses.iter().any(|own| own.to_string() == address);
                endpoint.name == *name && address.is_none_or(has)
            })
        };
        for entry in self.store().list(&keys::endpoint_prefix(network), None).await?.entries {
            let endpoint: Endpoint = decode(&entry)?;
            if endpoint.host == self.host().name && !lives(&endpoint.name, None) {
                self.release(&endpoint).await?;
            }
        }
        let prefix = keys::addresses(network);
        for entry in self.store().list(&prefix, None).await?.entries {
            let claim: Claim = decode(&entry)?;
            let is_own = claim.host == self.host().name && !claim.is_released;
            if is_own && !lives(&claim.endpoint, entry.key.strip_prefix(&prefix)) {
                let lease = self.store().grant(self.quarantine()).await?;
                let released = encode(&Claim { is_released: true, ..claim });
                let release = Transaction::default().expect(&entry.key, Expect::Revision(entry.revision));
                settle(&**self.store(), &release.put(&entry.key, &released, Some(lease))).await?;
            }
        }
        Ok(())
    }

    /// Tells the others on `network`, where this host has endpoints, what is announced of it.
    pub async fn tell_of_host(&self, network: &Name) -> Result<(), ClusterError> {
        let publication = self.host_publication(Transaction::default(), network).await?;
        if publication.operations().next().is_some() {
            settle(&**self.store(), &publication).await?;
        }
        Ok(())
    }

    /// Tells the cluster that this host has no endpoint on a network any more.
    pub async fn leave_network(&self, network: &Name) -> Result<(), ClusterError> {
        let removal = Transaction::default().delete(&keys::host_on_network(network, &self.host().name));
        self.store().commit(&removal).await?;
        Ok(())
    }

    async fn publication(&self, network: &Network, endpoint: &Endpoint) -> Result<Transaction, ClusterError> {
        let key = keys::endpoint(&endpoint.network, &endpoint.name);
        let expect = match self.store().get(&key).await? {
            None => Expect::Absent,
            Some(entry) => {
                let now: Endpoint = decode(&entry)?;
                if now.host != self.host().name {
                    let (name, network) = (now.name, now.network);
                    return Err(ClusterError::Elsewhere { name, network, host: now.host });
                }
                Expect::Revision(entry.revision)
            }
        };
        let session = Some(self.session());
        let mut publication = Transaction::default().expect(&key, expect).put(&key, &encode(endpoint), session);
        for &address in &endpoint.addresses {
            publication = self.claim(publication, &Wanted { network, endpoint: &endpoint.name, address }).await?;
        }
        self.host_publication(publication, &endpoint.network).await
    }

    /// Adds this host's record on `network`, where it is not there as it is now.
    async fn host_publication(&self, publication: Transaction, network: &Name) -> Result<Transaction, ClusterError> {
        let (key, host) = (keys::host_on_network(network, &self.host().name), encode(&self.host_on(network)));
        let session = Some(self.session());
        let expect = match self.store().get(&key).await? {
            None => Expect::Absent,
            Some(entry) if entry.value == host && entry.lease == session => return Ok(publication),
            Some(entry) => Expect::Revision(entry.revision),
        };
        Ok(publication.expect(&key, expect).put(&key, &host, session))
    }

    async fn removal(&self, endpoint: &Endpoint, lease: LeaseId) -> Result<Transaction, ClusterError> {
        let key = keys::endpoint(&endpoint.network, &endpoint.name);
        let mut removal = Transaction::default();
        if let Some(entry) = self.store().get(&key).await?
            && let now = decode::<Endpoint>(&entry)?
            && (&now.host, &now.addresses) == (&self.host().name, &endpoint.addresses)
        {
            removal = removal.expect(&key, Expect::Revision(entry.revision)).delete(&key);
        }
        let released = Claim { is_released: true, ..self.claim_of(&endpoint.name) };
        for &address in &endpoint.addresses {
            let key = keys::address(&endpoint.network, address);
            let expect = match self.store().get(&key).await? {
                Some(entry) => {
                    let claim: Claim = decode(&entry)?;
                    if claim.is_released || claim.host != released.host || claim.endpoint != endpoint.name {
                        continue;
                    }
                    Expect::Revision(entry.revision)
                }
                // It lived, but the store was not told of it. In another host's block it would be in the way.
                None if self.pools.has(&endpoint.network, address) => Expect::Absent,
                None => continue,
            };
            removal = removal.expect(&key, expect).put(&key, &encode(&released), Some(lease));
        }
        Ok(removal)
    }
}
