//! Counts of executed work requests of chains, and their price in steps.

use super::{ChainOp, Class};

/// Counts of executed requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Requests that move data, and NOPs.
    pub copies: u64,
    /// Atomic operations.
    pub atomics: u64,
    /// WAITs and ENABLEs.
    pub orders: u64,
    /// Charged steps, see [`steps`].
    pub steps: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Failed checks of SOFT reads.
    pub soft_faults: u64,
}

impl Counts {
    /// Counts a request that moves so many bytes.
    pub fn add(&mut self, op: ChainOp, bytes: u64) {
        match op.class() {
            Class::Copy => self.copies += 1,
            Class::Atomic => self.atomics += 1,
            Class::Order => self.orders += 1,
        }
        self.steps += steps(bytes);
        self.bytes += bytes;
    }
}

/// Steps that a request costs which moves so many bytes: one, and one more for each 4096 bytes.
pub const fn steps(bytes: u64) -> u64 {
    1 + bytes / 4096
}
