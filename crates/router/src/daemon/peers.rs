//! The other hosts and their endpoints.

use super::config::DaemonConfig;
use super::endpoints::Endpoints;
use super::error::HostError;
use super::keys::TunnelKeys;
use super::mesh::Mesh;
use rdmesh_fabric::{Host as HostRecord, Name, Peer, PeerEndpoint, Peers, Registry, RegistryError, TunnelKey};
use std::net::IpAddr;
use std::sync::Arc;

/// The other hosts, as this one knows them.
pub struct PeerHosts {
    config: Arc<DaemonConfig>,
    registry: Registry,
    mesh: Arc<Mesh>,
    keys: Arc<TunnelKeys>,
    endpoints: Arc<Endpoints>,
}

impl PeerHosts {
    pub(super) fn new(
        config: Arc<DaemonConfig>,
        registry: Registry,
        mesh: Arc<Mesh>,
        keys: Arc<TunnelKeys>,
        endpoints: Arc<Endpoints>,
    ) -> Self {
        Self { config, registry, mesh, keys, endpoints }
    }

    /// The other hosts.
    pub fn all(&self) -> Result<Peers, HostError> {
        Ok(Peers { key: None, hosts: self.registry.peers(&self.config.host)? })
    }

    /// Adds another host, or changes its address or its key: `key`, or the one that is derived from its public keys.
    pub fn set(&self, record: HostRecord, key: Option<TunnelKey>) -> Result<HostRecord, HostError> {
        let (name, address) = (record.name.clone(), record.address);
        let own = self.config.io.underlay.ok_or(HostError::NoUnderlay)?;
        if name == self.config.host {
            return Err(HostError::OwnHost(name));
        }
        if address.is_ipv4() != own.is_ipv4() {
            return Err(HostError::Family { address, own });
        }
        let shared = self.keys.find(&record, key.as_ref())?;
        let before = self.registry.hosts()?.into_iter().find(|host| host.name == name).map(|host| host.address);
        // Before the host: a router that dies in between leaves a key without a host, never a host with another key.
        let kept = key.map(|key| self.keys.keep(&record.name, Some(key))).transpose()?;
        let revision = self.registry.set_host(&record).inspect_err(|_| {
            if let Some(Err(error)) = kept.map(|previous| self.keys.keep(&record.name, previous)) {
                tracing::error!(%error, host = %record.name, "cannot forget a refused key");
            }
        })?;
        if let Some(before) = before.filter(|before| *before != address) {
            self.keys.stop_using(before);
        }
        self.keys.use_key(address, shared.as_ref());
        self.mesh.wait_for(revision);
        tracing::info!(host = %record.name, %address, "peer added");
        Ok(record)
    }

    /// Removes another host with its endpoints; returns what it was.
    pub fn remove(&self, name: &Name) -> Result<Peer, HostError> {
        self.refuse_own(name)?;
        let removed = self.registry.remove_host(name)?;
        self.keys.stop_using(removed.address);
        // One that cannot be taken out of the file goes when the next router starts.
        self.keys.keep(name, None)?;
        tracing::info!(host = %name, "peer removed");
        Ok(removed)
    }

    /// Adds an endpoint of another host.
    pub fn add_endpoint(&self, host: &Name, endpoint: PeerEndpoint) -> Result<PeerEndpoint, HostError> {
        self.refuse_own(host)?;
        // An endpoint here whose owner has just ended may still have the address.
        self.endpoints.forget_dead()?;
        let added = self.registry.add_peer_endpoint(host, endpoint)?;
        self.mesh.wait_for(added.revision);
        let (endpoint, vni) = (added.endpoint, Some(added.network.vni));
        Ok(PeerEndpoint {
            network: endpoint.network,
            vni,
            link: endpoint.pool.map(|pool| pool.link),
            addresses: endpoint.addresses,
        })
    }

    /// Removes the endpoint of another host that has `address`.
    pub fn remove_endpoint(&self, host: &Name, network: &Name, address: IpAddr) -> Result<PeerEndpoint, HostError> {
        self.refuse_own(host)?;
        Ok(self.registry.remove_peer_endpoint(host, network, address)?)
    }

    /// Adds all of `peers`, as they are now: a dead router's records of the same hosts are replaced. This host may be among
    /// them: then only the numbers of its networks are taken.
    pub(super) fn add_all(&self, peers: &Peers) -> Result<(), HostError> {
        for peer in &peers.hosts {
            let is_own = peer.name == self.config.host;
            if !is_own {
                match self.registry.remove_host(&peer.name) {
                    Err(RegistryError::NoSuchHost(_)) => {}
                    removed => drop(removed?),
                }
                self.set(HostRecord::new(peer.name.clone(), peer.address), peer.key.clone())?;
            } else if self.config.io.underlay.is_some_and(|own| own != peer.address) {
                return Err(HostError::OwnAddress { name: peer.name.clone(), address: peer.address });
            }
            for endpoint in &peer.endpoints {
                if is_own {
                    self.registry.peer_network(endpoint)?;
                } else {
                    self.add_endpoint(&peer.name, endpoint.clone())?;
                }
            }
        }
        Ok(())
    }

    fn refuse_own(&self, name: &Name) -> Result<(), HostError> {
        if *name == self.config.host { Err(HostError::OwnHost(name.clone())) } else { Ok(()) }
    }
}
