//! Key table: memory regions and windows by handle and key, and access checks.

use crate::command::MwType;
use crate::platform::Memory;
use crate::seeded::derive;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use rdmesh_verbs::{Access, Key, Qpn, Sge};

/// The memory keys of one context.
pub(crate) struct KeyTable<M> {
    slots: Slots<M>,
    free: Vec<u32>,
    limit: usize,
    /// Secret from which the tags follow, and how many it has given.
    tags: (u64, u64),
    /// Type 2 windows that are bound, by QP.
    by_qp: BTreeSet<(Qpn, u32)>,
    /// Regions and windows of each protection domain that has any.
    by_pd: BTreeMap<u32, u32>,
}

/// Slots by handle. They are only looked up, one at a time: a command that walked through all of them would take as long as its
/// program likes.
struct Slots<M> {
    list: Vec<Slot<M>>,
    #[cfg(test)]
    lookups: core::cell::Cell<usize>,
}

struct Slot<M> {
    tag: u8,
    entry: Entry<M>,
}

enum Entry<M> {
    Free,
    Region(Region<M>),
    Window(Window<M>),
}

impl<M> Entry<M> {
    fn pd(&self) -> Option<u32> {
        match self {
            Self::Free => None,
            Self::Region(region) => Some(region.pd),
            Self::Window(window) => Some(window.pd),
        }
    }
}

struct Region<M> {
    pd: u32,
    iova: u64,
    len: u64,
    access: Access,
    memory: M,
    windows: u32,
}

/// A memory window and what it is bound to.
pub(crate) struct Window<M> {
    pub(crate) pd: u32,
    pub(crate) kind: MwType,
    bound: Option<Bound<M>>,
}

struct Bound<M> {
    region: u32,
    qpn: Qpn,
    addr: u64,
    len: u64,
    access: Access,
    memory: M,
    memory_offset: u64,
}

/// The range that a remote key opens: `len` bytes from address `base`, which are those of `memory` from `offset`.
struct Opened<'a, M> {
    memory: &'a M,
    base: u64,
    len: u64,
    offset: u64,
}

/// The key does not open this range, for this access, here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AccessDenied;

/// A window cannot be bound as asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BindError;

impl<M: Memory> KeyTable<M> {
    /// A table for at most `limit` keys. The tags follow from `seed`, so that keys of an earlier context rarely fit,
    /// and a key says nothing of the tags of others.
    pub(crate) fn new(limit: u32, seed: u64) -> Self {
        // Slot 0 stays empty: the key 0 opens nothing.
        let never = Slot { tag: 0, entry: Entry::Free };
        Self {
            slots: Slots::new(never),
            free: Vec::new(),
            limit: limit as usize,
            tags: (seed, 0),
            by_qp: BTreeSet::new(),
            by_pd: BTreeMap::new(),
        }
    }

    /// Adds a region; returns its handle and key, or none where the table is full.
    pub(crate) fn add_region(&mut self, pd: u32, iova: u64, len: u64, access: Access, memory: M) -> Option<(u32, Key)> {
        self.add(Entry::Region(Region { pd, iova, len, access, memory, windows: 0 }))
    }

    /// Adds an unbound window.
    pub(crate) fn add_window(&mut self, pd: u32, kind: MwType) -> Option<(u32, Key)> {
        self.add(Entry::Window(Window { pd, kind, bound: None }))
    }

    fn add(&mut self, entry: Entry<M>) -> Option<(u32, Key)> {
        let (seed, given) = &mut self.tags;
        *given += 1;
        let (mut tag, pd) = (derive(*seed, *given) as u8, entry.pd());
        let index = if let Some(index) = self.free.pop() {
            let slot = self.slots.get_mut(index as usize)?;
            // The key that the slot had before opens nothing.
            tag = if tag == slot.tag { tag.wrapping_add(1) } else { tag };
            *slot = Slot { tag, entry };
            index
        } else {
            if self.slots.len() > self.limit {
                return None;
            }
            self.slots.push(Slot { tag, entry })
        };
        self.count(pd, 1);
        Some((index, Key::from_parts(index as usize, tag)))
    }

    /// The protection domain of the region with `handle`, and how many windows are bound to it.
    pub(crate) fn region(&self, handle: u32) -> Option<(u32, u32)> {
        match &self.slots.get(handle as usize)?.entry {
            Entry::Region(region) => Some((region.pd, region.windows)),
            _ => None,
        }
    }

    /// Changes a region's protection domain, its access, or both; windows keep what they were bound to. Returns its key.
    pub(crate) fn change_region(&mut self, handle: u32, pd: Option<u32>, access: Option<Access>) -> Option<Key> {
        let slot = self.slots.get_mut(handle as usize)?;
        let Entry::Region(region) = &mut slot.entry else { return None };
        let before = region.pd;
        region.pd = pd.unwrap_or(before);
        region.access = access.unwrap_or(region.access);
        let (after, key) = (region.pd, Key::from_parts(handle as usize, slot.tag));
        self.count(Some(before), -1);
        self.count(Some(after), 1);
        Some(key)
    }

