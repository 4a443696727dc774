//! Addresses of endpoints: the free ones, and the holders of others.

use super::{ADDRESSES, EndpointRequest, Registry, RegistryError, address_key};
use crate::{Name, Network};
use ipnet::IpNet;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lowest free address of each range, as far as this router knows. Clones share it.
///
/// A search for one reads all that are taken. Whether an address is free only its key says: where another router has claimed
/// this one, all are read again.
#[derive(Clone, Default)]
pub(super) struct NextFree(Arc<Mutex<HashMap<Name, HashMap<IpNet, IpAddr>>>>);

impl NextFree {
    fn get(&self, network: &Name, subnet: IpNet) -> Option<IpAddr> {
        let next = self.lock().get(network)?.get(&subnet).copied();
        next.filter(|next| subnet.contains(next) && is_host_address(subnet, *next))
    }

    /// The addresses belong to an endpoint now.
    pub(super) fn take(&self, network: &Network, addresses: &[IpAddr]) {
        let mut known = self.lock();
        let ranges = known.entry(network.name.clone()).or_default();
        for &address in addresses {
            let Some((subnet, after)) = network.subnet_of(address).zip(successor(address)) else { continue };
            // One that was asked for may be above others that are free.
            if let Some(next) = ranges.get_mut(&subnet).filter(|next| **next == address) {
                *next = after;
            }
        }
    }

    /// The addresses are free again.
    pub(super) fn give_back(&self, network: &Name, addresses: &[IpAddr]) {
        let mut known = self.lock();
        let Some(ranges) = known.get_mut(network) else { return };
        for (&subnet, next) in ranges {
            let is_lower = |address: &&IpAddr| subnet.contains(*address) && **address < *next;
            // The first one is a gateway's, unless it is asked for.
            let lowest = host_addresses(subnet).next();
            if let Some(address) = addresses.iter().filter(is_lower).find(|address| lowest <= Some(**address)) {
                *next = *address;
            }
        }
    }

    /// Forgets the free addresses of a network, which are out of date.
    pub(super) fn forget(&self, network: &Name) {
        self.lock().remove(network);
    }

    fn set(&self, network: &Name, subnet: IpNet, next: IpAddr) {
        self.lock().entry(network.clone()).or_default().insert(subnet, next);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, HashMap<IpNet, IpAddr>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// The addresses that a request asks for; where it asks for none, the lowest free one of each range.
    pub(super) fn addresses_for(&self, network: &Network, asked: &[IpAddr]) -> Result<Vec<IpAddr>, RegistryError> {
        if asked.is_empty() {
            return network.subnets.iter().map(|&subnet| self.free_address(network, subnet)).collect();
        }
        let has_place = |address: &IpAddr| network.subnet_of(*address).is_some_and(|s| is_host_address(s, *address));
        let Some(&address) = asked.iter().find(|address| !has_place(address)) else { return Ok(asked.to_vec()) };
        let ranges: Vec<String> = network.subnets.iter().map(IpNet::to_string).collect();
        Err(RegistryError::NotInNetwork { address, network: network.name.clone(), ranges: ranges.join(" and ") })
    }

    fn free_address(&self, network: &Network, subnet: IpNet) -> Result<IpAddr, RegistryError> {
        if let Some(next) = self.next_free.get(&network.name, subnet) {
            return Ok(next);
        }
        let taken: BTreeSet<String> =
            self.store.list(&format!("{ADDRESSES}{}/", network.name))?.into_iter().map(|e| e.key).collect();
        let is_free = |address: &IpAddr| !taken.contains(&address_key(&network.name, *address));
        let free = host_addresses(subnet).find(is_free);
        let free = free.ok_or_else(|| RegistryError::NetworkFull(network.name.clone()))?;
        self.next_free.set(&network.name, subnet, free);
        Ok(free)
    }

    /// An error where an address that `request` asks for belongs to another endpoint.
    pub(super) fn refuse_taken(&self, request: &EndpointRequest) -> Result<(), RegistryError> {
        let EndpointRequest { network, host, addresses, .. } = request;
        for &address in addresses {
            let holder = self.holder(&address_key(network, address))?;
            if holder.is_empty() {
                continue;
            }
            let is_holder = |e: &crate::Endpoint| e.network == *network && e.name.as_str() == holder && e.host != *host;
            let elsewhere = self.endpoints()?.into_iter().find(is_holder);
            let holder = elsewhere.map_or(format!("`{holder}`"), |e| format!("`{holder}` on host `{}`", e.host));
            return Err(RegistryError::AddressTaken { address, network: network.clone(), holder });
        }
        Ok(())
    }
}

/// The addresses that endpoints get, in order. The first one of a range is left for a gateway.
fn host_addresses(subnet: IpNet) -> impl Iterator<Item = IpAddr> {
    subnet.hosts().filter(move |address| is_host_address(subnet, *address)).skip(1)
}

/// Whether an endpoint may have `address`: not the range's first or, in IPv4, its last one.
fn is_host_address(subnet: IpNet, address: IpAddr) -> bool {
    let single = subnet.prefix_len() == subnet.max_prefix_len();
    single || (address != subnet.network() && (!address.is_ipv4() || address != subnet.broadcast()))
}

fn successor(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => v4.to_bits().checked_add(1).map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(v6) => v6.to_bits().checked_add(1).map(|bits| Ipv6Addr::from_bits(bits).into()),
    }
}
