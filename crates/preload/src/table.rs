//! Table of the descriptors that a library gives to the program, and what each is.
//!
//! A plain two-level table, read without a lock by every `write`, `close` and so on of the program: a foreign
//! descriptor costs two loads.
#![allow(unsafe_code)]

use crate::{gate, own, process};
use arrayvec::ArrayVec;
use rustix::fd::RawFd;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;
/// Objects kept alive for a moment after they were closed, for a thread that is just using one.
const RETIRED: usize = 8;

type Chunk = [AtomicPtr<()>; CHUNK];

/// What a descriptor of a library can be: a reference to an object, such as one or the other `Arc`.
///
/// # Safety
/// What [`Kind::into_raw`] returns stands for its reference until [`Kind::from_raw`] has taken it, once. Meanwhile the object
/// may be looked at through it by any thread.
pub unsafe trait Kind: Clone + Send + Sync + 'static {
    /// The reference as a pointer.
    fn into_raw(self) -> NonNull<()>;

    /// The reference again.
    ///
    /// # Safety
    /// `raw` comes from [`Kind::into_raw`], and has not been given back yet.
    unsafe fn from_raw(raw: NonNull<()>) -> Self;

    /// The program has one more descriptor of the object.
    fn gained_descriptor(&self);

    /// The program has one less.
    fn lost_descriptor(&self);
}

/// A library's table. A process has one of each library.
pub struct Table<K> {
    chunks: [AtomicPtr<Chunk>; CHUNKS],
    retiring: Mutex<ArrayVec<K, RETIRED>>,
}

impl<K: Kind> Table<K> {
    /// An empty table.
    pub const fn new() -> Self {
        let chunks = [const { AtomicPtr::new(null_mut()) }; CHUNKS];
        Self { chunks, retiring: Mutex::new(ArrayVec::new_const()) }
    }

    /// The reference behind `fd`, as [`Kind::into_raw`] returned it. A program that closes the descriptor while another of its
    /// threads looks at the object still finds that alive for some more closes.
    #[inline]
    pub fn glance(&self, fd: RawFd) -> Option<NonNull<()>> {
        NonNull::new(self.entry(fd)?.load(Ordering::Acquire))
    }

    /// What `fd` is; none where it is not this library's, or the library's own.
    #[inline]
    pub fn get(&self, fd: RawFd) -> Option<K> {
        // SAFETY: the table keeps its own reference; see `glance` for a concurrent close.
        let kept = ManuallyDrop::new(unsafe { K::from_raw(self.glance(fd)?) });
        Some(K::clone(&kept))
    }

    /// Sets what `fd` is.
    pub fn set(&self, fd: RawFd, kind: K) {
        if process::is_owner() {
            kind.gained_descriptor();
            own::clear(fd);
            self.replace(fd, Some(kind));
        }
    }

    /// Forgets what `fd` was: it has been closed, or is about to be.
    pub fn forget(&self, fd: RawFd) {
        if process::is_owner() {
            self.replace(fd, None);
        }
    }

    /// Forgets all of `first..=last`.
    pub fn forget_between(&self, first: RawFd, last: RawFd) {
        self.for_each(|fd| {
            if (first..=last).contains(&fd) {
                let _gate = gate::enter();
                self.forget(fd);
            }
        });
    }

    /// After `new` became a duplicate of `old`, which closed what it was before: it is now what `old` is.
    pub fn duplicated(&self, old: RawFd, new: RawFd) {
        if new < 0 || new == old {
            return;
        }
        match self.get(old) {
            Some(kind) => {
                let _gate = gate::enter();
                self.set(new, kind);
            }
            None if self.glance(new).is_some() => {
                let _gate = gate::enter();
                self.forget(new);
            }
            None => {}
        }
    }

    /// Calls `visit` for every descriptor in the table, in ascending order.
    pub fn for_each(&self, mut visit: impl FnMut(RawFd)) {
        for (high, chunk) in self.chunks.iter().enumerate() {
            // SAFETY: chunks are never freed.
            let Some(chunk) = (unsafe { chunk.load(Ordering::Acquire).as_ref() }) else { continue };
            for (low, entry) in chunk.iter().enumerate() {
                if !entry.load(Ordering::Relaxed).is_null() {
                    visit((high * CHUNK + low) as RawFd);
                }
            }
        }
    }

    #[inline]
    fn entry(&self, fd: RawFd) -> Option<&AtomicPtr<()>> {
        let fd = fd as usize;
        let chunk = self.chunks.get(fd / CHUNK)?.load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        // SAFETY: chunks are never freed.
        Some(unsafe { &(&*chunk)[fd % CHUNK] })
    }

