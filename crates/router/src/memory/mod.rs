//! Registered tenant memory, as the engine reaches it, and the platform that the router plugs into the engine.
//!
//! A region is a row of parts: pages of the tenant's arena, which the router has mapped too, and private pages, which it
//! reaches through `/proc/PID/mem`. Nearly every region is one mapped part, and a copy is one `memmove`.

mod allowance;
mod arenas;
mod helper;
mod late;
mod platform;
mod process;
mod raw;
mod yields;

pub use allowance::WaitAllowance;
pub use arenas::{ArenaFile, ArenaId, Arenas, Evicted};
pub use platform::{HostCompletionQueue, HostPlatform, HostRecvQueue, HostSendQueue};
pub use process::ProcessMemory;

use crate::budget::{Charge, Exhausted, Resource, Share};
use rdmesh_nic::platform::Fault;
use rdmesh_uverbs::session::{Segment, SegmentKind};
use rdmesh_uverbs::shared::{MapError, SharedMemory};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::IntoBytes;

/// Bytes that the NIC may reach: a region, or a queue's inline data.
#[derive(Clone)]
pub enum TenantMemory {
    /// A ring.
    Ring(SharedMemory),
    /// A registered region.
    Region(Arc<Region>),
}

/// A registered region.
pub struct Region {
    parts: Vec<Part>,
    _charge: Option<Charge>,
}

/// Location of a part of a region. `begin` is its offset in the region.
struct Part {
    begin: u64,
    len: u64,
    backing: Backing,
}

enum Backing {
    Mapped(SharedMemory),
    Private {
        process: ProcessMemory,
        addr: u64,
    },
    /// Of the NIC itself: no program sees it.
    Own(Box<[AtomicU64]>),
    /// A stretch with parts of its own.
    Stretch(Arc<Region>),
}

/// A stretch of a registration that comes in several messages, ready before the registration itself.
#[derive(Clone)]
pub struct Stretch {
    start: u64,
    len: u64,
    region: Arc<Region>,
}

/// Error of registering a region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The segments do not cover the range exactly.
    #[error("segments do not cover the range")]
    Gap,
    /// The arena is missing, or cannot be mapped.
    #[error("arena cannot be mapped: {0}")]
    Map(#[from] MapError),
    /// They are too many that cannot be joined.
    #[error("the range lies in too many pieces")]
    TooMany,
    /// Pages of the arena are not there.
    #[error("pages of the range are missing")]
    Missing,
    /// The endpoint has too much already.
    #[error(transparent)]
    Exhausted(Exhausted),
    /// The arena did not come with the registration, and what is mapped of it is not all.
    #[error("the arena has to be sent")]
    Unknown,
    /// There are private pages and no way to reach the process.
    #[error("the process's memory cannot be reached")]
    NoProcess,
}

/// A resolved run of bytes.
enum Run<'a> {
    Mapped(*mut u8),
    Private(&'a ProcessMemory, u64),
}

