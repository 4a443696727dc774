//! Tunnel keys of the other hosts, and the state of the tunnel to each.

use super::error::HostError;
use super::host::Host;
use crate::io::pair_key;
use rdmesh_fabric::api::{Tunnel, TunnelHost};
use rdmesh_fabric::{Host as Place, KEYS, Name, StateDir, TunnelKey};
use rdmesh_overlay::Firewall;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{MutexGuard, PoisonError};

/// Keys by which hosts authenticate each other. They are never shown.
pub(super) struct Keyring {
    /// State directory, which keeps the keys of single hosts for the next router, in a file of their own.
    state: StateDir,
    /// The key of all hosts. It is kept only where the operator has it.
    mesh: Option<TunnelKey>,
    /// Keys of single hosts.
    own: BTreeMap<Name, TunnelKey>,
}

impl Keyring {
    /// The secret `mesh`, and the keys that a router which has died had for single hosts.
    pub(super) fn open(state: StateDir, mesh: Option<TunnelKey>) -> Result<Self, HostError> {
        // The parser's error is not reported: it would show the text.
        let parse = |text: String| serde_json::from_str(&text).map_err(|_| HostError::Keys(state.keys()));
        let own = state.read_private(KEYS)?.map(parse).transpose()?.unwrap_or_default();
        Ok(Self { state, mesh, own })
    }

    /// Gives the host `name` a key of its own, or none; returns what it had. Where that cannot be recorded nothing changes.
    fn replace(&mut self, name: &Name, key: Option<TunnelKey>) -> Result<Option<TunnelKey>, HostError> {
        let mut own = self.own.clone();
        let before = match key.clone() {
            Some(key) => own.insert(name.clone(), key),
            None => own.remove(name),
        };
        if before != key {
            self.note(own)?;
        }
        Ok(before)
    }

    /// Removes the keys of unknown hosts.
    fn retain(&mut self, hosts: &[Place]) -> Result<(), HostError> {
        let is_known = |name: &Name| hosts.iter().any(|host| host.name == *name);
        let (kept, lost): (BTreeMap<_, _>, BTreeMap<_, _>) =
            self.own.clone().into_iter().partition(|(name, _)| is_known(name));
        if lost.is_empty() { Ok(()) } else { self.note(kept) }
    }

    fn note(&mut self, own: BTreeMap<Name, TunnelKey>) -> Result<(), HostError> {
        let text = serde_json::to_string(&own).expect("names and texts are JSON");
        self.state.write_private(KEYS, &text)?;
        self.own = own;
        Ok(())
    }

    /// The key of the host `name` at `address`.
    fn find(&self, name: &Name, address: IpAddr, here: IpAddr) -> Option<TunnelKey> {
        let made = || self.mesh.as_ref().map(|mesh| pair_key(mesh, here, address));
        self.own.get(name).cloned().or_else(made)
    }
}

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
        let of_host = |Place { name, address }| {
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

    fn other_hosts(&self) -> Result<Vec<Place>, HostError> {
        Ok(self.registry.hosts()?.into_iter().filter(|host| host.name != self.config.host).collect())
    }

    fn keyring(&self) -> MutexGuard<'_, Keyring> {
        self.keyring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
