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

/// Registered memory, zeroed at first; given back on drop.
pub(super) struct Area {
    region: ZeroBased,
    memory: Block,
}

struct Block {
    address: NonNull<c_void>,
    len: usize,
}

// SAFETY: its memory is written by atomics only, and libibverbs' functions may be called by any thread.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Allocates and registers memory.
    pub(super) fn new(pd: &Pd, len: u64, access: Access) -> Result<Self> {
        let len = usize::try_from(len.max(1)).map_err(|_| Failure::of(Errno::NOMEM, "memory of the chain"))?;
        let address = alloc::shared(len).map_err(|errno| Failure::of(errno, "memory of the chain"))?;
        let address = NonNull::new(address).ok_or_else(|| Failure::of(Errno::NOMEM, "memory of the chain"))?;
        let memory = Block { address, len };
        let region = ZeroBased::register(pd, address.as_ptr(), len, access);
        let region = region.map_err(|errno| Failure::of(errno, "registering memory of the chain"))?;
        Ok(Self { region, memory })
    }

    /// Its key.
    pub(super) fn key(&self) -> u32 {
        self.region.key()
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
        let room = self.memory.len.next_multiple_of(8) as u64;
        if !at.is_multiple_of(8) || at.checked_add(8).is_none_or(|end| end > room) {
            debug_assert!(false, "a store outside of the memory");
            return;
        }
        // SAFETY: in bounds and aligned (whole pages are allocated), and an atomic.
        let place = unsafe { &*self.memory.address.as_ptr().byte_add(at as usize).cast::<AtomicU64>() };
        place.store(word, Ordering::Release);
    }

    /// The same of an offload.
    pub(super) fn make(&self, store: &Store) {
        self.store(store.at, store.word);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        alloc::free(self.address.as_ptr());
    }
}