impl TenantMemory {
    /// A region of `len` bytes at `start` in the tenant, made of `segments`, which must cover it without gap or overlap.
    /// `map` finds a piece of the arena, by offset and length.
    fn region(
        start: u64,
        len: u64,
        segments: &[Segment],
        process: Option<ProcessMemory>,
        share: &Share,
        mut map: impl FnMut(u64, u64) -> Result<SharedMemory, RegionError>,
    ) -> Result<Self, RegionError> {
        let pieces = join(start, len, segments)?;
        let size = pieces.len().saturating_sub(1) * size_of::<Part>();
        let charge = if size == 0 { None } else { Some(share.take(Resource::Memory, size as u64)?) };
        let mut parts = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            let backing = match piece.kind {
                ARENA => Backing::Mapped(map(piece.offset, piece.len)?),
                PRIVATE => {
                    let process = process.clone().ok_or(RegionError::NoProcess)?;
                    Backing::Private { process, addr: piece.addr }
                }
                _ => return Err(RegionError::Gap),
            };
            parts.push(Part { begin: piece.addr - start, len: piece.len, backing });
        }
        Ok(Self::Region(Arc::new(Region { parts, _charge: charge })))
    }

    /// A region of `len` bytes at `start` in the tenant: `stretches` behind one another, and `rest` behind these. All of them are
    /// charged to `share`, beside their pieces.
    pub fn joined(start: u64, len: u64, stretches: &[Stretch], rest: Self, share: &Share) -> Result<Self, RegionError> {
        let Self::Region(rest) = rest else { return Err(RegionError::Gap) };
        let size = (stretches.len() + 1) * (size_of::<Part>() + size_of::<Region>());
        let charge = Some(share.take(Resource::Memory, size as u64)?);
        let (mut parts, mut next) = (Vec::with_capacity(stretches.len() + 1), start);
        for Stretch { start: begin, len, region } in stretches {
            if *begin != next {
                return Err(RegionError::Gap);
            }
            parts.push(Part { begin: begin - start, len: *len, backing: Backing::Stretch(Arc::clone(region)) });
            next = begin.checked_add(*len).ok_or(RegionError::Gap)?;
        }
        let left = start.checked_add(len).and_then(|end| end.checked_sub(next)).ok_or(RegionError::Gap)?;
        parts.push(Part { begin: next - start, len: left, backing: Backing::Stretch(rest) });
        Ok(Self::Region(Arc::new(Region { parts, _charge: charge })))
    }

    /// The whole address space of a process: implicit on-demand paging. Offsets are addresses.
    pub fn whole_process(process: ProcessMemory) -> Self {
        let backing = Backing::Private { process, addr: 0 };
        Self::Region(Arc::new(Region { parts: vec![Part { begin: 0, len: u64::MAX, backing }], _charge: None }))
    }

    /// Zeroed memory of the NIC's own.
    pub fn own(len: usize) -> Self {
        let words = (0..len.div_ceil(size_of::<u64>())).map(|_| AtomicU64::new(0)).collect();
        let part = Part { begin: 0, len: len as u64, backing: Backing::Own(words) };
        Self::Region(Arc::new(Region { parts: vec![part], _charge: None }))
    }

    /// Whether it is a ring, which is written word by word: its other side may read it meanwhile.
    fn is_ring(&self) -> bool {
        matches!(self, Self::Ring(_))
    }

    /// The run of bytes at `offset`, and how many of the `len` wanted it holds.
    fn run(&self, offset: u64, len: usize) -> Result<(Run<'_>, usize), Fault> {
        match self {
            Self::Ring(memory) => {
                let at = usize::try_from(offset).map_err(|_| Fault::Gone)?;
                let left = memory.len().checked_sub(at).filter(|left| *left != 0).ok_or(Fault::Gone)?;
                Ok((Run::Mapped(memory.as_ptr().wrapping_add(at)), left.min(len)))
            }
            Self::Region(region) => region.run(offset, len),
        }
    }
}

/// Joins neighbours that are neighbours in the arena too, and checks that all together are the range.
fn join(start: u64, len: u64, segments: &[Segment]) -> Result<Vec<Segment>, RegionError> {
    let mut joined: Vec<Segment> = Vec::new();
    let mut next = start;
    for segment in segments {
        if segment.addr != next || segment.len == 0 {
            return Err(RegionError::Gap);
        }
        next = segment.addr.checked_add(segment.len).ok_or(RegionError::Gap)?;
        if let Some(last) = joined.last_mut()
            && is_next(last, segment)
        {
            last.len += segment.len;
        } else if joined.len() < MAX_PARTS {
            joined.push(*segment);
        } else {
            return Err(RegionError::TooMany);
        }
    }
    if next.checked_sub(start) == Some(len) { Ok(joined) } else { Err(RegionError::Gap) }
}

/// Whether `segment` goes on where `last` ends, in the memory that both are made of.
fn is_next(last: &Segment, segment: &Segment) -> bool {
    let follows = || last.offset.checked_add(last.len) == Some(segment.offset);
    last.kind == segment.kind && (segment.kind == PRIVATE || follows())
}

