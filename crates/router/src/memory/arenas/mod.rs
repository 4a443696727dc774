//! The memfds of tenants' registered memory, and the router's mappings of them.
//!
//! A region is found in a mapping that is there already, or a new one is made, of its neighbourhood too: registrations
//! close to each other share one, and so do ranges that are registered again. Mappings stay until the last context that used
//! their file is closed, or until their endpoint needs the room. A page of a tenant's memory is never made here: one that is
//! missing refuses the registration.

use super::process::ProcessMemory;
use super::{RegionError, TenantMemory};
use crate::budget::{Charge, Exhausted, Resource};
use crate::disposal::Disposal;
use rdmesh_uverbs::guard;
use rdmesh_uverbs::session::Segment;
use rdmesh_uverbs::shared::{Keep, MapError, SharedMemory, UnusedMapping};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

/// All of one endpoint's.
pub struct Arenas {
    files: HashMap<ArenaId, Arena>,
    disposal: Disposal,
}

/// Mappings that were evicted: their charges are given back once they are unmapped, which takes a while.
#[derive(Default)]
pub struct Evicted(Vec<Weak<Upkeep>>);

/// Device and inode of an arena.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ArenaId(u64, u64);

/// The arena that a registration is about.
#[derive(Clone, Copy)]
pub struct ArenaFile<'a> {
    id: ArenaId,
    /// None where the program has sent it before: mapped parts of it are registered without the descriptor.
    fd: Option<BorrowedFd<'a>>,
}

impl<'a> ArenaFile<'a> {
    /// A file that came with the registration, if it is sealed memory. For other files even this lookup may block for ever.
    pub fn sent(fd: BorrowedFd<'a>) -> Result<Self, RegionError> {
        if !fcntl_get_seals(fd).map_err(MapError::from)?.contains(SealFlags::SHRINK) {
            return Err(MapError::NotSealed.into());
        }
        let stat = fstat(fd).map_err(MapError::from)?;
        Ok(Self { id: ArenaId(stat.st_dev, stat.st_ino), fd: Some(fd) })
    }

    /// A file that the same process has sent before.
    pub fn known(id: ArenaId) -> Self {
        Self { id, fd: None }
    }

    /// Its identity.
    pub fn id(&self) -> ArenaId {
        self.id
    }
}

/// One file.
#[derive(Default)]
struct Arena {
    /// By offset. None contains another, so that their ends are in order too.
    windows: BTreeMap<u64, Window>,
    /// Contexts that have registered memory of it.
    users: HashSet<u32>,
}

/// One mapping.
struct Window {
    memory: SharedMemory,
    upkeep: Arc<Upkeep>,
    /// Pages that are in the page table, or have been: a bit for each.
    known: Bits,
    /// Extents of which pages have been registered: each may need a page of the page table.
    extents: Bits,
}

/// Charges for a mapping, for as long as it exists.
struct Upkeep {
    _address_space: Charge,
    _mapping: Charge,
    memory: Charge,
}

/// The same for the mapping itself.
struct Kept {
    upkeep: Arc<Upkeep>,
    disposal: Disposal,
}

impl Keep for Kept {
    fn unmap(self: Box<Self>, pages: UnusedMapping) {
        let Self { upkeep, disposal } = *self;
        disposal.unmap(pages, Box::new(upkeep));
    }
}

/// A registration in progress: bytes that may yet be faulted in.
struct Progress<'a> {
    arena: Option<BorrowedFd<'a>>,
    populate: u64,
}

impl Arenas {
    /// An empty set; mappings are charged to the account of `disposal`, which unmaps them.
    pub fn new(disposal: Disposal) -> Self {
        Self { files: HashMap::new(), disposal }
    }

