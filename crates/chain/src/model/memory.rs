//! Registered memory of the model, and its keys.

use rdmesh_verbs::{Access, WcStatus};
use std::collections::VecDeque;

/// A range of memory with a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Region {
    base: u64,
    access: Access,
    pub(super) bytes: Vec<u8>,
}

/// All registered memory of one side.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Memory {
    regions: Vec<Region>,
    stores: VecDeque<Store>,
    chance: u32,
    /// Ranges that were written since they were last taken, with what they held: where that is of interest.
    touched: Option<Vec<Touched>>,
}

/// A range that was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Touched {
    pub(super) key: u32,
    pub(super) at: usize,
    pub(super) before: Vec<u8>,
    /// Whether the processor has written it.
    pub(super) is_store: bool,
}

/// A store of the processor, of at most eight bytes in one aligned word.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Store {
    key: u32,
    at: usize,
    bytes: Vec<u8>,
}

impl Memory {
    /// Registers memory, and returns its key.
    pub(super) fn register(&mut self, base: u64, bytes: Vec<u8>, access: Access) -> u32 {
        let key = FIRST_KEY + self.regions.len() as u32;
        self.regions.push(Region { base, access, bytes });
        key
    }

    pub(super) fn region(&self, key: u32) -> Option<&Region> {
        self.regions.get(key.checked_sub(FIRST_KEY)? as usize)
    }

    pub(super) fn region_mut(&mut self, key: u32) -> Option<&mut Region> {
        self.regions.get_mut(key.checked_sub(FIRST_KEY)? as usize)
    }

    /// The bytes of a range, if the key gives the right.
    pub(super) fn read(&self, key: u32, addr: u64, length: u64, right: Access) -> Option<&[u8]> {
        let region = self.region(key)?;
        let range = region.range(addr, length, right)?;
        Some(&region.bytes[range])
    }

    /// The bytes of a range, to be changed.
    pub(super) fn write(&mut self, key: u32, addr: u64, length: u64, right: Access) -> Option<&mut [u8]> {
        let range = self.region(key)?.range(addr, length, right)?;
        self.touch(key, range.clone(), false);
        Some(&mut self.region_mut(key)?.bytes[range])
    }

    /// From now on, notes what is written.
    pub(super) fn watch(&mut self) {
        self.touched.get_or_insert_default();
    }

    /// Takes out what was written.
    pub(super) fn take_touched(&mut self) -> Vec<Touched> {
        self.touched.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn touch(&mut self, key: u32, range: std::ops::Range<usize>, is_store: bool) {
        if self.touched.is_some()
            && let Some(before) = self.region(key).map(|region| region.bytes[range.clone()].to_vec())
        {
            self.touched.iter_mut().for_each(|touched| {
                touched.push(Touched { key, at: range.start, before: before.clone(), is_store });
            });
        }
    }

    /// Notes a store that comes at some time.
    pub(super) fn store_later(&mut self, key: u32, at: usize, bytes: &[u8]) {
        self.stores.push_back(Store { key, at, bytes: bytes.to_vec() });
    }

    pub(super) fn stores_left(&self) -> usize {
        self.stores.len()
    }

    /// The oldest store comes.
    pub(super) fn store(&mut self) {
        let Some(Store { key, at, bytes }) = self.stores.pop_front() else { return };
        self.touch(key, at..at + bytes.len(), true);
        if let Some(region) = self.region_mut(key) {
            region.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// Whether a key opens anything for this right.
    pub(super) fn opens(&self, key: u32, right: Access) -> bool {
        self.region(key).is_some_and(|region| region.access.contains(right))
    }

    /// A copy of a range. Words are read whole, and stores may come between them.
    pub(super) fn copy(&mut self, key: u32, addr: u64, length: u64, right: Access) -> Option<Vec<u8>> {
        if self.stores.is_empty() {
            return self.read(key, addr, length, right).map(<[u8]>::to_vec);
        }
        let range = self.region(key)?.range(addr, length, right)?;
        let mut words: Vec<_> = (range.start / 8..range.end.div_ceil(8)).collect();
        if self.is_by_chance(2) {
            words.reverse();
        }
        let mut copy = vec![0; range.len()];
        for word in words {
            if self.is_by_chance(3) {
                self.store();
            }
            let part = (word * 8).max(range.start)..(word * 8 + 8).min(range.end);
            let bytes = &self.region(key)?.bytes[part.clone()];
            copy[part.start - range.start..part.end - range.start].copy_from_slice(bytes);
        }
        Some(copy)
    }

    fn is_by_chance(&mut self, one_in: u32) -> bool {
        self.chance = self.chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.chance >> 8).is_multiple_of(one_in)
    }

    /// Gathers or scatters nothing where a list is empty; the status of a wrong key is the local one.
    pub(super) fn gather(&mut self, list: &[rdmesh_verbs::Sge]) -> Result<Vec<u8>, WcStatus> {
        let mut data = Vec::new();
        for sge in list {
            let bytes = self.copy(sge.lkey.0, sge.addr, sge.length.into(), Access::empty());
            data.extend(bytes.ok_or(WcStatus::LocalProtectionError)?);
        }
        Ok(data)
    }

    /// Writes data through a scatter list that is long enough.
    pub(super) fn scatter(&mut self, list: &[rdmesh_verbs::Sge], mut data: &[u8]) -> Result<(), WcStatus> {
        for sge in list {
            let (part, rest) = data.split_at(data.len().min(sge.length as usize));
            let bytes = self.write(sge.lkey.0, sge.addr, part.len() as u64, Access::LOCAL_WRITE);
            bytes.ok_or(WcStatus::LocalProtectionError)?.copy_from_slice(part);
            data = rest;
        }
        if data.is_empty() { Ok(()) } else { Err(WcStatus::LocalLengthError) }
    }
}

impl Region {
    fn range(&self, addr: u64, length: u64, right: Access) -> Option<std::ops::Range<usize>> {
        let start = addr.checked_sub(self.base)?;
        let end = start.checked_add(length)?;
        (self.access.contains(right) && end <= self.bytes.len() as u64).then_some(start as usize..end as usize)
    }
}

/// Keys begin where no handle of a queue lies, so that one is not mistaken for the other.
const FIRST_KEY: u32 = 0x100;
