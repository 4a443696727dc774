//! Cache of registered memory: a buffer that was sent or received once is found again, until its memory is unmapped.
//!
//! Registration changes page tables, or pins; where the kernel does not tell of unmapped memory (userfaultfd), each message
//! registers its buffer anew, which is slower and never wrong.

mod index;
mod watch;

use crate::verbs::{Device, Region};
use index::{CAPACITY, Entry, Index};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use watch::Watch;

/// Regions by the pages that they cover. What is in use outlives its entry.
pub(crate) struct Cache {
    index: Arc<Mutex<Index>>,
    watch: Option<Arc<Watch>>,
    slots: Vec<Option<Slot>>,
    bytes: usize,
    limit: usize,
    clock: u64,
    hits: u64,
    misses: u64,
    /// Addresses of short buffers that were copied, by hash: those that come again are registered.
    seen: Box<[usize; SEEN]>,
}

struct Slot {
    region: Arc<Region>,
    start: usize,
    end: usize,
    used: u64,
}

impl Cache {
    /// A cache of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let index = Arc::new(Mutex::new(Index::new()));
        let watch = if limit == 0 { None } else { Watch::start(Arc::clone(&index)) };
        let slots = std::iter::repeat_with(|| None).take(CAPACITY).collect();
        Self { index, watch, slots, bytes: 0, limit, clock: 0, hits: 0, misses: 0, seen: Box::new([0; SEEN]) }
    }

    /// A region that covers the buffer: a known one, or a new one.
    pub(crate) fn region(&mut self, device: &Device, address: usize, len: usize) -> Result<Arc<Region>, Errno> {
        let (start, end) = pages(address, len);
        self.reap();
        self.clock += 1;
        let found = self.index().find(start, end);
        if let Some(slot) = found.and_then(|slot| self.slots[usize::from(slot)].as_mut()) {
            slot.used = self.clock;
            self.hits += 1;
            return Ok(Arc::clone(&slot.region));
        }
        self.misses += 1;
        let Some(watch) = self.watch.clone() else { return device.register(start, end - start).map(Arc::new) };
        self.make_room(end - start);
        watch.remove(start, end);
        let registered = device.register(start, end - start).map(Arc::new);
        // The buffer is in use by the caller: its pages cannot have been unmapped since they were registered.
        match &registered {
            Ok(region) if watch.add(start, end) => self.keep(Arc::clone(region), start, end),
            // Others that overlap have lost their watch there.
            _ => self.index().invalidate(start, end),
        }
        registered
    }

    /// A region that covers the buffer, or none where the data had better be copied: it is short, and the buffer is new. Also none
    /// where the memory cannot be registered.
    pub(crate) fn region_or_copy(&mut self, device: &Device, address: usize, len: usize) -> Option<Arc<Region>> {
        if len <= COPIED && !self.is_known(address, len) {
            return None;
        }
        self.region(device, address, len).ok()
    }

    /// Whether a buffer is registered, or was used before.
    fn is_known(&mut self, address: usize, len: usize) -> bool {
        let (start, end) = pages(address, len);
        if self.index().find(start, end).is_some() {
            return true;
        }
        let seen = &mut self.seen[(address >> 4) % SEEN];
        std::mem::replace(seen, address) == address
    }

    /// Look-ups that found a region, and that did not.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    /// Counts from now on.
    pub(crate) fn forget_counts(&mut self) {
        (self.hits, self.misses) = (0, 0);
    }

    fn keep(&mut self, region: Arc<Region>, start: usize, end: usize) {
        let Some(free) = self.slots.iter().position(Option::is_none) else { return };
        if self.index().insert(Entry { start, end, slot: free as u16 }) {
            self.bytes += end - start;
            self.slots[free] = Some(Slot { region, start, end, used: self.clock });
        }
    }

    /// Gives up what was used longest ago until there is room for `len` more bytes.
    fn make_room(&mut self, len: usize) {
        while self.bytes > 0 && (self.bytes + len > self.limit || self.slots.iter().all(Option::is_some)) {
            let oldest = self.slots.iter().flatten().min_by_key(|slot| slot.used).map(|slot| (slot.start, slot.end));
            let Some((start, end)) = oldest else { return };
            self.index().invalidate(start, end);
            self.reap();
        }
    }

    /// Drops the regions of memory that was unmapped.
    fn reap(&mut self) {
        loop {
            // The lock is free again before a region is dropped, which may unmap memory.
            let stale = self.index().take_stale();
            let Some(slot) = stale.and_then(|slot| self.slots[usize::from(slot)].take()) else { return };
            self.bytes -= slot.end - slot.start;
        }
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pages(address: usize, len: usize) -> (usize, usize) {
    (address & !(PAGE - 1), (address + len).next_multiple_of(PAGE))
}

const PAGE: usize = 4096;
/// Longest message that is copied rather than to register its buffer for the first time: a registration costs as much as to copy
/// several of these.
pub(crate) const COPIED: usize = 64 << 10;
const SEEN: usize = 1024;