    /// A region of `len` bytes at `start` in the tenant, made of `segments`, which must cover it without gap or overlap, for
    /// context `user`.
    pub fn region(
        &mut self,
        user: u32,
        start: u64,
        len: u64,
        segments: &[Segment],
        arena: Option<ArenaFile<'_>>,
        process: Option<ProcessMemory>,
    ) -> Result<TenantMemory, RegionError> {
        let Self { files, disposal } = self;
        match arena {
            Some(ArenaFile { id, fd: Some(_) }) => {
                files.entry(id).or_default().users.insert(user);
            }
            // The number may be another file's since, unless something of that one is kept for this context.
            Some(ArenaFile { id, fd: None }) if !files.get(&id).is_some_and(|file| file.users.contains(&user)) => {
                return Err(RegionError::Unknown);
            }
            _ => {}
        }
        let mut progress = arena.map(|arena| Progress { arena: arena.fd, populate: POPULATE_MAX });
        let made = TenantMemory::region(start, len, segments, process, disposal.share(), |offset, len| {
            let (Some(arena), Some(progress)) = (arena, progress.as_mut()) else { return Err(RegionError::Unknown) };
            files.get_mut(&arena.id).ok_or(RegionError::Unknown)?.place(disposal, progress, offset, len)
        });
        self.files.retain(|_, arena| !arena.windows.is_empty());
        made
    }

    /// Gives up the mappings that no region needs.
    pub fn evict(&mut self, evicted: &mut Evicted) {
        for arena in self.files.values_mut() {
            arena.windows.retain(|_, window| {
                let is_needed = window.memory.is_shared();
                if !is_needed {
                    evicted.0.push(Arc::downgrade(&window.upkeep));
                }
                is_needed
            });
        }
        self.files.retain(|_, arena| !arena.windows.is_empty());
    }

    /// Context `user` has been closed.
    pub fn forget(&mut self, user: u32) {
        self.files.retain(|_, arena| {
            arena.users.remove(&user);
            !arena.users.is_empty()
        });
    }
}

impl Evicted {
    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all are unmapped.
    pub fn is_gone(&self) -> bool {
        self.0.iter().all(|upkeep| upkeep.strong_count() == 0)
    }
}

impl Arena {
    /// The `len` bytes at `offset`, mapped, with their pages there.
    fn place(
        &mut self,
        disposal: &Disposal,
        progress: &mut Progress<'_>,
        offset: u64,
        len: u64,
    ) -> Result<SharedMemory, RegionError> {
        let end = offset.checked_add(len).ok_or(RegionError::Gap)?;
        let found = self.windows.range(..=offset).next_back().filter(|(start, window)| window.end(**start) >= end);
        let start = match found {
            Some((start, _)) => *start,
            None => self.open(disposal, progress.arena.ok_or(RegionError::Unknown)?, offset, end)?,
        };
        let window = self.windows.get_mut(&start).ok_or(RegionError::Gap)?;
        window.admit(offset - start, end - start, &mut progress.populate)?;
        Ok(window.memory.part((offset - start) as usize, len as usize))
    }

    /// Maps the neighbourhood of a range. Returns where it begins.
    fn open(&mut self, disposal: &Disposal, arena: BorrowedFd<'_>, from: u64, to: u64) -> Result<u64, RegionError> {
        let size = fstat(arena).map_err(MapError::from)?.st_size.cast_unsigned();
        let start = from / CHUNK * CHUNK;
        let end = to.checked_next_multiple_of(CHUNK).ok_or(RegionError::Gap)?.min(size);
        if end < to {
            return Err(MapError::TooShort.into());
        }
        let len = usize::try_from(end - start).map_err(|_| RegionError::Gap)?;
        let window = Window::open(disposal, arena, start, len)?;
        let within: Vec<u64> =
            self.windows.range(start..).map_while(|(at, w)| (w.end(*at) <= end).then_some(*at)).collect();
        within.iter().for_each(|at| drop(self.windows.remove(at)));
        self.windows.insert(start, window);
        Ok(start)
    }
}

