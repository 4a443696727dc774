//! Hosts, and endpoints on other hosts.

use super::{Added, EndpointRequest, HOSTS, JoinPool, Registry, RegistryError, decode};
use crate::store::{Expect, Revision};
use crate::{
    DEFAULT_NETWORK, Endpoint, Host, InterfaceName, Isolation, Labels, Name, Network, Peer, PeerEndpoint, Quota,
    TopologyWatch,
};
use std::net::IpAddr;

impl Registry {
    /// All hosts, by name.
    pub fn hosts(&self) -> Result<Vec<Host>, RegistryError> {
        self.store.list(HOSTS)?.iter().map(decode).collect()
    }

    /// Adds a host, or changes the address of one.
    pub fn set_host(&self, host: &Host) -> Result<Revision, RegistryError> {
        let other = self.hosts()?.into_iter().find(|other| other.address == host.address && other.name != host.name);
        match other {
            Some(other) => Err(RegistryError::HostAddressTaken { address: host.address, holder: other.name }),
            None => Ok(self.put(&host_key(&host.name), host, Expect::Anything)?),
        }
    }

    /// Removes a host and its endpoints; returns what it was.
    pub fn remove_host(&self, name: &Name) -> Result<Peer, RegistryError> {
        let peer = self.peer(self.host(name)?)?;
        for endpoint in self.endpoints_on(name)? {
            self.remove_endpoint(&endpoint.network, &endpoint.name)?;
        }
        self.store.delete(&host_key(name), Expect::Anything)?;
        Ok(peer)
    }

    /// All hosts but `own`, with their endpoints.
    pub fn peers(&self, own: &Name) -> Result<Vec<Peer>, RegistryError> {
        self.hosts()?.into_iter().filter(|host| host.name != *own).map(|host| self.peer(host)).collect()
    }

    /// Adds an endpoint of the other host `host`; to add it again changes nothing.
    pub fn add_peer_endpoint(&self, host: &Name, wanted: PeerEndpoint) -> Result<Added, RegistryError> {
        self.host(host)?;
        let first = *wanted.addresses.first().ok_or(RegistryError::NoAddress)?;
        let network = self.peer_network(&wanted)?;
        let existing = self.endpoints_on(host)?.into_iter().find(|endpoint| {
            endpoint.network == network.name
                && endpoint.addresses == wanted.addresses
                && link_of(endpoint) == wanted.link
        });
        if let Some(endpoint) = existing {
            return Ok(Added { endpoint, network, revision: Revision::default() });
        }
        self.add_endpoint(EndpointRequest {
            name: Network::name_for(first),
            network: network.name,
            vni: wanted.vni,
            host: host.clone(),
            addresses: wanted.addresses,
            quota: Quota::default(),
            allowed_uid: None,
            owner_pid: None,
            isolation: Isolation::None,
            interface: InterfaceName::default(),
            labels: Labels::default(),
            pool: wanted.link.map(|link| JoinPool { name: Network::name_for(link), link: Some(link) }),
        })
    }

    /// The network of another host's endpoint. One that is new here must come with the number that it has there: a free one
    /// would be another network's there.
    pub fn peer_network(&self, wanted: &PeerEndpoint) -> Result<Network, RegistryError> {
        let PeerEndpoint { network, vni, addresses, .. } = wanted;
        let is_known = vni.is_some() || network.as_str() == DEFAULT_NETWORK;
        if !is_known && !self.networks()?.iter().any(|known| known.name == *network) {
            return Err(RegistryError::VniUnknown(network.clone()));
        }
        self.network(network, *vni, addresses)
    }

    /// Removes the endpoint of the other host `host` that has `address`.
    pub fn remove_peer_endpoint(
        &self,
        host: &Name,
        network: &Name,
        address: IpAddr,
    ) -> Result<PeerEndpoint, RegistryError> {
        self.host(host)?;
        let is_meant = |e: &Endpoint| e.network == *network && e.addresses.contains(&address);
        let found = self.endpoints_on(host)?.into_iter().find(is_meant);
        let missing = || RegistryError::NoSuchAddress { host: host.clone(), network: network.clone(), address };
        let removed = self.remove_endpoint(network, &found.ok_or_else(missing)?.name)?;
        let vni = Some(self.network(network, None, &[])?.vni);
        Ok(told(removed, vni))
    }

    /// A copy of the registry's contents, which follows changes.
    pub fn watch(&self) -> Result<TopologyWatch, RegistryError> {
        let (entries, changes) = self.store.watch("")?;
        Ok(TopologyWatch::new(entries, changes))
    }

    fn host(&self, name: &Name) -> Result<Host, RegistryError> {
        let entry = self.store.get(&host_key(name))?;
        decode(&entry.ok_or_else(|| RegistryError::NoSuchHost(name.clone()))?)
    }

    fn endpoints_on(&self, host: &Name) -> Result<Vec<Endpoint>, RegistryError> {
        Ok(self.endpoints()?.into_iter().filter(|endpoint| endpoint.host == *host).collect())
    }

    fn peer(&self, host: Host) -> Result<Peer, RegistryError> {
        let networks = self.networks()?;
        let vni_of = |name: &Name| networks.iter().find(|network| network.name == *name).map(|network| network.vni);
        let endpoints = self.endpoints_on(&host.name)?.into_iter();
        let endpoints = endpoints.map(|endpoint| (vni_of(&endpoint.network), endpoint));
        let endpoints = endpoints.map(|(vni, endpoint)| told(endpoint, vni)).collect();
        Ok(Peer { name: host.name, address: host.address, key: None, endpoints })
    }
}

/// An endpoint as other hosts are told of it.
fn told(endpoint: Endpoint, vni: Option<u32>) -> PeerEndpoint {
    PeerEndpoint { vni, link: link_of(&endpoint), network: endpoint.network, addresses: endpoint.addresses }
}

fn link_of(endpoint: &Endpoint) -> Option<IpAddr> {
    endpoint.pool.as_ref().map(|pool| pool.link)
}

pub(crate) fn host_key(name: &Name) -> String {
    format!("{HOSTS}{name}")
}
