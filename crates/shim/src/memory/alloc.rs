//! `rdmesh_malloc` and `rdmesh_free`: memory that is the arena's from the start.
#![allow(unsafe_code)]

use super::PAGE;
use super::arena::ARENA;
use crate::errno;
use rdmesh_preload::gate;
use rdmesh_preload::replace;
use rustix::io::{self, Errno};
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

/// Allocated blocks, by address.
static ALLOCATED: Mutex<BTreeMap<u64, Block>> = Mutex::new(BTreeMap::new());

struct Block {
    len: u64,
    /// Its offset in the arena, if it is there.
    offset: Option<u64>,
}

replace! {
    /// See `rdmesh.h`.
    fn rdmesh_malloc(size: usize) -> *mut c_void {
        match shared(size) {
            Ok(address) => address,
            Err(_) => {
                errno::set(Errno::NOMEM);
                null_mut()
            }
        }
    }

    /// See `rdmesh.h`.
    fn rdmesh_free(address: *mut c_void) -> () {
        free(address);
    }
}

/// Zeroed memory of the arena; plain memory where there is none.
pub(crate) fn shared(size: usize) -> io::Result<*mut c_void> {
    let len = (size.max(1) as u64).checked_next_multiple_of(PAGE).ok_or(Errno::NOMEM)?;
    let _gate = gate::enter();
    allocate(len)
}

/// Frees memory of [`shared`]; other addresses are ignored.
pub(crate) fn free(address: *mut c_void) {
    let _gate = gate::enter();
    let block = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner).remove(&(address as u64));
    if let Some(Block { len, offset }) = block {
        // SAFETY: the range was allocated here, and the caller gives it up.
        let _ = unsafe { rustix::mm::munmap(address, len as usize) };
        if let Some(offset) = offset {
            ARENA.lock().unwrap_or_else(PoisonError::into_inner).release(offset, len);
        }
    }
}

fn allocate(len: u64) -> io::Result<*mut c_void> {
    let mut arena = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh memory.
    let address = unsafe { rustix::mm::mmap_anonymous(null_mut(), len as usize, both, MapFlags::PRIVATE)? };
    let start = address as u64;
    let mut placed = None;
    // Where there can be no arena this stays plain memory, which works all the same.
    if arena.open().is_ok()
        && let Ok(offset) = arena.place(start, start + len, false)
        && let Some(fd) = arena.fd()
    {
        // SAFETY: replaces the fresh memory, to which no pointer exists yet.
        unsafe { rustix::mm::mmap(address, len as usize, both, MapFlags::SHARED | MapFlags::FIXED, fd, offset)? };
        placed = Some(offset);
    }
    ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner).insert(start, Block { len, offset: placed });
    Ok(address)
}
