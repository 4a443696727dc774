//! The secret by which the hosts of a cluster authenticate each other, in the store that only they can read.

use super::error::ClusterError;
use super::keys;
use super::records::{ATTEMPTS, Cluster, decode, encode};
use crate::store::{Expect, StoreError, Transaction, settle};
use crate::{RotatedKey, TunnelKey};

impl Cluster {
    /// The hosts' secret, made by the first of them that asks.
    pub async fn secret(&self) -> Result<RotatedKey, ClusterError> {
        for _ in 0..ATTEMPTS {
            if let Some(entry) = self.store().get(keys::SECRET).await? {
                return decode(&entry);
            }
            match self.replace_secret(RotatedKey::from(new_key()?), Expect::Absent).await {
                // Another host was faster.
                Err(ClusterError::Store(StoreError::Conflict(_))) => {}
                made => return made,
            }
        }
        Err(ClusterError::Contended(keys::SECRET.to_owned()))
    }

    /// Replaces the hosts' secret. The one before is accepted until all have the new one.
    pub async fn rotate_secret(&self) -> Result<RotatedKey, ClusterError> {
        let missing = || ClusterError::Missing { what: "secret of the hosts", name: keys::SECRET.to_owned() };
        let entry = self.store().get(keys::SECRET).await?.ok_or_else(missing)?;
        let next = decode::<RotatedKey>(&entry)?.followed_by(new_key()?);
        self.replace_secret(next, Expect::Revision(entry.revision)).await
    }

    /// Waits until the hosts' secret is another one than `known`.
    pub async fn next_secret(&self, known: &RotatedKey) -> Result<RotatedKey, ClusterError> {
        loop {
            let listing = self.store().list(keys::SECRET, None).await?;
            if let Some(entry) = listing.entries.first() {
                let secret = decode(entry)?;
                if secret != *known {
                    return Ok(secret);
                }
            }
            self.store().watch(keys::SECRET, listing.revision).await?.next().await?;
        }
    }

    async fn replace_secret(&self, secret: RotatedKey, expect: Expect) -> Result<RotatedKey, ClusterError> {
        let put = Transaction::default().expect(keys::SECRET, expect).put(keys::SECRET, &encode(&secret), None);
        settle(&**self.store(), &put).await?;
        Ok(secret)
    }
}

fn new_key() -> Result<TunnelKey, ClusterError> {
    TunnelKey::generate().map_err(|why| ClusterError::Random(why.to_string()))
}