    /// The protection domain of the window with `handle`.
    pub(crate) fn window(&self, handle: u32) -> Option<u32> {
        match &self.slots.get(handle as usize)?.entry {
            Entry::Window(window) => Some(window.pd),
            _ => None,
        }
    }

    /// Removes a region or window; returns the memory of a region.
    pub(crate) fn remove(&mut self, handle: u32) -> Option<M> {
        self.unbind(handle);
        let slot = self.slots.get_mut(handle as usize)?;
        let entry = core::mem::replace(&mut slot.entry, Entry::Free);
        self.count(entry.pd(), -1);
        match entry {
            Entry::Free => None,
            Entry::Region(region) => {
                self.free.push(handle);
                Some(region.memory)
            }
            Entry::Window(_) => {
                self.free.push(handle);
                None
            }
        }
    }

    /// Removes the region with `handle`, if it still has this key.
    pub(crate) fn remove_key(&mut self, handle: u32, key: Key) {
        let is_same = self.slots.get(handle as usize).is_some_and(|slot| {
            matches!(slot.entry, Entry::Region(_)) && Key::from_parts(handle as usize, slot.tag) == key
        });
        if is_same {
            self.remove(handle);
        }
    }

    fn count(&mut self, pd: Option<u32>, change: i32) {
        let Some(pd) = pd else { return };
        let users = self.by_pd.entry(pd).or_default();
        *users = users.wrapping_add_signed(change);
        if *users == 0 {
            self.by_pd.remove(&pd);
        }
    }

    /// Whether anything belongs to `pd`.
    pub(crate) fn uses_pd(&self, pd: u32) -> bool {
        self.by_pd.contains_key(&pd)
    }

    /// Slots that have been looked up.
    #[cfg(test)]
    pub(crate) fn lookups(&self) -> usize {
        self.slots.lookups.get()
    }

    /// Resolves a local scatter/gather element.
    pub(crate) fn local(&self, pd: u32, sge: &Sge, access: Access) -> Result<(&M, u64), AccessDenied> {
        match self.entry(sge.lkey)? {
            Entry::Region(region) if region.pd == pd && region.access.contains(access) => {
                let offset = range_offset(region.iova, region.len, sge.addr, u64::from(sge.length))?;
                Ok((&region.memory, offset))
            }
            _ => Err(AccessDenied),
        }
    }

    /// Resolves a range that a peer names, reached through a QP of `pd`.
    pub(crate) fn remote(
        &self,
        pd: u32,
        qpn: Qpn,
        rkey: Key,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(&M, u64), AccessDenied> {
        let opened = self.open(pd, qpn, rkey, access)?;
        let offset = range_offset(opened.base, opened.len, addr, len)?;
        Ok((opened.memory, opened.offset + offset))
    }

    /// Whether a key that a peer names opens anything for this access, reached through a QP of `pd`.
    pub(crate) fn opens(&self, pd: u32, qpn: Qpn, rkey: Key, access: Access) -> bool {
        self.open(pd, qpn, rkey, access).is_ok()
    }

    fn open(&self, pd: u32, qpn: Qpn, rkey: Key, access: Access) -> Result<Opened<'_, M>, AccessDenied> {
        match self.entry(rkey)? {
            Entry::Region(Region { pd: owner, iova, len, access: granted, memory, .. })
                if *owner == pd && granted.contains(access) =>
            {
                Ok(Opened { memory, base: *iova, len: *len, offset: 0 })
            }
            Entry::Window(Window { pd: window_pd, kind, bound: Some(bound) }) => {
                let owner = *window_pd == pd && (*kind == MwType::Type1 || bound.qpn == qpn);
                if !owner || !bound.access.contains(access) {
                    return Err(AccessDenied);
                }
                let base = if bound.access.contains(Access::ZERO_BASED) { 0 } else { bound.addr };
                Ok(Opened { memory: &bound.memory, base, len: bound.len, offset: bound.memory_offset })
            }
            _ => Err(AccessDenied),
        }
    }

