//! Slab: a table of objects, each under a small handle.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// A table that hands out the lowest free handle.
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: BinaryHeap<Reverse<u32>>,
    limit: u32,
}

impl<T> Slab<T> {
    /// A table for at most `limit` objects.
    pub(crate) fn new(limit: u32) -> Self {
        Self { slots: Vec::new(), free: BinaryHeap::new(), limit }
    }

    /// Adds `value`, or gives none where the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(Reverse(handle)) = self.free.pop() {
            self.slots[handle as usize] = Some(value);
            return Some(handle);
        }
        let handle = u32::try_from(self.slots.len()).ok().filter(|h| *h < self.limit)?;
        self.slots.push(Some(value));
        Some(handle)
    }

    pub(crate) fn get(&self, handle: u32) -> Option<&T> {
        self.slots.get(handle as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        self.slots.get_mut(handle as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        let value = self.slots.get_mut(handle as usize)?.take()?;
        self.free.push(Reverse(handle));
        Some(value)
    }

    /// Objects from handle `from` on.
    pub(crate) fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &T)> {
        let slots = self.slots.iter().enumerate().skip(from as usize);
        slots.filter_map(|(h, slot)| Some((h as u32, slot.as_ref()?)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(h, slot)| Some((h as u32, slot.as_ref()?)))
    }
}
