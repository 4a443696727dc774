//! Addresses: blocks of them, and claims on single ones.
//!
//! Three rules keep two living endpoints from having one address. An address has at most one claim, a key. A host gives away fresh
//! addresses of a block that it has, and no other host claims an address of that block unless the block's record says that it was
//! given before. And a host that gets a block looks for claims in it afterwards, when no other host can make any that it would
//! not know of.

use super::blocks::{Block, is_host_address};
use super::error::ClusterError;
use super::keys;
use super::member::Member;
use super::pool::Pool;
use super::records::{ATTEMPTS, decode, encode};
use crate::store::{Entry, Expect, StoreError, Transaction, settle};
use crate::{Name, Network};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

/// Holder of an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) endpoint: Name,
    pub(super) host: Name,
    /// The lease under which it was made, which tells two routers of one host apart.
    pub(super) tenure: u64,
    /// The endpoint has gone: the address rests, and only an endpoint of the same name gets it now.
    #[serde(default)]
    pub(super) is_released: bool,
}

/// Holder of a block.
#[derive(Serialize, Deserialize)]
struct BlockRecord {
    host: Name,
    tenure: u64,
    /// Places whose addresses other hosts may claim where no other claim is on them.
    given: u64,
}

/// How a block is claimed.
#[derive(Clone, Copy)]
struct Claiming {
    /// Number of times that another host was faster.
    attempt: usize,
    /// Whether one free block is left to others.
    leaves_one: bool,
}

/// An address that an endpoint is to have.
pub(super) struct Wanted<'a> {
    pub(super) network: &'a Network,
    pub(super) endpoint: &'a Name,
    pub(super) address: IpAddr,
}

impl Member {
    /// A free address of `range`, one of the network's, for a new endpoint. It needs the store only where no block of this host has
    /// a fresh one.
    pub async fn take(&self, network: &Network, range: IpNet) -> Result<IpAddr, ClusterError> {
        for attempt in 0..ATTEMPTS {
            if let Some(address) = self.take_fresh(network, range)? {
                return Ok(address);
            }
            let _claiming = self.claiming.lock().await;
            // Another task may have got a block meanwhile.
            if let Some(address) = self.take_fresh(network, range)? {
                return Ok(address);
            }
            if !self.make_fresh(network, range).await? {
                self.claim_block(network, range, Claiming { attempt, leaves_one: false }).await?;
            }
        }
        Err(ClusterError::Contended(keys::blocks(&network.name)))
    }

    /// Gets fresh addresses of a network until there are as many as the terms want in reserve, or few blocks are free.
    pub async fn stock(&self, network: &Network) -> Result<(), ClusterError> {
        for &range in &network.subnets {
            let mut attempt = 0;
            while self.is_valid() && self.pools.fresh(&network.name, range) < self.reserve() && attempt < ATTEMPTS {
                let _claiming = self.claiming.lock().await;
                let before = self.pools.fresh(&network.name, range);
                if !self.make_fresh(network, range).await? {
                    match self.claim_block(network, range, Claiming { attempt, leaves_one: true }).await {
                        Err(ClusterError::NetworkFull(_)) => break,
                        claimed => claimed?,
                    }
                }
                attempt = if self.pools.fresh(&network.name, range) > before { 0 } else { attempt + 1 };
            }
        }
        Ok(())
    }