    fn replace(&self, fd: RawFd, new: Option<K>) {
        if self.entry(fd).is_none() {
            if new.is_none() {
                return;
            }
            self.add_chunk(fd);
        }
        let Some(entry) = self.entry(fd) else { return };
        let new = new.map_or(null_mut(), |kind| kind.into_raw().as_ptr());
        let Some(old) = NonNull::new(entry.swap(new, Ordering::AcqRel)) else { return };
        // SAFETY: the entry had the reference, and no longer has it.
        let old = unsafe { K::from_raw(old) };
        old.lost_descriptor();
        self.retire(old);
    }

    #[cold]
    fn add_chunk(&self, fd: RawFd) {
        let Some(slot) = self.chunks.get(fd as usize / CHUNK) else { return };
        let chunk: Box<Chunk> = Box::new([const { AtomicPtr::new(null_mut()) }; CHUNK]);
        let chunk = Box::into_raw(chunk);
        if slot.compare_exchange(null_mut(), chunk, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread was faster; this one was never shared.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }

    fn retire(&self, kind: K) {
        let mut retired = self.retiring.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = if retired.is_full() { retired.pop_at(0) } else { None };
        retired.push(kind);
        drop(retired);
        drop(oldest);
    }
}

impl<K: Kind> Default for Table<K> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicI32;

    /// An object that counts its descriptors.
    #[derive(Clone)]
    struct Counted(Arc<AtomicI32>);

    // SAFETY: that of `Arc`.
    unsafe impl Kind for Counted {
        fn into_raw(self) -> NonNull<()> {
            NonNull::new(Arc::into_raw(self.0).cast_mut().cast()).expect("no reference is null")
        }

        unsafe fn from_raw(raw: NonNull<()>) -> Self {
            // SAFETY: by the contract.
            Self(unsafe { Arc::from_raw(raw.as_ptr().cast()) })
        }

        fn gained_descriptor(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn lost_descriptor(&self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn listed(table: &Table<Counted>) -> Vec<RawFd> {
        let mut seen = Vec::new();
        table.for_each(|fd| seen.push(fd));
        seen
    }

    #[test]
    fn descriptors_are_known_until_they_are_forgotten() {
        let (table, object) = (Table::new(), Counted(Arc::default()));
        for fd in [3, 700_000] {
            assert!(table.get(fd).is_none());
            table.set(fd, object.clone());
            assert!(table.get(fd).is_some_and(|found| Arc::ptr_eq(&found.0, &object.0)));
        }
        assert_eq!((listed(&table), object.0.load(Ordering::SeqCst)), (vec![3, 700_000], 2));
        table.forget(3);
        table.forget(3);
        assert_eq!((listed(&table), object.0.load(Ordering::SeqCst)), (vec![700_000], 1));
    }

    #[test]
    fn duplicates_are_what_their_originals_are() {
        let (table, object) = (Table::new(), Counted(Arc::default()));
        table.set(3, object.clone());
        table.duplicated(3, 4);
        table.duplicated(3, 3);
        table.duplicated(3, -1);
        assert_eq!((listed(&table), object.0.load(Ordering::SeqCst)), (vec![3, 4], 2));
        // Over a descriptor of ours, one of another's is duplicated.
        table.duplicated(5, 4);
        assert_eq!((listed(&table), object.0.load(Ordering::SeqCst)), (vec![3], 1));
    }

    #[test]
    fn a_range_is_forgotten() {
        let (table, object) = (Table::new(), Counted(Arc::default()));
        [3, 4, 5, 2000].into_iter().for_each(|fd| table.set(fd, object.clone()));
        table.forget_between(4, 1999);
        assert_eq!(listed(&table), [3, 2000]);
        table.forget_between(0, RawFd::MAX);
        assert_eq!((listed(&table), object.0.load(Ordering::SeqCst)), (vec![], 0));
    }

    #[test]
    fn closed_objects_live_a_moment_longer() {
        let (table, object) = (Table::new(), Counted(Arc::default()));
        table.set(3, object.clone());
        table.forget(3);
        assert_eq!(Arc::strong_count(&object.0), 2);
        for _ in 0..RETIRED {
            table.set(3, Counted(Arc::default()));
            table.forget(3);
        }
        assert_eq!(Arc::strong_count(&object.0), 1);
    }

    #[test]
    fn numbers_out_of_range_are_not_kept() {
        let (table, object) = (Table::new(), Counted(Arc::default()));
        for fd in [-1, i32::MIN, i32::MAX] {
            table.set(fd, object.clone());
            assert!(table.get(fd).is_none());
        }
    }
}