impl Window {
    fn open(disposal: &Disposal, arena: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, RegionError> {
        let share = disposal.share();
        let (known, extents) = (len.div_ceil(PAGE as usize), len.div_ceil(EXTENT as usize));
        let bookkeeping = (Bits::bytes(known) + Bits::bytes(extents) + size_of::<Self>() + ENTRY) as u64;
        let upkeep = Arc::new(Upkeep {
            _address_space: share.take(Resource::AddressSpace, len as u64)?,
            _mapping: share.take(Resource::Mappings, 1)?,
            memory: share.take(Resource::Memory, bookkeeping)?,
        });
        let memory =
            SharedMemory::map_keeping(arena, offset, len, Kept { upkeep: upkeep.clone(), disposal: disposal.clone() })?;
        Ok(Self { memory, upkeep, known: Bits::new(known), extents: Bits::new(extents) })
    }

    fn end(&self, start: u64) -> u64 {
        start + self.memory.len() as u64
    }

    /// Makes sure that the pages of a range are present, and charges their page tables.
    fn admit(&mut self, from: u64, to: u64, populate: &mut u64) -> Result<(), RegionError> {
        let tables = self.extents.set((from / EXTENT) as usize, to.div_ceil(EXTENT) as usize);
        if let Err(error) = self.upkeep.memory.grow(tables.len() as u64 * PAGE) {
            tables.iter().for_each(|bit| self.extents.clear(*bit));
            return Err(error.into());
        }
        let (mut page, last) = ((from / PAGE) as usize, to.div_ceil(PAGE) as usize);
        if to - from <= POPULATE_MAX {
            self.doubt(page, last);
        }
        while let Some((begin, end)) = self.known.next_gap(page, last) {
            let end = end.min(begin + (*populate / PAGE) as usize);
            if begin >= end {
                break;
            }
            self.populate(begin, end)?;
            *populate -= (end - begin) as u64 * PAGE;
            page = end;
        }
        Ok(())
    }

    /// Forgets known pages that are not there any more: the program may have given up some.
    fn doubt(&mut self, from: usize, to: usize) {
        let mut at = from;
        while let Some((begin, end)) = self.known.next_run(at, to) {
            if !self.memory.is_resident(begin * PAGE as usize, (end - begin) * PAGE as usize) {
                (begin..end).for_each(|page| self.known.clear(page));
            }
            at = end;
        }
    }

    fn populate(&mut self, begin: usize, end: usize) -> Result<(), RegionError> {
        let bytes = (end - begin) * PAGE as usize;
        if !guard::is_complete() {
            // Pages that are missing then or later are made by the router, and charged to it.
            self.upkeep.memory.grow(bytes as u64)?;
        }
        match self.memory.populate(begin * PAGE as usize, bytes) {
            Err(Errno::FAULT) => return Err(RegionError::Missing),
            result => result.map_err(MapError::from)?,
        }
        self.known.set(begin, end);
        Ok(())
    }
}

/// A row of bits.
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn bytes(len: usize) -> usize {
        len.div_ceil(64) * 8
    }

    /// Sets a range. Returns those that were not set.
    fn set(&mut self, from: usize, to: usize) -> Vec<usize> {
        let mut new = Vec::new();
        let mut at = from;
        while let Some((begin, end)) = self.next_gap(at, to) {
            new.extend(begin..end);
            (begin..end).for_each(|bit| self.0[bit / 64] |= 1 << (bit % 64));
            at = end;
        }
        new
    }

    fn clear(&mut self, bit: usize) {
        self.0[bit / 64] &= !(1 << (bit % 64));
    }

    /// The first run of bits in `from..to` that are not set.
    fn next_gap(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        let begin = self.find(from, to, false)?;
        Some((begin, self.find(begin, to, true).unwrap_or(to)))
    }

    /// The first run of bits in `from..to` that are set.
    fn next_run(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        let begin = self.find(from, to, true)?;
        Some((begin, self.find(begin, to, false).unwrap_or(to)))
    }

    /// The first bit in `from..to` that is `set`.
    fn find(&self, from: usize, to: usize, set: bool) -> Option<usize> {
        let mut at = from;
        while at < to {
            let word = if set { self.0[at / 64] } else { !self.0[at / 64] };
            let rest = word >> (at % 64);
            if rest != 0 {
                return Some(at + rest.trailing_zeros() as usize).filter(|bit| *bit < to);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

impl From<Exhausted> for RegionError {
    fn from(error: Exhausted) -> Self {
        Self::Exhausted(error)
    }
}

const PAGE: u64 = 4096;
/// Bytes that one page of a page table maps.
const EXTENT: u64 = 2 << 20;
/// Mappings begin and end at multiples of that: of address space there is plenty, of mappings there is not.
const CHUNK: u64 = 64 << 20;
/// Bytes of a region that are faulted in at registration, so that the first transfers find their pages.
/// No more: the session thread does it.
const POPULATE_MAX: u64 = 64 << 20;
/// Memory of a mapping's table entries, here and in the kernel.
const ENTRY: usize = 512;

#[cfg(test)]
mod tests;
