//! Tunnel keys of the other hosts, as they are kept.

use super::error::HostError;
use super::identity::Identity;
use crate::io::pair_key;
use rdmesh_fabric::{Host as HostRecord, IDENTITY, KEYS, Name, PublicKey, Rotated, StateDir, TunnelKey};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Origin of the keys of hosts that the operator has given none of their own.
pub(super) enum KeySource {
    /// A secret in a file that the operator gives to all hosts; none where each two hosts have a key of their own.
    Operator(Option<TunnelKey>),
    /// Key pairs of the hosts, whose public halves are in the cluster's store.
    Identity,
}

/// Keys by which hosts authenticate each other. They are never shown.
pub(super) struct Keyring {
    /// State directory, which keeps the keys of single hosts for the next router, in a file of their own.
    state: StateDir,
    common: Common,
    /// Keys of single hosts.
    own: BTreeMap<Name, TunnelKey>,
}

/// Source of the key of any host that has none of its own.
enum Common {
    /// A key of all hosts. It is kept only in the operator's file.
    Mesh(Option<Rotated<TunnelKey>>),
    Identity(Identity),
}

impl Keyring {
    /// The keys that a router which has died had for single hosts, and what those of the others are derived from.
    pub(super) fn open(state: StateDir, source: KeySource) -> Result<Self, HostError> {
        // The parser's error is not reported: it would show the text.
        let unreadable = |name: &str| HostError::Keys(state.path().join(name));
        let parse = |text: String| serde_json::from_str(&text).map_err(|_| unreadable(KEYS));
        let own = state.read_private(KEYS)?.map(parse).transpose()?.unwrap_or_default();
        let parse = |text: String| serde_json::from_str(&text).map_err(|_| unreadable(IDENTITY));
        let common = match source {
            KeySource::Operator(key) => Common::Mesh(key.map(Rotated::from)),
            KeySource::Identity => Common::Identity(match state.read_private(IDENTITY)? {
                Some(text) => Identity::restored(parse(text)?),
                None => keep(&state, Identity::generate().map_err(HostError::Random)?)?,
            }),
        };
        Ok(Self { state, common, own })
    }

    /// Changes the key of all hosts.
    pub(super) fn set_mesh(&mut self, key: TunnelKey) -> Result<(), HostError> {
        let Common::Mesh(mesh) = &mut self.common else { return Err(HostError::KeysInStore) };
        *mesh = Some(match mesh.take() {
            Some(mesh) if mesh.newest != key => mesh.followed_by(key),
            _ => key.into(),
        });
        Ok(())
    }

    /// Replaces this host's key pair, also for the next router; the one before is accepted beside it.
    pub(super) fn renew_identity(&mut self) -> Result<(), HostError> {
        let Common::Identity(identity) = &mut self.common else { return Err(HostError::NoKeysInStore) };
        *identity = keep(&self.state, identity.renewed().map_err(HostError::Random)?)?;
        Ok(())
    }

    /// The public halves of this host's key pairs, where it has any.
    pub(super) fn public_keys(&self) -> Option<Rotated<PublicKey>> {
        match &self.common {
            Common::Mesh(_) => None,
            Common::Identity(identity) => Some(identity.public_keys()),
        }
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

    /// The key that this host, at `here`, shares with `host`.
    pub(super) fn find(&self, host: &HostRecord, here: IpAddr) -> Option<Rotated<TunnelKey>> {
        let derived = || match &self.common {
            Common::Mesh(mesh) => Some(mesh.as_ref()?.map(|key| pair_key(key, here, host.address))),
            Common::Identity(identity) => identity.shared_key(host.public_keys.as_ref()?, here, host.address),
        };
        self.own.get(&host.name).cloned().map(Rotated::from).or_else(derived)
    }
}

/// Writes `identity` where the next router finds it.
fn keep(state: &StateDir, identity: Identity) -> Result<Identity, HostError> {
    state.write_private(IDENTITY, &serde_json::to_string(identity.private_keys()).expect("texts are JSON"))?;
    Ok(identity)
}
