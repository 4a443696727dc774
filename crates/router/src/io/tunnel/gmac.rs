//! The tag of a sealed packet: AES-256-GMAC (NIST SP 800-38D), which is GCM without anything encrypted.
//!
//! The message is the whole datagram with zeros where the tag is, the nonce is the packet's number. A forged tag of 128 bits
//! is right with a probability of at most 2^-119 for each try (n blocks: n/2^128). Nonces never repeat: a session's key is
//! made anew whenever a router starts, and within it each worker has numbers of its own.

use super::ghash::{BLOCK, Ghash, Message};
use aes::Aes256;
use aes::cipher::{BlockEncrypt, KeyInit};
use rdmesh_nic::wire::geneve::TAG;

/// Bytes of a tag.
pub(super) const TAG_LEN: usize = TAG.end - TAG.start;

/// A session's key.
pub(super) struct Gmac {
    cipher: Aes256,
    hash: Ghash,
}

impl Gmac {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        let cipher = Aes256::new(key.into());
        let mut subkey = [0; BLOCK].into();
        cipher.encrypt_block(&mut subkey);
        Self { cipher, hash: Ghash::new(subkey.into()) }
    }

    /// The tag of the datagram as number `sequence`, with the tag's own bytes counted as zero; none for one that is too short.
    pub(super) fn tag(&self, sequence: u64, datagram: &[u8]) -> Option<[u8; TAG_LEN]> {
        let message = Message::new(datagram, TAG)?;
        // First: the processor hashes meanwhile.
        let mut mask = [0; BLOCK];
        mask[4..12].copy_from_slice(&sequence.to_be_bytes());
        mask[15] = 1;
        let mut mask = mask.into();
        self.cipher.encrypt_block(&mut mask);
        let hash = u128::from_ne_bytes(self.hash.hash(message));
        Some((hash ^ u128::from_ne_bytes(mask.into())).to_ne_bytes())
    }

    /// Whether the datagram has the right tag. The comparison takes constant time.
    pub(super) fn is_right(&self, sequence: u64, datagram: &[u8]) -> bool {
        let found = datagram.get(TAG).and_then(|tag| tag.try_into().ok()).map(u128::from_ne_bytes);
        let expected = self.tag(sequence, datagram).map(u128::from_ne_bytes);
        found.zip(expected).is_some_and(|(found, expected)| std::hint::black_box(found ^ expected) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn tags_are_those_of_any_gcm() {
        // AESGCM(bytes(range(32))).encrypt(bytes(4) + sequence.to_bytes(8), b"", datagram with zeros for its tag), by Python's
        // `cryptography`.
        let mac = Gmac::new(&std::array::from_fn(|i| i as u8));
        for (len, sequence, expected) in VECTORS {
            let datagram: Vec<u8> = (0..len).map(|i| (i * 7 + 3) as u8).collect();
            let tag = mac.tag(sequence, &datagram).unwrap();
            assert_eq!(hex(&tag), expected, "{len} bytes");
            let mut sealed = datagram.clone();
            sealed[TAG].copy_from_slice(&tag);
            assert!(mac.is_right(sequence, &sealed));
            assert!(!mac.is_right(sequence ^ 1, &sealed));
        }
        assert_eq!(mac.tag(1, &[0; 63]), None);
        assert!(!mac.is_right(1, &[0; 63]));
    }

    const VECTORS: [(usize, u64, &str); 4] = [
        (64, 1, "2d7ae4cb4977c5950e6462746b41d0af"),
        (100, 2, "fa74f9bb1b35c66d21b25626d9c655d0"),
        (1156, 844_424_930_131_973, "dbb021cd11e517f23dfea93a9e39d00f"),
        (4229, u64::MAX, "2e5ef92f277fed6d3b328eda7852a95d"),
    ];
}
