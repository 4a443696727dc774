use crate::shared::SharedMemory;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};

/// The memory of a context's queues: one sparse memfd.
///
/// To the program it is the command descriptor itself, so that the provider's `mmap(cmd_fd, offset)` is an ordinary
/// `mmap` that nobody has to intercept. Offsets are never used twice; the pages of a queue that is gone are given back.
/// The device maps it in large pieces, in which the queues lie one behind the other, because the kernel limits the number of
/// a process's mappings. A piece goes with the last of its queues.
#[derive(Clone)]
pub struct QueueFile(Arc<File>);

struct File {
    fd: OwnedFd,
    mappings: Arc<AtomicU32>,
    place: Mutex<Place>,
}

/// Where the next queues go.
struct Place {
    /// What is left of the piece mapped last: its part that no queue has, and where that lies in the file.
    rest: Option<(SharedMemory, u64)>,
    /// The end of what is mapped.
    end: u64,
}

impl QueueFile {
    /// An empty file.
    pub fn create() -> io::Result<Self> {
        Self::create_counted(Arc::default())
    }

    /// An empty file, whose mappings, as long as they are there, count in `mappings`.
    pub fn create_counted(mappings: Arc<AtomicU32>) -> io::Result<Self> {
        let fd = memfd_create("rdmesh-queues", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, SIZE)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self(Arc::new(File { fd, mappings, place: Mutex::new(Place { rest: None, end: PAGE }) })))
    }

    /// The memfd, for the program.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }

    /// `len` zeroed bytes, mapped; returns them and their offset.
    pub(super) fn allocate(&self, len: usize) -> io::Result<(SharedMemory, u64)> {
        let room = len.next_multiple_of(PAGE as usize);
        let mut place = self.0.place.lock().unwrap_or_else(PoisonError::into_inner);
        if room > PIECE / 2 {
            let (memory, offset) = self.map(&mut place, room)?;
            return Ok((memory.part(0, len), offset));
        }
        let (memory, offset) = match place.rest.take() {
            Some(rest) if rest.0.len() >= room => rest,
            _ => self.map(&mut place, PIECE)?,
        };
        if memory.len() > room {
            place.rest = Some((memory.part(room, memory.len() - room), offset + room as u64));
        }
        Ok((memory.part(0, len), offset))
    }

    /// Maps the next `len` bytes.
    fn map(&self, place: &mut Place, len: usize) -> io::Result<(SharedMemory, u64)> {
        let offset = place.end;
        if len as u64 > SIZE - offset {
            return Err(io::Errno::NOSPC);
        }
        let memory = SharedMemory::map_own(self.fd(), offset, len, &self.0.mappings)?;
        place.end += len as u64;
        Ok((memory, offset))
    }

    /// Gives the pages of a queue back.
    pub(super) fn release(&self, offset: u64, len: usize) {
        let room = (len as u64).next_multiple_of(PAGE);
        // What cannot be given back now goes with the file.
        let _ = fallocate(&self.0.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, room);
    }
}

const PAGE: u64 = 4096;
/// More than all queues take that a program can make in its life.
const SIZE: u64 = 1 << 60;
/// Bytes of one mapping, of address space only. Queues that are larger, or nearly so, have mappings of their own.
const PIECE: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn many_queues_share_a_mapping() {
        let mappings = Arc::new(AtomicU32::new(0));
        let file = QueueFile::create_counted(mappings.clone()).unwrap();
        let count = || mappings.load(Ordering::Relaxed);
        let queues: Vec<_> = (0..PIECE / 8192).map(|_| file.allocate(5000).unwrap()).collect();
        assert_eq!(count(), 1);
        let next = file.allocate(1).unwrap();
        assert_eq!(count(), 2);
        assert!(queues.windows(2).all(|pair| pair[0].1 + 8192 == pair[1].1));
        drop(queues);
        assert_eq!(count(), 1);
        drop(next);
        // Its rest may yet be used.
        assert_eq!(count(), 1);
        drop(file);
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_large_queue_has_its_own_mapping_and_leaves_the_rest_to_others() {
        let mappings = Arc::new(AtomicU32::new(0));
        let file = QueueFile::create_counted(mappings.clone()).unwrap();
        let small = file.allocate(100).unwrap();
        let large = file.allocate(PIECE + 1).unwrap();
        let other = file.allocate(100).unwrap();
        assert_eq!(mappings.load(Ordering::Relaxed), 2);
        assert_eq!((large.0.len(), other.1), (PIECE + 1, small.1 + PAGE));
        assert_eq!(large.1, small.1 + PIECE as u64);
    }

    #[test]
    fn queues_begin_empty_and_the_program_sees_them_at_their_offsets() {
        let file = QueueFile::create().unwrap();
        drop(file.allocate(100).unwrap());
        let (memory, offset) = file.allocate(100).unwrap();
        let seen = SharedMemory::map(file.fd(), offset, 100, true).unwrap();
        assert_ne!(memory.as_ptr(), seen.as_ptr());
        assert!(offset.is_multiple_of(PAGE) && memory.as_ptr().addr().is_multiple_of(PAGE as usize));
    }
}