impl Stretch {
    /// The stretch that a region of `len` bytes at `start` is; none of other memory.
    pub fn new(start: u64, len: u64, memory: TenantMemory) -> Option<Self> {
        let TenantMemory::Region(region) = memory else { return None };
        Some(Self { start, len, region })
    }

    /// The end of the last one; none where there is none.
    pub fn end(stretches: &[Self]) -> Option<u64> {
        stretches.last().map(|last| last.start + last.len)
    }
}

impl Region {
    fn run(&self, offset: u64, len: usize) -> Result<(Run<'_>, usize), Fault> {
        let part = match &self.parts[..] {
            [only] => only,
            parts => parts.get(parts.partition_point(|p| p.begin <= offset).wrapping_sub(1)).ok_or(Fault::Gone)?,
        };
        let within = offset.checked_sub(part.begin).filter(|within| *within < part.len).ok_or(Fault::Gone)?;
        let left = usize::try_from(part.len - within).unwrap_or(usize::MAX).min(len);
        Ok(match &part.backing {
            Backing::Mapped(memory) => (Run::Mapped(memory.as_ptr().wrapping_add(within as usize)), left),
            Backing::Private { process, addr } => (Run::Private(process, addr + within), left),
            Backing::Stretch(region) => return region.run(within, left),
            Backing::Own(words) => {
                (Run::Mapped(words.as_ptr().cast_mut().cast::<u8>().wrapping_add(within as usize)), left)
            }
        })
    }
}

impl rdmesh_nic::platform::Memory for TenantMemory {
    fn copy(&self, offset: u64, to: &Self, to_offset: u64, len: usize) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let (from, from_len) = self.run(offset + done as u64, len - done)?;
            let (dest, run_len) = to.run(to_offset + done as u64, from_len)?;
            match (from, dest) {
                (Run::Mapped(from), Run::Mapped(dest)) if to.is_ring() => raw::copy_words(from, dest, run_len)?,
                (Run::Mapped(from), Run::Mapped(dest)) => raw::copy(from, dest, run_len)?,
                (Run::Mapped(from), Run::Private(process, addr)) => process.write_raw(addr, from, run_len)?,
                (Run::Private(process, addr), Run::Mapped(dest)) => process.read_raw(addr, dest, run_len)?,
                (Run::Private(source, from), Run::Private(process, addr)) => {
                    process::copy(source, from, process, addr, run_len)?;
                }
            }
            done += run_len;
        }
        Ok(())
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < to.len() {
            let (from, len) = self.run(offset + done as u64, to.len() - done)?;
            let dest = to[done..].as_mut_ptr();
            match from {
                Run::Mapped(from) => raw::copy(from, dest, len)?,
                Run::Private(process, addr) => process.read_raw(addr, dest, len)?,
            }
            done += len;
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < from.len() {
            let (dest, len) = self.run(offset + done as u64, from.len() - done)?;
            let source = from[done..].as_ptr();
            match dest {
                Run::Mapped(dest) if self.is_ring() => raw::copy_words(source, dest, len)?,
                Run::Mapped(dest) => raw::copy(source, dest, len)?,
                Run::Private(process, addr) => process.write_raw(addr, source, len)?,
            }
            done += len;
        }
        Ok(())
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.atomic(
            offset,
            |cell| raw::compare_swap(cell, compare, swap),
            move |old| if old == compare { swap } else { old },
        )
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Fault> {
        self.atomic(offset, |cell| raw::fetch_add(cell, add), move |old| old.wrapping_add(add))
    }

    fn load(&self, offset: u64, words: &mut [u64]) -> Result<(), Fault> {
        let bytes = size_of_val(words);
        match self.run(offset, bytes)? {
            (Run::Mapped(from), len) if len == bytes && from.addr().is_multiple_of(8) => raw::load(from, words),
            _ => self.read(offset, words.as_mut_bytes()),
        }
    }

    fn write_atomic(&self, offset: u64, value: [u8; 8]) -> Result<(), Fault> {
        let value = u64::from_ne_bytes(value);
        self.atomic(offset, |cell| raw::swap(cell, value), move |_| value).map(drop)
    }
}

