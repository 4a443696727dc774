//! Registered memory.
//!
//! The router reads and writes registered memory itself, so its pages must be shared with it. Where that can be done
//! without the program noticing, the pages under a registration are converted into pages of one memfd, the arena, in place;
//! pages that cannot be converted stay private and the router copies them through `/proc/PID/mem`.
//!
//! * [`maps`]: the process's mappings.
//! * [`plan`]: the decision for each page of a range: convert or leave private.
//! * [`arena`]: the memfd, and which of its pages are in use.
//! * [`present`]: populates its pages, before the router sees them.
//! * [`convert`]: converts pages, with writers held off by [`hold`] ([`fault`], [`stop`]).
//! * [`cut`]: system calls that a stop has interrupted.
//! * [`waiters`]: threads that wait for a futex on converted pages.
//! * [`traits`]: attributes of mappings beyond their access rights.
//! * [`pinned`]: pages that the kernel has pinned.
//! * [`tracer`]: ptrace permission for the router.
//! * [`status`]: fields of `/proc/self/status`.
//! * [`own`]: memory excluded from conversion, because it is in use meanwhile.
//! * [`mod@fork`]: gives a forked child its own copies, on a [`stack`] of its own.
//! * [`alloc`]: memory that is shared from the start, `rdmesh_malloc`.
#![allow(unsafe_code)]

pub(crate) mod alloc;
mod arena;
mod convert;
mod cut;
mod fault;
mod fork;
mod hold;
mod maps;
mod own;
mod pinned;
mod plan;
mod present;
mod stack;
mod status;
mod stop;
#[cfg(test)]
mod tests;
mod tracer;
mod traits;
mod waiters;

use crate::valgrind::Unreported;
use arena::ARENA;
use convert::{Converted, Converter};
use hold::Holds;
use plan::Fate;
use rdmesh_preload::Endpoint;
use rdmesh_uverbs::session::{Segment, SegmentKind};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::PoisonError;

pub(crate) use cut::{again, cuts, shortened};
pub(crate) use fork::{Start, clone_by, fork, fork_by, watch as watch_forks};
pub(crate) use rdmesh_preload::gate::enter as gate;
pub(crate) use rdmesh_preload::process::forks;
pub(crate) use tracer::{allow_router, device_closed, device_opened};
pub(crate) use traits::may_have_traits;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// `IB_ACCESS_*` under which the device writes the memory, or may come to (`ib_access_writable`).
const ACCESS_WRITABLE: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 4;
/// `IB_ACCESS_ON_DEMAND`.
const ACCESS_ON_DEMAND: u32 = 1 << 6;
/// Most segments that fit a message beside the command.
const MAX_SEGMENTS: usize = 1900;

/// A range made ready for the router.
#[derive(Default)]
pub(crate) struct Registration {
    segments: Vec<Segment>,
    arena: Option<ArenaFile>,
}

/// An arena, of which a piece may lie in a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArenaFile {
    file: (u64, u64),
    /// The fork after which it was made.
    forks: u32,
}

impl ArenaFile {
    /// A descriptor of it. EFAULT where this process has another arena since.
    pub(crate) fn descriptor(self) -> Result<OwnedFd, Errno> {
        let arena = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = arena.fd().filter(|_| (arena.file(), forks()) == (self.file, self.forks)).ok_or(Errno::FAULT)?;
        rustix::io::fcntl_dupfd_cloexec(fd, 0)
    }
}

impl Registration {
    /// The pieces of the range, without gaps.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The arena, where a piece lies in it.
    pub(crate) fn arena(&self) -> Option<ArenaFile> {
        self.arena
    }

    /// Whether the router needs access to this process's private memory.
    pub(crate) fn has_private(&self) -> bool {
        self.segments.iter().any(|segment| segment.kind == SegmentKind::Private as u32)
    }

    /// Adds a piece; one that continues the last becomes part of it.
    fn push(&mut self, start: u64, end: u64, offset: Option<u64>) {
        if start >= end {
            return;
        }
        let kind = if offset.is_some() { SegmentKind::Arena } else { SegmentKind::Private } as u32;
        let (len, offset) = (end - start, offset.unwrap_or(0));
        match self.segments.last_mut() {
            Some(last)
                if last.kind == kind && (kind == SegmentKind::Private as u32 || last.offset + last.len == offset) =>
            {
                last.len += len;
            }
            _ => self.segments.push(Segment { addr: start, len, kind, reserved: 0, offset }),
        }
    }
}

