//! Pinned memory of programs, and its guest-physical addresses.
//!
//! A page is pinned as a registered buffer of io_uring, which alone keeps it where it is: locked pages and huge ones move. The pin is
//! the agent's, on a mapping of its own, so it outlives the program. A page that the program gives up meanwhile stays the
//! pin's: the host never reaches one that has become something else's.

use io_uring::IoUring;
use rdmesh_uverbs::shared::SharedMemory;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

/// A table of pinned ranges.
pub(super) struct PinTable {
    ring: IoUring,
    pagemap: File,
    slots: Mutex<Slots>,
}

/// Free places of the table.
struct Slots {
    free: Vec<u32>,
    used: u32,
}

/// A pinned range; given back on drop.
pub(super) struct Pin {
    table: Arc<PinTable>,
    slots: Vec<u32>,
    memory: SharedMemory,
    /// Guest-physical address of each page.
    addresses: Vec<u64>,
}

impl PinTable {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let ring = IoUring::new(1)?;
        ring.submitter().register_buffers_sparse(SLOTS)?;
        let pagemap = File::open("/proc/self/pagemap")?;
        Ok(Arc::new(Self { ring, pagemap, slots: Mutex::new(Slots { free: Vec::new(), used: 0 }) }))
    }

    /// Pins the pages of `len` bytes at `offset` of a program's sealed memfd; `offset` is a multiple of the page size.
    pub(super) fn pin(self: &Arc<Self>, file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Pin> {
        let memory = SharedMemory::map(file, offset, len, true).map_err(rustix::io::Errno::from)?;
        let mut pin = Pin { table: Arc::clone(self), slots: Vec::new(), memory, addresses: Vec::new() };
        for at in (0..len).step_by(MOST_BYTES) {
            let slot = self.take_slot()?;
            pin.slots.push(slot);
            let base = pin.memory.as_ptr().wrapping_add(at);
            self.set(slot, libc::iovec { iov_base: base.cast(), iov_len: (len - at).min(MOST_BYTES) })?;
        }
        // After the pin, which itself may have moved pages.
        pin.addresses = self.addresses(&pin.memory)?;
        Ok(pin)
    }

    fn take_slot(&self) -> io::Result<u32> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.free.pop() {
            return Ok(slot);
        }
        if slots.used == SLOTS {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        slots.used += 1;
        Ok(slots.used - 1)
    }

    #[allow(unsafe_code)]
    fn set(&self, slot: u32, buffer: libc::iovec) -> io::Result<()> {
        // SAFETY: the buffer is a mapping of the pin's that owns the slot, which clears the slot before it is unmapped; or it is
        // empty. No request of this ring ever uses it.
        unsafe { self.ring.submitter().register_buffers_update(slot, &[buffer], None) }
    }

    fn addresses(&self, memory: &SharedMemory) -> io::Result<Vec<u64>> {
        let pages = memory.len().div_ceil(PAGE);
        let mut entries = vec![0; pages * 8];
        self.pagemap.read_exact_at(&mut entries, (memory.as_ptr().addr() / PAGE * 8) as u64)?;
        let (entries, _) = entries.as_chunks::<8>();
        entries.iter().map(|entry| address(u64::from_ne_bytes(*entry))).collect()
    }
}

/// The address of the page that an entry of `/proc/PID/pagemap` shows.
fn address(entry: u64) -> io::Result<u64> {
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    match (entry & PRESENT != 0, entry & FRAME) {
        (true, frame @ 1..) => Ok(frame * PAGE as u64),
        // Present, but hidden.
        (true, 0) => Err(io::Error::new(io::ErrorKind::PermissionDenied, "the agent may not see physical addresses")),
        (false, _) => Err(io::ErrorKind::NotFound.into()),
    }
}

impl Pin {
    /// Guest-physical address of each page.
    pub(super) fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// The agent's own mapping of the range.
    pub(super) fn memory(&self) -> &SharedMemory {
        &self.memory
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        for slot in &self.slots {
            let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
            if self.table.set(*slot, empty).is_ok() {
                self.table.slots.lock().unwrap_or_else(PoisonError::into_inner).free.push(*slot);
            }
        }
    }
}

const PAGE: usize = 4096;
/// Places of a table: as many as io_uring allows.
const SLOTS: u32 = 1 << 14;
/// Bytes of one registered buffer that io_uring allows.
const MOST_BYTES: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// Needs root, to see addresses, and io_uring.
    #[test]
    fn a_pinned_page_is_not_lost_when_its_program_gives_it_up() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: needs root");
        }
        let table = PinTable::new().unwrap();
        let (program, fd) = SharedMemory::create("pinned", 4 * PAGE).unwrap();
        let pin = table.pin(fd.as_fd(), PAGE as u64, 2 * PAGE).unwrap();
        assert!(pin.addresses().len() == 2 && pin.addresses().iter().all(|at| at.is_multiple_of(PAGE as u64)));
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&fd, flags, 0, 4 * PAGE as u64).unwrap();
        drop(program);
        // What the program has there now is another page.
        let again = table.pin(fd.as_fd(), PAGE as u64, 2 * PAGE).unwrap();
        assert!(again.addresses().iter().all(|address| !pin.addresses().contains(address)));
        drop((pin, again));
        assert_eq!(table.slots.lock().unwrap().free.len(), 2);
    }
}
