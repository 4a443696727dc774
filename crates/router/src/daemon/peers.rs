//! Operations on the other hosts, their endpoints and attached interfaces.

use super::error::HostError;
use super::host::Host;
use crate::io::Faults;
use rdmesh_fabric::{Host as HostRecord, Name, Network, Peer, PeerEndpoint, Peers, RegistryError, TunnelKey};
use std::net::IpAddr;
use std::sync::PoisonError;

impl Host {
    /// The other hosts.
    pub fn peers(&self) -> Result<Peers, HostError> {
        Ok(Peers { key: None, hosts: self.registry.peers(&self.config.host)? })
    }

    /// Adds another host, or changes its address or its key.
    pub fn set_peer(&self, name: Name, address: IpAddr, key: Option<TunnelKey>) -> Result<HostRecord, HostError> {
        let own = self.config.io.underlay.ok_or(HostError::NoUnderlay)?;
        if name == self.config.host {
            return Err(HostError::OwnHost(name));
        }
        if address.is_ipv4() != own.is_ipv4() {
            return Err(HostError::Family { address, own });
        }
        let shared = self.key_for(&name, address, key.as_ref())?;
        let before = self.registry.hosts()?.into_iter().find(|host| host.name == name).map(|host| host.address);
        let record = HostRecord { name, address };
        // Before the host: a router that dies in between leaves a key without a host, never a host with another key.
        let kept = key.map(|key| self.keep_key(&record.name, Some(key))).transpose()?;
        let revision = self.registry.set_host(&record).inspect_err(|_| {
            if let Some(Err(error)) = kept.map(|previous| self.keep_key(&record.name, previous)) {
                tracing::error!(%error, host = %record.name, "a key that was refused is still noted");
            }
        })?;
        if let Some(before) = before.filter(|before| *before != address) {
            self.workers.remove_tunnel_key(before);
        }
        shared.iter().for_each(|key| self.workers.set_tunnel_key(address, key));
        self.mesh.wait_for(revision);
        tracing::info!(host = %record.name, %address, "peer added");
        Ok(record)
    }

    /// Removes another host with its endpoints; returns what it was.
    pub fn remove_peer(&self, name: &Name) -> Result<Peer, HostError> {
        self.refuse_own(name)?;
        let removed = self.registry.remove_host(name)?;
        self.workers.remove_tunnel_key(removed.address);
        // One that cannot be taken out of the file goes when the next router starts.
        self.keep_key(name, None)?;
        tracing::info!(host = %name, "peer removed");
        Ok(removed)
    }

    /// Adds an endpoint of another host.
    pub fn add_peer_endpoint(&self, host: &Name, endpoint: PeerEndpoint) -> Result<PeerEndpoint, HostError> {
        self.refuse_own(host)?;
        // An endpoint here whose owner has just ended may still have the address.
        self.forget_dead()?;
        let added = self.registry.add_peer_endpoint(host, endpoint)?;
        self.mesh.wait_for(added.revision);
        let (endpoint, vni) = (added.endpoint, Some(added.network.vni));
        Ok(PeerEndpoint { network: endpoint.network, vni, addresses: endpoint.addresses })
    }

    /// Removes the endpoint of another host that has `address`.
    pub fn remove_peer_endpoint(
        &self,
        host: &Name,
        network: &Name,
        address: IpAddr,
    ) -> Result<PeerEndpoint, HostError> {
        self.refuse_own(host)?;
        Ok(self.registry.remove_peer_endpoint(host, network, address)?)
    }

    /// Adds all of `peers`, as they are now: a dead router's records of the same hosts are replaced. This host may be among
    /// them: then only the numbers of its networks are taken.
    pub(super) fn add_peers(&self, peers: &Peers) -> Result<(), HostError> {
        for peer in &peers.hosts {
            let is_own = peer.name == self.config.host;
            if !is_own {
                match self.registry.remove_host(&peer.name) {
                    Err(RegistryError::NoSuchHost(_)) => {}
                    removed => drop(removed?),
                }
                self.set_peer(peer.name.clone(), peer.address, peer.key.clone())?;
            } else if self.config.io.underlay.is_some_and(|own| own != peer.address) {
                return Err(HostError::OwnAddress { name: peer.name.clone(), address: peer.address });
            }
            for endpoint in &peer.endpoints {
                if is_own {
                    self.registry.peer_network(endpoint)?;
                } else {
                    self.add_peer_endpoint(&peer.name, endpoint.clone())?;
                }
            }
        }
        Ok(())
    }

    /// The interfaces of this host that are part of `network`.
    pub fn interfaces(&self, network: &Name) -> Result<Vec<String>, HostError> {
        Ok(self.overlay.as_ref().map_or(Ok(Vec::new()), |overlay| overlay.attached(network))?)
    }

    /// Makes an interface of this host a part of `network`; returns all that are.
    pub fn attach_interface(&self, network: &Name, vni: Option<u32>, name: &str) -> Result<Vec<String>, HostError> {
        let overlay = self.overlay.as_ref().ok_or(HostError::NoNamespaces)?;
        let network: Network = self.registry.network(network, vni, &[])?;
        overlay.attach(&network, name)?;
        tracing::info!(network = %network.name, interface = name, "interface attached");
        self.interfaces(&network.name)
    }

    /// Gives an interface of `network` back to this host; returns those that stay.
    pub fn detach_interface(&self, network: &Name, name: &str) -> Result<Vec<String>, HostError> {
        let overlay = self.overlay.as_ref().ok_or(HostError::NoNamespaces)?;
        overlay.detach(network, name)?;
        tracing::info!(%network, interface = name, "interface detached");
        self.interfaces(network)
    }

    /// The injected faults.
    pub fn faults(&self) -> Option<Faults> {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the injected faults.
    pub fn set_faults(&self, faults: Option<Faults>) {
        let mut known = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        self.workers.set_faults(faults);
        *known = faults;
        match faults {
            Some(faults) => tracing::warn!(%faults, "faults are made on purpose"),
            None => tracing::info!("no faults are made on purpose"),
        }
    }

    fn refuse_own(&self, name: &Name) -> Result<(), HostError> {
        if *name == self.config.host { Err(HostError::OwnHost(name.clone())) } else { Ok(()) }
    }
}