    /// Binds a window (IBA 10.6.7.2.2); `request` names window, region, range and the new key. Length 0 unbinds type 1.
    pub(crate) fn bind(&mut self, pd: u32, qpn: Qpn, request: &BindRequest) -> Result<(), BindError> {
        let BindRequest { mw, new_key, mr, addr, length, access } = *request;
        let Ok(Entry::Window(window)) = self.entry(mw) else { return Err(BindError) };
        let type2_taken = window.kind == MwType::Type2 && (window.bound.is_some() || length == 0);
        if window.pd != pd || type2_taken || new_key.index() != mw.index() || new_key.tag() == mw.tag() {
            return Err(BindError);
        }
        let bound = if length == 0 { None } else { Some(self.binding(pd, qpn, mr, addr, length, access)?) };
        self.unbind(mw.index() as u32);
        if let Some(bound) = &bound
            && let Some(Slot { entry: Entry::Region(region), .. }) = self.slots.get_mut(bound.region as usize)
        {
            region.windows += 1;
        }
        let slot = self.slots.get_mut(mw.index()).ok_or(BindError)?;
        slot.tag = new_key.tag();
        if let Entry::Window(window) = &mut slot.entry {
            if window.kind == MwType::Type2 {
                self.by_qp.insert((qpn, mw.index() as u32));
            }
            window.bound = bound;
        }
        Ok(())
    }

    fn binding(&self, pd: u32, qpn: Qpn, mr: Key, addr: u64, len: u64, access: Access) -> Result<Bound<M>, BindError> {
        let Ok(Entry::Region(region)) = self.entry(mr) else { return Err(BindError) };
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let allowed = region.pd == pd
            && region.access.contains(Access::MW_BIND)
            && !region.access.contains(Access::ZERO_BASED)
            && (!writes || region.access.contains(Access::LOCAL_WRITE));
        if !allowed {
            return Err(BindError);
        }
        let memory_offset = range_offset(region.iova, region.len, addr, len).map_err(|AccessDenied| BindError)?;
        let memory = region.memory.clone();
        Ok(Bound { region: mr.index() as u32, qpn, addr, len, access, memory, memory_offset })
    }

    /// Makes a type 2 window unusable until it is bound again (LOCAL_INV, SEND_INV; IBA 10.6.7.2.6).
    pub(crate) fn invalidate(&mut self, pd: u32, qpn: Option<Qpn>, key: Key) -> Result<(), AccessDenied> {
        match self.entry(key)? {
            Entry::Window(window) if window.pd == pd && window.kind == MwType::Type2 => {
                if let (Some(qpn), Some(bound)) = (qpn, &window.bound)
                    && bound.qpn != qpn
                {
                    return Err(AccessDenied);
                }
            }
            _ => return Err(AccessDenied),
        }
        self.unbind(key.index() as u32);
        Ok(())
    }

    /// Unbinds every type 2 window of a QP that goes away.
    pub(crate) fn unbind_qp(&mut self, qpn: Qpn) {
        while let Some(&(_, handle)) = self.by_qp.range((qpn, 0)..=(qpn, u32::MAX)).next() {
            self.unbind(handle);
        }
    }

    fn unbind(&mut self, handle: u32) {
        let Some(Slot { entry: Entry::Window(window), .. }) = self.slots.get_mut(handle as usize) else { return };
        let Some(bound) = window.bound.take() else { return };
        self.by_qp.remove(&(bound.qpn, handle));
        if let Some(Slot { entry: Entry::Region(region), .. }) = self.slots.get_mut(bound.region as usize) {
            region.windows -= 1;
        }
    }

    fn entry(&self, key: Key) -> Result<&Entry<M>, AccessDenied> {
        let slot = self.slots.get(key.index()).ok_or(AccessDenied)?;
        if slot.tag == key.tag() { Ok(&slot.entry) } else { Err(AccessDenied) }
    }
}

impl<M> Slots<M> {
    fn new(first: Slot<M>) -> Self {
        Self {
            list: vec![first],
            #[cfg(test)]
            lookups: core::cell::Cell::default(),
        }
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn get(&self, index: usize) -> Option<&Slot<M>> {
        self.note_lookup();
        self.list.get(index)
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut Slot<M>> {
        self.note_lookup();
        self.list.get_mut(index)
    }

    /// Adds a slot; returns its handle.
    fn push(&mut self, slot: Slot<M>) -> u32 {
        self.list.push(slot);
        (self.list.len() - 1) as u32
    }

    #[cfg(not(test))]
    #[inline]
    fn note_lookup(&self) {}

    #[cfg(test)]
    fn note_lookup(&self) {
        self.lookups.set(self.lookups.get() + 1);
    }
}

/// The fields of a BIND_MW work request.
#[derive(Clone, Copy)]
pub(crate) struct BindRequest {
    pub(crate) mw: Key,
    pub(crate) new_key: Key,
    pub(crate) mr: Key,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: Access,
}

/// Offset of `addr..addr+len` in a range of `total` bytes that starts at `base`.
fn range_offset(base: u64, total: u64, addr: u64, len: u64) -> Result<u64, AccessDenied> {
    let offset = addr.checked_sub(base).ok_or(AccessDenied)?;
    let end = offset.checked_add(len).ok_or(AccessDenied)?;
    if end <= total { Ok(offset) } else { Err(AccessDenied) }
}
