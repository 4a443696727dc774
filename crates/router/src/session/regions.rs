//! The memory regions of a context, found by handle and by key.

use crate::memory::ArenaId;
use rdmesh_verbs::{Access, Key};
use std::collections::{BTreeMap, HashMap};

/// A memory region, as far as commands need to know it.
pub(super) struct Region {
    pub(super) pd: u32,
    pub(super) key: Key,
    pub(super) iova: u64,
    pub(super) len: u64,
    pub(super) access: Access,
    /// Bytes that it counts for in the account.
    pub(super) pinned: u64,
    pub(super) pages: Pages,
}

/// Pages of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pages {
    /// Some are private: they go with their process.
    Private,
    /// All are an arena's. In one piece, they begin at this offset of it.
    Arena(ArenaId, Option<u64>),
    /// A ring's of a queue pair.
    Ring { qp: u32 },
}

/// The regions of a context.
#[derive(Default)]
pub(super) struct Regions {
    by_handle: BTreeMap<u32, Region>,
    handles: HashMap<u32, u32>,
    /// Number of regions in each protection domain.
    in_domains: HashMap<u32, u32>,
    pinned: u64,
}

impl Regions {
    pub(super) fn insert(&mut self, handle: u32, region: Region) {
        self.pinned += region.pinned;
        *self.in_domains.entry(region.pd).or_default() += 1;
        self.handles.insert(region.key.0, handle);
        self.by_handle.insert(handle, region);
    }

    pub(super) fn remove(&mut self, handle: u32) -> Option<Region> {
        let region = self.by_handle.remove(&handle)?;
        self.pinned -= region.pinned;
        self.handles.remove(&region.key.0);
        if let Some(count) = self.in_domains.get_mut(&region.pd) {
            *count -= 1;
            if *count == 0 {
                self.in_domains.remove(&region.pd);
            }
        }
        Some(region)
    }

    /// Applies the changes of `rereg_mr`.
    pub(super) fn change(&mut self, handle: u32, pd: Option<u32>, access: Option<Access>) {
        if let Some(region) = self.by_handle.get_mut(&handle) {
            region.pd = pd.unwrap_or(region.pd);
            region.access = access.unwrap_or(region.access);
        }
    }

    pub(super) fn get(&self, handle: u32) -> Option<&Region> {
        self.by_handle.get(&handle)
    }

    pub(super) fn find(&self, key: u32) -> Option<&Region> {
        self.by_handle.get(self.handles.get(&key)?)
    }

    /// Those from handle `from` on.
    pub(super) fn from(&self, from: u32) -> impl Iterator<Item = (u32, &Region)> {
        self.by_handle.range(from..).map(|(handle, region)| (*handle, region))
    }

    /// Whether one has private pages.
    pub(super) fn has_private(&self) -> bool {
        self.by_handle.values().any(|region| region.pages == Pages::Private)
    }

    /// Number of regions in protection domain `pd`.
    pub(super) fn in_domain(&self, pd: u32) -> u32 {
        self.in_domains.get(&pd).copied().unwrap_or(0)
    }

    /// Bytes that all of them count for.
    pub(super) fn pinned(&self) -> u64 {
        self.pinned
    }
}
