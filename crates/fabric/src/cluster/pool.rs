//! Blocks that a host has: addresses that it may give away without asking anyone.

use super::blocks::Block;
use super::records::{decode, encode};
use crate::Name;
use crate::store::{Expect, LocalStore, Revision, StoreError, Transaction};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The blocks of a host, and which of their addresses were given away. Nothing here waits for the cluster's store.
///
/// An address is *fresh* until it is given; a fresh one is nobody's but this host's. One that was given can be another host's, if
/// the cluster's store says so, and is fresh again only by a transaction there (see [`Pools::renew`]).
pub(super) struct Pools {
    local: Arc<dyn LocalStore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pools: BTreeMap<(Name, IpNet), Vec<Pool>>,
    /// Addresses of this host's living endpoints, in its blocks or not.
    living: BTreeSet<(Name, IpAddr)>,
}

#[derive(Clone)]
pub(super) struct Pool {
    pub(super) block: Block,
    /// Places that were given away, or must not be.
    pub(super) given: u64,
    /// Places of this host's living endpoints.
    used: u64,
}

/// A block as the host itself remembers it.
#[derive(Serialize, Deserialize)]
struct Noted {
    network: Name,
    range: IpNet,
    first: IpAddr,
    given: u64,
}

impl Pools {
    /// No blocks, to be noted in `local`.
    pub(super) fn new(local: Arc<dyn LocalStore>) -> Self {
        Self { local, state: Mutex::default() }
    }

    /// The blocks that an earlier router of this host has noted.
    pub(super) fn restore(&self) -> Result<(), StoreError> {
        for entry in self.local.list(NOTED)? {
            // One that cannot be read is not used, and ends with the lease.
            let Ok(Noted { network, range, first, given }) = decode(&entry) else { continue };
            self.lock().insert(&network, Block::of(range, first), given);
        }
        Ok(())
    }

    /// Forgets all blocks: the lease that they came with has ended.
    pub(super) fn clear(&self) -> Result<(), StoreError> {
        self.lock().pools.clear();
        for entry in self.local.list(NOTED)? {
            self.local.delete(&entry.key, Expect::Anything)?;
        }
        Ok(())
    }

    /// Adds a block.
    pub(super) fn add(&self, network: &Name, block: Block, given: u64) -> Result<(), StoreError> {
        let mut state = self.lock();
        self.note(network, block, given)?;
        state.insert(network, block, given);
        Ok(())
    }

    /// Gives away the first fresh address, if there is one.
    pub(super) fn take(&self, network: &Name, range: IpNet) -> Result<Option<IpAddr>, StoreError> {
        let mut state = self.lock();
        let State { pools, living } = &mut *state;
        for pool in pools.get_mut(&(network.clone(), range)).into_iter().flatten() {
            if let Some((place, address)) = pool.block.addresses().find(|(place, _)| pool.given & 1 << place == 0) {
                self.give(network, pool, place)?;
                living.insert((network.clone(), address));
                return Ok(Some(address));
            }
        }
        Ok(None)
    }

    /// Gives away `address`, if it is fresh and in a block of this host.
    pub(super) fn take_exactly(&self, network: &Name, range: IpNet, address: IpAddr) -> Result<bool, StoreError> {
        let mut state = self.lock();
        let State { pools, living } = &mut *state;
        for pool in pools.get_mut(&(network.clone(), range)).into_iter().flatten() {
            let Some(place) = pool.block.place(address).filter(|place| pool.given & 1 << place == 0) else { continue };
            self.give(network, pool, place)?;
            living.insert((network.clone(), address));
            return Ok(true);
        }
        Ok(false)
    }

    /// Number of fresh addresses of a range.
    pub(super) fn fresh(&self, network: &Name, range: IpNet) -> u32 {
        let state = self.lock();
        let pools = state.pools.get(&(network.clone(), range)).into_iter().flatten();
        pools.map(|pool| pool.given.count_zeros()).sum()
    }

    /// Records that a living endpoint of this host has `address`, or that none has any more.
    pub(super) fn set_living(&self, network: &Name, address: IpAddr, lives: bool) {
        let State { pools, living } = &mut *self.lock();
        if lives {
            living.insert((network.clone(), address))
        } else {
            living.remove(&(network.clone(), address))
        };
        for pool in pools.iter_mut().filter(|((of, _), _)| of == network).flat_map(|(_, pools)| pools) {
            let Some(place) = pool.block.place(address) else { continue };
            // It may have been given by an earlier router, which noted that, or asked for.
            pool.given |= u64::from(lives) << place;
            pool.used = if lives { pool.used | 1 << place } else { pool.used & !(1 << place) };
        }
    }

    /// Whether a living endpoint of this host has `address`.
    pub(super) fn lives(&self, network: &Name, address: IpAddr) -> bool {
        self.lock().living.contains(&(network.clone(), address))
    }

    /// Whether a block of this host has `address`.
    pub(super) fn has(&self, network: &Name, address: IpAddr) -> bool {
        let state = self.lock();
        let mut of_network = state.pools.iter().filter(|((of, _), _)| of == network).flat_map(|(_, pools)| pools);
        of_network.any(|pool| pool.block.place(address).is_some())
    }

    /// The blocks of a range.
    pub(super) fn of(&self, network: &Name, range: IpNet) -> Vec<Pool> {
        self.lock().pools.get(&(network.clone(), range)).cloned().unwrap_or_default()
    }

    /// Makes places of a block fresh again.
    pub(super) fn renew(&self, network: &Name, block: Block, fresh: u64) -> Result<(), StoreError> {
        let mut state = self.lock();
        let of_range = state.pools.get_mut(&(network.clone(), block.range())).into_iter().flatten();
        for pool in of_range.filter(|pool| pool.block == block) {
            let given = pool.given & !(fresh & !pool.used);
            self.note(network, block, given)?;
            pool.given = given;
        }
        Ok(())
    }

    /// Gives a place away. That is noted before anyone gets it: the next router does not give it again.
    fn give(&self, network: &Name, pool: &mut Pool, place: u32) -> Result<(), StoreError> {
        self.note(network, pool.block, pool.given | 1 << place)?;
        pool.given |= 1 << place;
        pool.used |= 1 << place;
        Ok(())
    }

    fn note(&self, network: &Name, block: Block, given: u64) -> Result<Revision, StoreError> {
        let (range, first) = (block.range(), block.first());
        let noted = encode(&Noted { network: network.clone(), range, first, given });
        let note = Transaction::default().put(&format!("{NOTED}{network}/{first}"), &noted, None);
        self.local.commit(&note).map(|committed| committed.revision)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn insert(&mut self, network: &Name, block: Block, given: u64) {
        // An endpoint may have been there before the block was this host's.
        let lives = |(_, address): &(u32, IpAddr)| self.living.contains(&(network.clone(), *address));
        let used = block.addresses().filter(lives).fold(0, |set, (place, _)| set | 1 << place);
        let pools = self.pools.entry((network.clone(), block.range())).or_default();
        pools.retain(|pool| pool.block != block);
        pools.push(Pool { block, given: given | used, used });
    }
}

impl Pool {
    /// Places that were given, and that no living endpoint of this host has.
    pub(super) fn unused(&self) -> u64 {
        self.given & !self.used & !self.block.reserved()
    }
}

const NOTED: &str = "cluster/blocks/";
