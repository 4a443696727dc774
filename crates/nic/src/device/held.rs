//! Bytes of packets that wait behind a gap, with a limit on those of all connections.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that the connections of an engine hold behind gaps, with a limit on all of them: peers decide how many there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldBytes(Arc<AtomicUsize>);

/// Part of the bytes held, given back on drop.
#[derive(Debug)]
pub(crate) struct HeldCharge {
    held: HeldBytes,
    bytes: usize,
}

impl HeldBytes {
    /// Bytes that all connections of an engine may hold: 64 connections with full windows of packets of 1 KB.
    pub(crate) const MOST: usize = 64 << 20;

    /// Part of the limit; none where that is used up.
    pub(crate) fn charge(&self, bytes: usize) -> Option<HeldCharge> {
        let more = |held: usize| held.checked_add(bytes).filter(|held| *held <= Self::MOST);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(HeldCharge { held: self.clone(), bytes })
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for HeldCharge {
    fn drop(&mut self) {
        self.held.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
