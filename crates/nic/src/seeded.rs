//! Hash tables with a seed: who does not know it cannot choose keys that collide.

use core::hash::BuildHasher;
use siphasher::sip::SipHasher13;

/// A hash table whose hashes depend on a seed.
pub(crate) type HashMap<K, V> = hashbrown::HashMap<K, V, Seeded>;

/// SipHash with a seed in the place of randomness.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }
}

/// The `n`th number that follows from a secret: from those that a peer sees it can tell neither the secret nor the others
/// (SipHash).
pub(crate) fn derive(secret: u64, n: u64) -> u64 {
    Seeded::new(secret).hash_one(n)
}

impl BuildHasher for Seeded {
    type Hasher = SipHasher13;

    #[inline]
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, !self.0)
    }
}
