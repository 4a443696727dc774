//! Keys of the tunnel to other hosts, its state, and the firewall before it.

use super::error::HostError;
use super::host::Host;
use super::keyring::Keyring;
use rdmesh_fabric::api::{Tunnel, TunnelHost};
use rdmesh_fabric::{Host as HostRecord, Name, TunnelKey};
use rdmesh_overlay::Firewall;
use std::net::IpAddr;
use std::sync::{MutexGuard, PoisonError};

impl Host {
    /// The key of the host `name` at `address`: `given`, or the known one; none where nothing is authenticated.
    pub(super) fn key_for(
        &self,
        name: &Name,
        address: IpAddr,
        given: Option<&TunnelKey>,
    ) -> Result<Option<TunnelKey>, HostError> {
        let here = self.config.io.underlay.ok_or(HostError::NoUnderlay)?;
        if self.config.io.is_insecure {
            return if given.is_some() { Err(HostError::Insecure) } else { Ok(None) };
        }
        let key = given.cloned().or_else(|| self.keyring().find(name, address, here));
        key.map(Some).ok_or_else(|| HostError::NoKey(name.clone()))
    }

    /// Keeps a host's own key, also for the next router, or forgets it; returns the one before.
    pub(super) fn keep_key(&self, name: &Name, key: Option<TunnelKey>) -> Result<Option<TunnelKey>, HostError> {
        self.keyring().replace(name, key)
    }

    /// Changes the secret of the mesh, and with it the keys of all hosts that have none of their own.
    pub fn set_mesh_key(&self, key: TunnelKey) -> Result<Tunnel, HostError> {
        if self.config.io.is_insecure {
            return Err(HostError::Insecure);
        }
        let here = self.config.io.underlay.ok_or(HostError::NoUnderlay)?;
        self.keyring().mesh = Some(key);
        for host in self.other_hosts()? {
            let key = self.keyring().find(&host.name, host.address, here);
            key.iter().for_each(|key| self.workers.set_tunnel_key(host.address, key));
        }
        tracing::info!("the secret of the mesh has changed");
        self.tunnel()
    }

    /// Endpoints of this host that reach each other through the tunnel need a key as well.
    pub(super) fn set_key_of_own(&self) -> Result<(), HostError> {
        if let Some(own) = self.config.io.underlay {
            self.workers.set_tunnel_key(own, &TunnelKey::generate().map_err(HostError::Random)?);
        }
        Ok(())
    }

    /// Restores the keys of hosts that a dead router knew.
    pub(super) fn restore_keys(&self) -> Result<(), HostError> {
        let hosts = self.other_hosts()?;
        self.keyring().retain(&hosts)?;
        for host in hosts {
            match self.key_for(&host.name, host.address, None) {
                Ok(key) => key.iter().for_each(|key| self.workers.set_tunnel_key(host.address, key)),
                Err(error) => tracing::warn!(%error, "a host of the router that has died is not reached"),
            }
        }
        Ok(())
    }

    /// Installs the configured firewall rules, or removes those of a router that has died.
    pub(super) fn set_firewall(&self) -> Result<(), HostError> {
        let firewall = Firewall::new(self.config.state.path());
        match (self.config.firewall, self.config.rootless) {
            (true, _) => Ok(firewall.install()?),
            (false, false) => Ok(firewall.remove()?),
            (false, true) => Ok(()),
        }
    }

    /// State of the tunnel to other hosts, and senders that were refused.
    pub fn tunnel(&self) -> Result<Tunnel, HostError> {
        let Some(states) = self.workers.tunnel_states() else { return Ok(Tunnel::default()) };
        let of_host = |HostRecord { name, address }| {
            // A host without a key has no state.
            let state = states.get(&address).copied().unwrap_or_default();
            TunnelHost { name, address, state }
        };
        let strangers = self.workers.strangers();
        Ok(Tunnel {
            is_authenticated: true,
            hosts: self.other_hosts()?.into_iter().map(of_host).collect(),
            stranger_packets: strangers.packets,
            last_stranger: strangers.last,
            unread_messages: strangers.unread,
        })
    }

    fn other_hosts(&self) -> Result<Vec<HostRecord>, HostError> {
        Ok(self.registry.hosts()?.into_iter().filter(|host| host.name != self.config.host).collect())
    }

    fn keyring(&self) -> MutexGuard<'_, Keyring> {
        self.keyring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
