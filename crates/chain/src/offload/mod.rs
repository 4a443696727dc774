//! Offloads: services that a NIC answers by a chain, each with the server's part and the client's.
//!
//! The server's part builds the chain and says which words the program must store, in which order, so that a chain that reads
//! meanwhile delivers nothing wrong unseen. The client's part encodes requests and judges replies. Neither does any input or
//! output.
//!
//! * [`hash`]: values by key.
//! * [`list`]: values in linked lists.
//! * [`lock`]: locks with owners and leases.
//! * [`counter`]: counters that keep to a bound.
//! * [`memcached`]: values in the memory of an unmodified memcached.

pub mod counter;
pub mod hash;
pub mod list;
pub mod lock;
pub mod memcached;
mod record;

pub use record::{Answer, fingerprint};

/// A store of the server's program, in one aligned word: stores are made one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Store {
    /// The number of the region in [`Chain::regions`](crate::program::Chain::regions).
    pub region: usize,
    /// The first byte.
    pub at: u64,
    /// The word.
    pub word: u64,
}

/// Memory of a client's, registered for the chain to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Buffer {
    /// Its address.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
}

impl Buffer {
    fn encode(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..].copy_from_slice(&self.rkey.to_le_bytes());
        bytes
    }
}

/// Stores of bytes, word by word.
fn stores(region: usize, at: u64, bytes: &[u8]) -> impl Iterator<Item = Store> + '_ {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    (at..).step_by(8).zip(bytes.chunks(8)).map(move |(at, chunk)| Store { region, at, word: word(chunk) })
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
