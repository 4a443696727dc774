//! Event trace of a run: a hash that tells runs apart, and a text for readers.

use crate::chance::mix;
use rdmesh_nic::Time;
use rdmesh_nic::wire::{Header, IpUdp, geneve};
use rdmesh_verbs::Vni;
use std::fmt::Display;

/// The record of a run.
pub struct Trace {
    hash: u64,
    verbose: bool,
}

impl Trace {
    /// An empty record; `verbose` writes everything to the standard output.
    pub fn new(verbose: bool) -> Self {
        Self { hash: 0, verbose }
    }

    /// A number for everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Records numbers that describe an event, and prints it in words if verbose.
    pub fn note<T: Display>(&mut self, now: Time, numbers: [u64; 3], words: impl FnOnce() -> T) {
        self.hash = numbers.into_iter().fold(mix(self.hash, now.0), mix);
        if self.verbose {
            println!("{:>12.3} µs  {}", now.0 as f64 / 1000.0, words());
        }
    }
}

/// A number for bytes.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        hash = (hash ^ u64::from_le_bytes(chunk.try_into().expect("eight bytes"))).wrapping_mul(0x9fb2_1c65_1e98_df25);
        hash ^= hash >> 32;
    }
    chunks.remainder().iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x9fb2_1c65_1e98_df25))
}

/// A RoCEv2 packet taken apart: its network where it came through the tunnel, its addresses, its header, its payload's length.
pub fn dissect(bytes: &[u8], tunnel: bool) -> Option<(Option<Vni>, Option<IpUdp>, Header, usize)> {
    if !tunnel {
        let (header, payload) = Header::decode(bytes).ok()?;
        return Some((None, None, header, payload.len()));
    }
    let (vni, inner) = geneve::decode(bytes).ok()?;
    let (ip, udp) = IpUdp::decode(inner).ok()?;
    let (header, payload) = Header::decode(udp).ok()?;
    Some((Some(vni), Some(ip), header, payload.len()))
}