impl TenantMemory {
    /// An atomic on eight bytes: the processor's on mapped memory. Elsewhere the router's atomics exclude each other, on
    /// private memory those of one endpoint, which is what a device of level `IBV_ATOMIC_HCA` promises.
    fn atomic(
        &self,
        offset: u64,
        mapped: impl FnOnce(*mut u8) -> Result<u64, Fault>,
        private: impl FnOnce(u64) -> u64 + Send + 'static,
    ) -> Result<u64, Fault> {
        static IN_PIECES: Mutex<()> = Mutex::new(());
        let (run, len) = self.run(offset, 8)?;
        match run {
            Run::Mapped(cell) if len == 8 && cell.addr().is_multiple_of(8) => mapped(cell),
            Run::Private(process, addr) if len == 8 => process.atomic(addr, private),
            _ => {
                let _guard = IN_PIECES.lock().unwrap_or_else(PoisonError::into_inner);
                let mut bytes = [0; 8];
                rdmesh_nic::platform::Memory::read(self, offset, &mut bytes)?;
                let old = u64::from_ne_bytes(bytes);
                let new = private(old);
                if new != old {
                    // Where it is unknown whether it will take place, trying it again could execute it twice.
                    let stored = rdmesh_nic::platform::Memory::write(self, offset, &new.to_ne_bytes());
                    stored.map_err(|_| Fault::Gone)?;
                }
                Ok(old)
            }
        }
    }
}

const ARENA: u32 = SegmentKind::Arena as u32;
const PRIVATE: u32 = SegmentKind::Private as u32;
/// Pieces of one region, or of a stretch of one: as many as a message holds.
const MAX_PARTS: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, Limits};
    use crate::disposal::{Disposal, Reclaimer};
    use std::os::fd::AsFd;

    const PAGE: u64 = 4096;

    fn arena(addr: u64, offset: u64) -> Segment {
        Segment { addr, len: PAGE, kind: ARENA, reserved: 0, offset }
    }

    fn register(segments: &[Segment], start: u64, len: u64) -> Result<TenantMemory, RegionError> {
        let (_memory, fd) = SharedMemory::create("test", 4 * PAGE as usize).unwrap();
        let share = Budget::new(Limits::of_this_process()).share(u32::MAX);
        let mut arenas = Arenas::new(Disposal::new(share, &Reclaimer::new()));
        arenas.region(1, start, len, segments, Some(ArenaFile::sent(fd.as_fd()).unwrap()), None)
    }

    fn parts(memory: &TenantMemory) -> usize {
        if let TenantMemory::Region(region) = memory { region.parts.len() } else { 0 }
    }

    #[test]
    fn neighbours_are_one_part() {
        let count = |segments: &[Segment]| parts(&register(segments, PAGE, segments.len() as u64 * PAGE).unwrap());
        assert_eq!(count(&[arena(PAGE, 0), arena(2 * PAGE, PAGE), arena(3 * PAGE, 2 * PAGE)]), 1);
        assert_eq!(count(&[arena(PAGE, 0), arena(2 * PAGE, 2 * PAGE), arena(3 * PAGE, 3 * PAGE)]), 2);
    }

    #[test]
    fn pieces_that_cannot_be_joined_are_limited() {
        let segments: Vec<_> = (1..=MAX_PARTS as u64 + 1).map(|i| arena(i * PAGE, 0)).collect();
        let region = |count: usize| register(&segments[..count], PAGE, count as u64 * PAGE);
        assert!(region(MAX_PARTS).is_ok());
        assert!(matches!(region(MAX_PARTS + 1), Err(RegionError::TooMany)));
    }

    #[test]
    fn lengths_that_overflow_are_no_region() {
        let all = Segment { addr: 0, len: u64::MAX, kind: ARENA, reserved: 0, offset: PAGE - 1 };
        assert!(matches!(register(&[all], 0, u64::MAX), Err(RegionError::Gap)));
    }
}
