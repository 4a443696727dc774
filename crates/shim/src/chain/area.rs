//! Memory of installed chains: shared with the router from the start, and registered from address 0 on.
#![allow(unsafe_code)]

use super::border::{Failure, Result};
use crate::libibverbs::Pd;
use crate::libibverbs::objects::ZeroBased;
use crate::memory::alloc;
use rdmesh_chain::offload::Store;
use rdmesh_verbs::Access;
use rustix::io::Errno;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Registered memory, given back on drop: first its registration.
pub(super) struct Area {
    key: u32,
    /// None of memory that the program has registered.
    _region: Option<ZeroBased>,
    memory: Block,
}

struct Block {
    address: NonNull<c_void>,
    len: usize,
    is_own: bool,
}

// SAFETY: its memory is written by atomics only, and libibverbs' functions may be called by any thread.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Allocates and registers memory, zeroed.
    pub(super) fn new(pd: &Pd, len: u64, access: Access) -> Result<Self> {
        let len = usize::try_from(len.max(1)).map_err(|_| Failure::of(Errno::NOMEM, "memory of the chain"))?;
        let address = alloc::shared(len).map_err(|errno| Failure::of(errno, "memory of the chain"))?;
        let address = NonNull::new(address).ok_or_else(|| Failure::of(Errno::NOMEM, "memory of the chain"))?;
        let memory = Block { address, len: len.next_multiple_of(WORD), is_own: true };
        let region = ZeroBased::register(pd, address.as_ptr(), len, access);
        let region = region.map_err(|errno| Failure::of(errno, "registering memory of the chain"))?;
        Ok(Self { key: region.key(), _region: Some(region), memory })
    }

    /// Memory that the program has registered, and keeps for as long as it is used.
    pub(super) fn of_program(address: *mut c_void, len: u64, key: u32) -> Result<Self> {
        let address = NonNull::new(address).ok_or_else(|| Failure::invalid("the address of a table is NULL"))?;
        let len = usize::try_from(len).map_err(|_| Failure::invalid("a table is too long"))?;
        Ok(Self { key, _region: None, memory: Block { address, len, is_own: false } })
    }

    /// Its key.
    pub(super) fn key(&self) -> u32 {
        self.key
    }

    /// Its first byte.
    pub(super) fn address(&self) -> *mut c_void {
        self.memory.address.as_ptr()
    }

    /// Puts bytes at an offset, word by word. The NIC and other programs may read meanwhile.
    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        for (at, bytes) in (at..).step_by(8).zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.store(at, u64::from_ne_bytes(word));
        }
    }

    /// Makes a store of a word, after all that were made before it.
    pub(super) fn store(&self, at: u64, word: u64) {
        if let Some(place) = self.word(at) {
            place.store(word, Ordering::Release);
        }
    }

    /// Replaces a word by another one, if it is what it should be. Returns whether it was.
    pub(super) fn exchange(&self, at: u64, old: u64, new: u64) -> bool {
        self.word(at).is_some_and(|place| place.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok())
    }

    fn word(&self, at: u64) -> Option<&AtomicU64> {
        let is_within = at.is_multiple_of(8) && at.checked_add(8).is_some_and(|end| end <= self.memory.len as u64);
        debug_assert!(is_within, "a word outside of the memory");
        // SAFETY: in bounds and aligned (pages are, and a program's tables are checked), and an atomic.
        is_within.then(|| unsafe { &*self.memory.address.as_ptr().byte_add(at as usize).cast::<AtomicU64>() })
    }

    /// The same of an offload.
    pub(super) fn make(&self, store: &Store) {
        self.store(store.at, store.word);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.is_own {
            alloc::free(self.address.as_ptr());
        }
    }
}

const WORD: usize = 8;
