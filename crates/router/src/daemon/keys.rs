//! Keys of the tunnel to other hosts, and its state.

use super::config::DaemonConfig;
use super::error::HostError;
use super::keyring::Keyring;
use crate::worker::Workers;
use rdmesh_fabric::api::{Tunnel, TunnelHost};
use rdmesh_fabric::{Host as HostRecord, Name, PublicKey, Registry, Rotated, TunnelKey};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The keys by which this host and others authenticate each other, and the tunnel that has them.
pub struct TunnelKeys {
    config: Arc<DaemonConfig>,
    registry: Registry,
    workers: Arc<Workers>,
    keyring: Mutex<Keyring>,
}

impl TunnelKeys {
    pub(super) fn new(config: Arc<DaemonConfig>, registry: Registry, workers: Arc<Workers>, keyring: Keyring) -> Self {
        Self { config, registry, workers, keyring: Mutex::new(keyring) }
    }

    /// The key of `host`: `given`, or the known one; none where nothing is authenticated.
    pub(super) fn find(
        &self,
        host: &HostRecord,
        given: Option<&TunnelKey>,
    ) -> Result<Option<Rotated<TunnelKey>>, HostError> {
        let here = self.config.io.underlay.ok_or(HostError::NoUnderlay)?;
        if self.config.io.is_insecure {
            return if given.is_some() { Err(HostError::Insecure) } else { Ok(None) };
        }
        let key = given.cloned().map(Rotated::from).or_else(|| self.keyring().find(host, here));
        key.map(Some).ok_or_else(|| HostError::NoKey(host.name.clone()))
    }

    /// Keeps a host's own key, also for the next router, or forgets it; returns the one before.
    pub(super) fn keep(&self, name: &Name, key: Option<TunnelKey>) -> Result<Option<TunnelKey>, HostError> {
        self.keyring().replace(name, key)
    }

    /// Changes the secret of the mesh, and with it the keys of all hosts that have none of their own.
    pub fn set_mesh(&self, key: TunnelKey) -> Result<Tunnel, HostError> {
        if self.config.io.is_insecure {
            return Err(HostError::Insecure);
        }
        self.keyring().set_mesh(key)?;
        self.use_all()?;
        tracing::info!("secret of the mesh changed");
        self.tunnel()
    }

    /// Replaces this host's key pair.
    pub(super) fn renew_identity(&self) -> Result<(), HostError> {
        self.keyring().renew_identity()?;
        self.use_all()?;
        tracing::info!("this host has a new key pair");
        Ok(())
    }

    /// The public keys by which others can tell this host, where it has a key pair.
    pub(super) fn public_keys(&self) -> Option<Rotated<PublicKey>> {
        self.keyring().public_keys()
    }

    fn use_all(&self) -> Result<(), HostError> {
        let here = self.config.io.underlay.ok_or(HostError::NoUnderlay)?;
        for host in self.other_hosts()? {
            let key = self.keyring().find(&host, here);
            self.use_key(host.address, key.as_ref());
        }
        Ok(())
    }

    /// Endpoints of this host that reach each other through the tunnel need a key as well.
    pub(super) fn set_own(&self) -> Result<(), HostError> {
        if let Some(own) = self.config.io.underlay {
            self.workers.set_tunnel_key(own, &TunnelKey::generate().map_err(HostError::Random)?.into());
        }
        Ok(())
    }

    /// Restores the keys of hosts that a dead router knew.
    pub(super) fn restore(&self) -> Result<(), HostError> {
        let hosts = self.other_hosts()?;
        self.keyring().retain(&hosts)?;
        for host in hosts {
            match self.find(&host, None) {
                Ok(key) => self.use_key(host.address, key.as_ref()),
                Err(error) => tracing::warn!(%error, "cannot reach a host that the last router knew"),
            }
        }
        Ok(())
    }

    /// State of the tunnel to other hosts, and senders that were refused.
    pub fn tunnel(&self) -> Result<Tunnel, HostError> {
        let Some(states) = self.workers.tunnel_states() else { return Ok(Tunnel::default()) };
        let of_host = |HostRecord { name, address, .. }| {
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

    /// Packets of the host at `address` have `key` from now on; none where nothing is authenticated.
    pub(super) fn use_key(&self, address: IpAddr, key: Option<&Rotated<TunnelKey>>) {
        key.into_iter().for_each(|key| self.workers.set_tunnel_key(address, key));
    }

    /// No packets of the host at `address` are accepted any more.
    pub(super) fn stop_using(&self, address: IpAddr) {
        self.workers.remove_tunnel_key(address);
    }

    fn other_hosts(&self) -> Result<Vec<HostRecord>, HostError> {
        Ok(self.registry.hosts()?.into_iter().filter(|host| host.name != self.config.host).collect())
    }

    fn keyring(&self) -> MutexGuard<'_, Keyring> {
        self.keyring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
