//! Tunnel keys of the other hosts, as they are kept.

use super::error::HostError;
use crate::io::pair_key;
use rdmesh_fabric::{Host as HostRecord, KEYS, Name, RotatedKey, SECRET, StateDir, TunnelKey};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Origin of the secret of all hosts.
pub(super) enum SecretSource {
    /// A file that the operator gives to all hosts; none where each two hosts have a key of their own.
    Operator(Option<TunnelKey>),
    /// The cluster's store.
    Store,
}

/// Keys by which hosts authenticate each other. They are never shown.
pub(super) struct Keyring {
    /// State directory, which keeps the keys of single hosts for the next router, in a file of their own.
    state: StateDir,
    /// The key of all hosts. One from a file is kept only there.
    mesh: Option<RotatedKey>,
    /// Keys of single hosts.
    own: BTreeMap<Name, TunnelKey>,
}

impl Keyring {
    /// The secret of all hosts, and the keys that a router which has died had for single hosts.
    pub(super) fn open(state: StateDir, source: SecretSource) -> Result<Self, HostError> {
        // The parser's error is not reported: it would show the text.
        let unreadable = |name: &str| HostError::Keys(state.path().join(name));
        let parse = |text: String| serde_json::from_str(&text).map_err(|_| unreadable(KEYS));
        let own = state.read_private(KEYS)?.map(parse).transpose()?.unwrap_or_default();
        let parse = |text: String| serde_json::from_str(&text).map_err(|_| unreadable(SECRET));
        let mesh = match source {
            SecretSource::Operator(key) => key.map(RotatedKey::from),
            SecretSource::Store => state.read_private(SECRET)?.map(parse).transpose()?,
        };
        Ok(Self { state, mesh, own })
    }

    /// Changes the key of all hosts.
    pub(super) fn set_mesh(&mut self, key: TunnelKey) {
        self.mesh = Some(match self.mesh.take() {
            Some(mesh) if mesh.newest != key => mesh.followed_by(key),
            _ => key.into(),
        });
    }

    /// Takes the key of all hosts from the store, and keeps it for a router that starts while the store is away.
    pub(super) fn adopt(&mut self, secret: RotatedKey) -> Result<(), HostError> {
        let text = serde_json::to_string(&secret).expect("texts are JSON");
        self.mesh = Some(secret);
        Ok(self.state.write_private(SECRET, &text)?)
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
    pub(super) fn find(&self, name: &Name, address: IpAddr, here: IpAddr) -> Option<RotatedKey> {
        let made = || self.mesh.as_ref().map(|mesh| mesh.map(|key| pair_key(key, here, address)));
        self.own.get(name).cloned().map(RotatedKey::from).or_else(made)
    }
}