    /// The address `address` for the endpoint `endpoint`, if it is free, or rests since an endpoint of that name had it.
    pub async fn take_exactly(&self, network: &Network, endpoint: &Name, address: IpAddr) -> Result<(), ClusterError> {
        let outside = || ClusterError::NotInNetwork { address, network: network.name.clone() };
        let range = network.subnet_of(address).filter(|range| is_host_address(*range, address)).ok_or_else(outside)?;
        if self.is_valid() && self.pools.take_exactly(&network.name, range, address)? {
            return Ok(());
        }
        let _claiming = self.claiming.lock().await;
        // The store may not know of it yet.
        if self.pools.lives(&network.name, address) {
            let holder = "an endpoint of this host".to_owned();
            return Err(ClusterError::AddressTaken { address, network: network.name.clone(), holder });
        }
        let wanted = Wanted { network, endpoint, address };
        for _ in 0..ATTEMPTS {
            let claim = self.claim(Transaction::default(), &wanted).await?;
            match settle(&**self.store(), &claim).await {
                Ok(_) => {
                    self.pools.set_living(&network.name, address, true);
                    return Ok(());
                }
                Err(StoreError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ClusterError::Contended(keys::address(&network.name, address)))
    }

    fn take_fresh(&self, network: &Network, range: IpNet) -> Result<Option<IpAddr>, ClusterError> {
        if !self.is_valid() {
            return Err(ClusterError::Lapsed);
        }
        Ok(self.pools.take(&network.name, range)?)
    }

    /// Extends `transaction` by the claim of an address, with the conditions under which it may be made.
    pub(super) async fn claim(
        &self,
        transaction: Transaction,
        Wanted { network, endpoint, address }: &Wanted<'_>,
    ) -> Result<Transaction, ClusterError> {
        let taken = |holder| ClusterError::AddressTaken { address: *address, network: network.name.clone(), holder };
        let key = keys::address(&network.name, *address);
        let claim = self.claim_of(endpoint);
        let (expect, is_known) = match self.store().get(&key).await? {
            None => (Expect::Absent, false),
            Some(entry) => {
                let now: Claim = decode(&entry)?;
                let is_ours = now.endpoint == **endpoint && (now.is_released || now.host == claim.host);
                if !is_ours {
                    return Err(taken(now.holder()));
                }
                (Expect::Revision(entry.revision), true)
            }
        };
        let transaction = transaction.expect(&key, expect).put(&key, &encode(&claim), Some(self.tenure()));
        let range = network.subnet_of(*address);
        let range =
            range.ok_or_else(|| ClusterError::NotInNetwork { address: *address, network: network.name.clone() })?;
        let block = Block::of(range, *address);
        let block_key = keys::block(&network.name, block.first());
        let bit = block.place(*address).map_or(0, |place| 1_u64 << place);
        Ok(match self.store().get(&block_key).await? {
            Some(entry) if entry.lease == Some(self.tenure()) => {
                let record: BlockRecord = decode(&entry)?;
                let record = BlockRecord { given: record.given | bit, ..record };
                let transaction = transaction.expect(&block_key, Expect::Revision(entry.revision));
                transaction.put(&block_key, &encode(&record), entry.lease)
            }
            // The block's host knows of a claim that was there before.
            _ if is_known => transaction,
            None => transaction.expect(&block_key, Expect::Absent),
            Some(entry) => {
                let record: BlockRecord = decode(&entry)?;
                // A gateway's address is given by nobody, but may be asked for.
                if (record.given | block.reserved()) & bit == 0 {
                    return Err(taken(format!("a block of host `{}`", record.host)));
                }
                transaction.expect(&block_key, Expect::Revision(entry.revision))
            }
        })
    }

    /// The claim of an endpoint of this host.
    pub(super) fn claim_of(&self, endpoint: &Name) -> Claim {
        let (host, tenure) = (self.host().name.clone(), self.tenure().0);
        Claim { endpoint: endpoint.clone(), host, tenure, is_released: false }
    }

    /// Makes addresses fresh again that were given from blocks of this host and are nobody's now; false where there are none.
    async fn make_fresh(&self, network: &Network, range: IpNet) -> Result<bool, ClusterError> {
        let pools = self.pools.of(&network.name, range);
        if pools.iter().all(|pool| pool.unused() == 0) {
            return Ok(false);
        }
        let claimed = self.claimed(&network.name).await?;
        for pool in pools {
            let is_free = |(place, address): &(u32, IpAddr)| {
                pool.unused() & 1 << place != 0 && !claimed.contains(&keys::address(&network.name, *address))
            };
            let free: Vec<_> = pool.block.addresses().filter(is_free).collect();
            if !free.is_empty() && self.make_block_fresh(network, &pool, &free).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn make_block_fresh(
        &self,
        network: &Network,
        pool: &Pool,
        free: &[(u32, IpAddr)],
    ) -> Result<bool, ClusterError> {
        let key = keys::block(&network.name, pool.block.first());
        let own = |entry: &Entry| entry.lease == Some(self.tenure());
        let Some(entry) = self.store().get(&key).await?.filter(own) else { return Ok(false) };
        let fresh = free.iter().fold(0, |set, (place, _)| set | 1_u64 << place);
        let record: BlockRecord = decode(&entry)?;
        // Only what the record says: what was given and not published yet must not be open to others.
        let record = BlockRecord { given: record.given & !fresh, ..record };
        let renewal = Transaction::default().expect(&key, Expect::Revision(entry.revision));
        let renewal = renewal.put(&key, &encode(&record), entry.lease);
        let addresses = free.iter().map(|(_, address)| keys::address(&network.name, *address));
        let renewal = addresses.fold(renewal, |renewal, address| renewal.expect(&address, Expect::Absent));
        match settle(&**self.store(), &renewal).await {
            Ok(_) => {
                self.pools.renew(&network.name, pool.block, fresh)?;
                Ok(true)
            }
            Err(StoreError::Conflict(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gets another block. Where another host is faster nothing happens.
    async fn claim_block(&self, network: &Network, range: IpNet, how: Claiming) -> Result<(), ClusterError> {
        let Claiming { attempt, leaves_one } = how;
        let own: BTreeSet<IpAddr> = self.pools.of(&network.name, range).iter().map(|pool| pool.block.first()).collect();
        let listing = self.store().list(&keys::blocks(&network.name), None).await?;
        let known: HashMap<&str, &Entry> = listing.entries.iter().map(|entry| (entry.key.as_str(), entry)).collect();
        // One that this host's last router got, and died before it noted that, is as good as a free one.
        let is_free = |block: &Block| match known.get(keys::block(&network.name, block.first()).as_str()) {
            Some(entry) => entry.lease == Some(self.tenure()) && !own.contains(&block.first()),
            None => true,
        };
        let full = || ClusterError::NetworkFull(network.name.clone());
        let mut free = Block::all(range).filter(is_free).skip(usize::from(leaves_one));
        let first = free.next().ok_or_else(full)?;
        let block = free.nth(self.detour(attempt)).filter(|_| attempt > 0).unwrap_or(first);
        let key = keys::block(&network.name, block.first());
        let (expect, given) = match known.get(key.as_str()) {
            Some(entry) => (Expect::Revision(entry.revision), decode::<BlockRecord>(entry)?.given),
            None => (Expect::Absent, 0),
        };
        let record = BlockRecord { host: self.host().name.clone(), tenure: self.tenure().0, given };
        let claim = Transaction::default().expect(&key, expect).put(&key, &encode(&record), Some(self.tenure()));
        match settle(&**self.store(), &claim).await {
            Ok(_) => {}
            Err(StoreError::Conflict(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let claimed = self.claimed(&network.name).await?;
        let is_claimed = |(_, address): &(u32, IpAddr)| claimed.contains(&keys::address(&network.name, *address));
        let given = block.addresses().filter(is_claimed).fold(given, |set, (place, _)| set | 1 << place);
        Ok(self.pools.add(&network.name, block, given | block.reserved())?)
    }

    /// Number of free blocks that are left to others, so that hosts which all want one do not want the same one again and again.
    fn detour(&self, attempt: usize) -> usize {
        let mut hasher = DefaultHasher::new();
        (&self.host().name, attempt).hash(&mut hasher);
        hasher.finish() as usize % (2 << attempt.min(8))
    }

    /// Keys of all claims on a network.
    async fn claimed(&self, network: &Name) -> Result<BTreeSet<String>, StoreError> {
        let listing = self.store().list(&keys::addresses(network), None).await?;
        Ok(listing.entries.into_iter().map(|entry| entry.key).collect())
    }
}

impl Claim {
    fn holder(&self) -> String {
        let state = if self.is_released { "which is gone since a moment" } else { "which lives" };
        format!("endpoint `{}` of host `{}`, {state}", self.endpoint, self.host)
    }
}
