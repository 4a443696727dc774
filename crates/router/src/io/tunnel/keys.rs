//! Keys of a pair of hosts, and all that is derived from them (HKDF-SHA256, RFC 5869).
//!
//! Both hosts have the same secret of 32 bytes: one of their own, or one made of their addresses and a secret that all hosts
//! of a mesh have. Each direction has keys of its own, so that a packet that is reflected to its sender is refused.

use super::session::SessionSecret;
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use rdmesh_fabric::TunnelKey;
use sha2::Sha256;
use std::net::IpAddr;

/// Tells keys apart; not secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeyId(pub(super) [u8; 4]);

/// Keys that this host shares with another.
pub(super) struct PairKeys {
    id: KeyId,
    kdf: Hkdf<Sha256>,
    own: IpAddr,
    peer: IpAddr,
    control_send: Hmac<Sha256>,
    control_receive: Hmac<Sha256>,
}

/// The key of the hosts at `a` and `b`, in either order, in a mesh with the secret `mesh`.
pub(crate) fn pair_key(mesh: &TunnelKey, a: IpAddr, b: IpAddr) -> TunnelKey {
    let kdf = Hkdf::<Sha256>::new(Some(b"rdmesh mesh 1"), mesh.bytes());
    TunnelKey::from_bytes(expand(&kdf, &[b"pair", &octets(a.min(b)), &octets(a.max(b))]))
}

impl PairKeys {
    pub(super) fn new(key: &TunnelKey, own: IpAddr, peer: IpAddr) -> Self {
        let kdf = Hkdf::<Sha256>::new(Some(b"rdmesh tunnel 1"), key.bytes());
        let control = |from, to| {
            let key: [u8; 32] = expand(&kdf, &[b"control", &octets(from), &octets(to)]);
            Hmac::new_from_slice(&key).expect("HMAC takes keys of any length")
        };
        let id = KeyId(expand(&kdf, &[b"id"]));
        let (control_send, control_receive) = (control(own, peer), control(peer, own));
        Self { id, kdf, own, peer, control_send, control_receive }
    }

    pub(super) fn id(&self) -> KeyId {
        self.id
    }

    /// The tag of a control message from this host.
    pub(super) fn sign(&self, message: &[u8]) -> [u8; 16] {
        let tag = self.control_send.clone().chain_update(message).finalize().into_bytes();
        std::array::from_fn(|i| tag[i])
    }

    /// Whether a control message is the other host's.
    pub(super) fn is_signed(&self, message: &[u8], tag: &[u8; 16]) -> bool {
        self.control_receive.clone().chain_update(message).verify_truncated_left(tag).is_ok()
    }

    /// The session from this host that `nonce` asked for and `cookie` granted.
    pub(super) fn send_session(&self, nonce: &[u8; 16], cookie: &[u8; 16]) -> SessionSecret {
        self.session(self.own, self.peer, nonce, cookie)
    }

    /// The same from the other host.
    pub(super) fn receive_session(&self, nonce: &[u8; 16], cookie: &[u8; 16]) -> SessionSecret {
        self.session(self.peer, self.own, nonce, cookie)
    }

    fn session(&self, from: IpAddr, to: IpAddr, nonce: &[u8; 16], cookie: &[u8; 16]) -> SessionSecret {
        let info = |what: &'static [u8]| [what.to_vec(), octets(from).into(), octets(to).into()].concat();
        let reference = expand(&self.kdf, &[&info(b"reference"), nonce, cookie]);
        let key = expand(&self.kdf, &[&info(b"session"), nonce, cookie]);
        SessionSecret { reference: u64::from_be_bytes(reference), key }
    }
}

fn expand<const N: usize>(kdf: &Hkdf<Sha256>, info: &[&[u8]]) -> [u8; N] {
    let mut bytes = [0; N];
    kdf.expand_multi_info(info, &mut bytes).expect("HKDF gives up to 8160 bytes");
    bytes
}

/// An address of either family in 16 bytes.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_hosts_derive_the_same_and_other_pairs_do_not() {
        let [a, b, c]: [IpAddr; 3] = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into(), [192, 0, 2, 3].into()];
        let mesh = TunnelKey::from_bytes([7; 32]);
        let key = pair_key(&mesh, a, b);
        assert_eq!(key, pair_key(&mesh, b, a));
        assert_ne!(key, pair_key(&mesh, a, c));
        let (at_a, at_b) = (PairKeys::new(&key, a, b), PairKeys::new(&key, b, a));
        assert_eq!(at_a.id(), at_b.id());
        assert!(at_b.is_signed(b"x", &at_a.sign(b"x")));
        assert!(!at_a.is_signed(b"x", &at_a.sign(b"x")), "it does not come back as the other's");
        let (sent, received) = (at_a.send_session(&[1; 16], &[2; 16]), at_b.receive_session(&[1; 16], &[2; 16]));
        assert_eq!((sent.reference, sent.key), (received.reference, received.key));
        for other in [at_a.receive_session(&[1; 16], &[2; 16]), at_a.send_session(&[1; 16], &[3; 16])] {
            assert!(other.reference != sent.reference && other.key != sent.key);
        }
    }
}
