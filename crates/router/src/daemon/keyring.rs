//! Tunnel keys of the other hosts, as they are kept.

use super::error::HostError;
use crate::io::pair_key;
use rdmesh_fabric::{Host as HostRecord, KEYS, Name, StateDir, TunnelKey};
use std::collections::BTreeMap;
use std::net::IpAddr;

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

    /// Changes the key of all hosts.
    pub(super) fn set_mesh(&mut self, key: TunnelKey) {
        self.mesh = Some(key);
    }

    /// Gives the host `name` a key of its own, or none; returns what it had. Where that cannot be recorded nothing changes.
    pub(super) fn replace(&mut self, name: &Name, key: Option<TunnelKey>) -> Result<Option<TunnelKey>, HostError> {
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
    pub(super) fn retain(&mut self, hosts: &[HostRecord]) -> Result<(), HostError> {
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
    pub(super) fn find(&self, name: &Name, address: IpAddr, here: IpAddr) -> Option<TunnelKey> {
        let made = || self.mesh.as_ref().map(|mesh| pair_key(mesh, here, address));
        self.own.get(name).cloned().or_else(made)
    }
}
