//! Which file descriptors are the device's.
//!
//! A plain two-level table, read without a lock by every `write`, `close` and so on of the program: a foreign
//! descriptor costs two loads. The library's own descriptors stand in it too, so that a program that closes everything
//! it did not open does not close them.
#![allow(unsafe_code)]

use crate::session::Context;
use arrayvec::ArrayVec;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;
/// The library's own descriptors go above this, away from the numbers that programs name themselves.
const OWN_FROM: RawFd = 512;
/// Contexts kept alive for a moment after they were closed, for a thread that is just using one.
const RETIRED: usize = 8;

type Chunk = [AtomicPtr<Context>; CHUNK];

static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];
static RETIRING: Mutex<ArrayVec<Arc<Context>, RETIRED>> = Mutex::new(ArrayVec::new_const());
/// The process that the table describes; a vfork child, which shares this memory, is another.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// An entry that is not a context: a descriptor of this library.
const OWN: *mut Context = std::ptr::without_provenance_mut(1);

/// What a descriptor is.
pub(crate) enum Kind {
    /// Nothing to do with us.
    Foreign,
    /// A device context.
    Device(Arc<Context>),
    /// Used by this library.
    Own,
}

/// The context behind `fd`, without taking hold of it: for as long as the program does not close it.
#[inline]
pub(crate) fn peek<'a>(fd: RawFd) -> Option<&'a Context> {
    let entry = entry(fd)?.load(Ordering::Acquire);
    if entry.is_null() || entry == OWN {
        return None;
    }
    // SAFETY: the table holds a count of the Arc. A program that closes the descriptor while another of its threads
    // uses it still finds the context alive for `RETIRED` more closes.
    Some(unsafe { &*entry })
}

/// What `fd` is.
#[inline]
pub(crate) fn kind(fd: RawFd) -> Kind {
    match entry(fd).map_or(null_mut(), |entry| entry.load(Ordering::Acquire)) {
        entry if entry.is_null() => Kind::Foreign,
        OWN => Kind::Own,
        entry => {
            // SAFETY: the table holds a count of this Arc; see `peek` for a concurrent close.
            Kind::Device(unsafe {
                Arc::increment_strong_count(entry);
                Arc::from_raw(entry)
            })
        }
    }
}

/// Makes `fd` a descriptor of `context`, or of nobody.
pub(crate) fn set(fd: RawFd, context: Option<Arc<Context>>) {
    if !is_owner() {
        return;
    }
    let new = context.map_or(null_mut(), |context| {
        context.gained_descriptor();
        Arc::into_raw(context).cast_mut()
    });
    replace(fd, new);
}

/// Calls `visit` for every descriptor that is ours.
pub(crate) fn for_each(mut visit: impl FnMut(RawFd)) {
    for (high, chunk) in TABLE.iter().enumerate() {
        let chunk = chunk.load(Ordering::Acquire);
        if chunk.is_null() {
            continue;
        }
        // SAFETY: chunks are never freed.
        for (low, entry) in unsafe { &*chunk }.iter().enumerate() {
            if !entry.load(Ordering::Relaxed).is_null() {
                visit((high * CHUNK + low) as RawFd);
            }
        }
    }
}

/// Says that this process owns the table: at the start, and in the child of a fork.
pub(crate) fn claim() {
    OWNER.store(process_id(), Ordering::Relaxed);
}

/// Whether this process may change the table. A vfork child may not: its descriptors are not its parent's, but its
/// memory is.
pub(crate) fn is_owner() -> bool {
    match OWNER.load(Ordering::Relaxed) {
        // Called before the constructor.
        0 => {
            claim();
            true
        }
        owner => owner == process_id(),
    }
}

fn process_id() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().unsigned_abs()
}

#[inline]
fn entry(fd: RawFd) -> Option<&'static AtomicPtr<Context>> {
    let fd = fd as usize;
    let chunk = TABLE.get(fd / CHUNK)?.load(Ordering::Acquire);
    if chunk.is_null() {
        return None;
    }
    // SAFETY: chunks are never freed.
    Some(unsafe { &(&*chunk)[fd % CHUNK] })
}

fn replace(fd: RawFd, new: *mut Context) {
    if entry(fd).is_none() {
        if new.is_null() {
            return;
        }
        add_chunk(fd);
    }
    let Some(entry) = entry(fd) else { return };
    let old = entry.swap(new, Ordering::AcqRel);
    if !old.is_null() && old != OWN {
        // SAFETY: the entry held a count, which is now ours.
        let context = unsafe { Arc::from_raw(old) };
        context.lost_descriptor();
        retire(context);
    }
}

#[cold]
fn add_chunk(fd: RawFd) {
    let Some(slot) = TABLE.get(fd as usize / CHUNK) else { return };
    let chunk: Box<Chunk> = Box::new([const { AtomicPtr::new(null_mut()) }; CHUNK]);
    let chunk = Box::into_raw(chunk);
    if slot.compare_exchange(null_mut(), chunk, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was faster; this one was never shared.
        drop(unsafe { Box::from_raw(chunk) });
    }
}

fn retire(context: Arc<Context>) {
    let mut retired = RETIRING.lock().unwrap_or_else(PoisonError::into_inner);
    let oldest = if retired.is_full() { retired.pop_at(0) } else { None };
    retired.push(context);
    drop(retired);
    drop(oldest);
}

/// A descriptor of this library: out of the way, close-on-exec, and safe from the program's `close`.
pub(crate) struct OwnFd(OwnedFd);

impl OwnFd {
    /// Takes `fd` over.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let fd = rustix::io::fcntl_dupfd_cloexec(&fd, OWN_FROM).unwrap_or(fd);
        replace(fd.as_raw_fd(), OWN);
        Self(fd)
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        replace(self.0.as_raw_fd(), null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_descriptors_are_out_of_the_way() {
        let fd = OwnFd::new(rustix::pipe::pipe().unwrap().0);
        let number = fd.as_fd().as_raw_fd();
        assert!(number >= OWN_FROM);
        assert!(matches!(kind(number), Kind::Own));
        assert!(peek(number).is_none());
    }

    #[test]
    fn entries_are_known_until_they_are_replaced() {
        // No descriptor has this number.
        let number = 700_000;
        assert!(matches!(kind(number), Kind::Foreign));
        replace(number, OWN);
        assert!(matches!(kind(number), Kind::Own));
        let mut seen = Vec::new();
        for_each(|fd| seen.push(fd));
        assert!(seen.contains(&number));
        set(number, None);
        assert!(matches!(kind(number), Kind::Foreign));
    }

    #[test]
    fn numbers_out_of_range_are_foreign() {
        for fd in [-1, i32::MIN, i32::MAX] {
            assert!(matches!(kind(fd), Kind::Foreign));
        }
    }
}
