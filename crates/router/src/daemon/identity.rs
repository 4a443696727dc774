//! The key pair by which this host proves to others of its cluster who it is, and the keys that it shares with each of them
//! (Diffie–Hellman over Curve25519, RFC 7748).

use crate::io::pair_key;
use rdmesh_fabric::{PublicKey, Rotated, TunnelKey};
use std::io;
use std::net::IpAddr;
use x25519_dalek::{PublicKey as Point, StaticSecret};

/// Private keys of this host. They never leave it.
pub(super) struct Identity(Rotated<TunnelKey>);

impl Identity {
    /// The pair that was kept as `private_keys`.
    pub(super) fn restored(private_keys: Rotated<TunnelKey>) -> Self {
        Self(private_keys)
    }

    /// The private keys, to be kept for the next router.
    pub(super) fn private_keys(&self) -> &Rotated<TunnelKey> {
        &self.0
    }

    pub(super) fn generate() -> io::Result<Self> {
        Ok(Self(TunnelKey::generate()?.into()))
    }

    /// The same with a newer pair.
    pub(super) fn renewed(&self) -> io::Result<Self> {
        Ok(Self(self.0.clone().followed_by(TunnelKey::generate()?)))
    }

    /// The public keys, for the others.
    pub(super) fn public_keys(&self) -> Rotated<PublicKey> {
        self.0.map(|key| PublicKey::from_bytes(Point::from(&private(key)).to_bytes()))
    }

    /// The key that this host, at `here`, shares with the one at `there`, which has published `theirs`; none where these are no
    /// keys. Where one of the two has a new pair that the other does not know yet, the older key is what they share.
    pub(super) fn shared_key(
        &self,
        theirs: &Rotated<PublicKey>,
        here: IpAddr,
        there: IpAddr,
    ) -> Option<Rotated<TunnelKey>> {
        let agree = |own: &TunnelKey, theirs: &PublicKey| {
            let agreed = private(own).diffie_hellman(&Point::from(*theirs.bytes()));
            // Else everybody knows the result, whatever the private key is.
            agreed.was_contributory().then(|| pair_key(&TunnelKey::from_bytes(agreed.to_bytes()), here, there))
        };
        let newest = agree(&self.0.newest, &theirs.newest)?;
        let is_rotated = self.0.older.is_some() || theirs.older.is_some();
        let older = is_rotated.then(|| agree(self.0.oldest(), theirs.oldest())).flatten();
        Some(Rotated { newest, older })
    }
}

fn private(key: &TunnelKey) -> StaticSecret {
    StaticSecret::from(*key.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn two_hosts_share_a_key_that_no_third_can_derive() {
        let [a, b, c] = [(); 3].map(|()| Identity::generate().unwrap());
        let at_a = a.shared_key(&b.public_keys(), A, B).unwrap();
        assert_eq!(at_a, b.shared_key(&a.public_keys(), B, A).unwrap());
        assert_eq!(at_a.older, None);
        // Another host of the cluster, which has read all public keys.
        for theirs in [a.public_keys(), b.public_keys()] {
            assert_ne!(at_a, c.shared_key(&theirs, A, B).unwrap());
        }
    }

    #[test]
    fn hosts_that_have_not_heard_of_new_pairs_share_the_older_key() {
        let [a, b] = [(); 2].map(|()| Identity::generate().unwrap());
        let before = a.shared_key(&b.public_keys(), A, B).unwrap().newest;
        let [new_a, new_b] = [&a, &b].map(|identity| identity.renewed().unwrap());
        let at_a = new_a.shared_key(&b.public_keys(), A, B).unwrap();
        let at_b = new_b.shared_key(&a.public_keys(), B, A).unwrap();
        assert_eq!((at_a.older.as_ref(), at_b.older.as_ref()), (Some(&before), Some(&before)), "both at once");
        assert_eq!(b.shared_key(&new_a.public_keys(), B, A).unwrap(), at_a, "one has heard of it");
        let agreed = new_a.shared_key(&new_b.public_keys(), A, B).unwrap();
        assert_eq!(agreed, new_b.shared_key(&new_a.public_keys(), B, A).unwrap());
        assert_eq!(agreed.older, Some(before));
    }

    #[test]
    fn public_keys_that_give_everybody_the_same_secret_are_refused() {
        let own = Identity::generate().unwrap();
        // Points of small order (RFC 7748, section 6.1).
        for first in [0, 1] {
            let mut point = [0; PublicKey::LEN];
            point[0] = first;
            assert_eq!(own.shared_key(&PublicKey::from_bytes(point).into(), A, B), None);
        }
    }
}