/// A descriptor of this process's arena, which is made if there is none.
pub(crate) fn arena_descriptor() -> Result<OwnedFd, Errno> {
    let mut arena = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
    arena.open()?;
    rustix::io::fcntl_dupfd_cloexec(arena.fd().ok_or(Errno::NOMEM)?, 0)
}

/// Prepares `len` bytes at `start` for a registration with `access` (`IB_ACCESS_*`).
pub(crate) fn register(start: u64, len: u64, access: u32) -> Result<Registration, Errno> {
    if rdmesh_preload::endpoint::find().is_some_and(Endpoint::is_in_guest) {
        // On another stack, so that this thread's own can be converted too.
        if own::is_on_main_stack() {
            stack::extend();
        }
        return stack::on_another(|| register_with(Holds::default(), start, len, access))?;
    }
    register_with(Holds::default(), start, len, access)
}

fn register_with(holds: Holds, start: u64, len: u64, access: u32) -> Result<Registration, Errno> {
    let _unreported = Unreported::begin();
    let mut registration = Registration::default();
    let on_demand = access & ACCESS_ON_DEMAND != 0;
    // The router handles both: an empty range is an error, the other is all of the memory (implicit ODP).
    if len == 0 || (on_demand && start == 0 && len == u64::MAX) {
        return Ok(registration);
    }
    let end = start.checked_add(len).filter(|&end| end <= u64::MAX - PAGE).ok_or(Errno::INVAL)?;
    if on_demand {
        registration.push(start, end, None);
        return Ok(registration);
    }
    let mut arena = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
    let (first, last) = (start & !(PAGE - 1), end.next_multiple_of(PAGE));
    let pieces = match plan::plan(first, last, access & ACCESS_WRITABLE != 0, &arena) {
        Ok(pieces) => pieces,
        Err(plan::Refusal::NotThere) => return Err(Errno::FAULT),
        // Without /proc nothing is known about the pages; the router still reaches them.
        Err(plan::Refusal::Unknown) => {
            registration.push(start, end, None);
            return Ok(registration);
        }
    };
    let mut converter = Converter::new(holds);
    for piece in pieces {
        let converted = match piece.fate {
            Fate::Arena(offset) => Converted { end: piece.end, offset },
            Fate::Convert(what) => converter.convert(&mut arena, piece.start, piece.end, what)?,
            Fate::Private => Converted { end: piece.start, offset: 0 },
        };
        arena.make_present(piece.start, converted.end, converted.offset)?;
        let (from, to, middle) = (piece.start.max(start), piece.end.min(end), converted.end.clamp(start, end));
        registration.push(from, middle, Some(converted.offset + (from - piece.start)));
        registration.push(from.max(middle), to, None);
    }
    if registration.segments.len() > MAX_SEGMENTS {
        return Err(Errno::NOMEM);
    }
    if registration.segments.iter().any(|segment| segment.kind == SegmentKind::Arena as u32) {
        registration.arena = Some(ArenaFile { file: arena.file(), forks: forks() });
    }
    Ok(registration)
}

/// Held by tests in which all threads of the process can be stopped.
#[cfg(test)]
pub(crate) fn stoppable() -> impl Drop {
    tests::STOPPABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stops all other threads for a moment; false where not all could be.
#[cfg(test)]
pub(crate) fn stop_once() -> bool {
    let _gate = gate();
    let _arena = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
    hold::Hold::Stop.during(0, 0, || ()).is_some()
}

/// The router found pages missing that should be present: registrations check all pages again.
pub(crate) fn distrust() {
    arena::emptied();
}

/// The program gave up the content of a range (`MADV_DONTNEED`), which private memory forgets and shared memory keeps:
/// arena pages are emptied, for a program may count on zeros.
pub(crate) fn discard(start: u64, len: u64) {
    if arena::exists() {
        arena::empty(start, start.saturating_add(len.next_multiple_of(PAGE)));
    }
}
