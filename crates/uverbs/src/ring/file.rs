//! Queue file: the memfd in which all queues of a context lie.

use crate::guard::Alarm;
use crate::session::guest::{MAX_PAGES, Pages};
use crate::shared::{Keep, MapError, SharedMemory};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory of a context's queues: one sparse memfd, which the program makes.
///
/// To the program it is the command descriptor itself, so that the provider's `mmap(cmd_fd, offset)` is an ordinary `mmap` that
/// the library need not intercept. Offsets are never used twice; the pages of a destroyed queue are given back. The device maps
/// it in large pieces, in which the queues lie one behind the other, because the kernel limits the number of a process's
/// mappings. A piece goes with the last of its queues.
///
/// The program populates the pages before the device uses them, so that they are charged to the program: a queue for which
/// there are no pages is refused, and [`QueueFile::take_wanted`] returns the extent to be populated.
#[derive(Clone)]
pub struct QueueFile(Arc<File>);

/// Charge for a mapping of so many bytes, kept until it is unmapped.
pub type Charge = Box<dyn Keep>;

struct File {
    source: Source,
    alarm: Alarm,
    charge: Box<dyn Fn(usize) -> io::Result<Charge> + Send + Sync>,
    /// Whether the pages are made here, because both ends are one process.
    fills: bool,
    place: Mutex<Tail>,
    bad_indices: AtomicU64,
}

/// Origin of the pages.
enum Source {
    /// A memfd in which they lie at their offsets.
    File(OwnedFd),
    /// The memory of a virtual machine, in which they lie anywhere.
    Guest { memory: OwnedFd, places: Mutex<Places> },
}

/// The pages that a guest has named and that no queue has yet: place of each in its memory, by offset in the file.
#[derive(Default)]
struct Places(BTreeMap<u64, u64>);

/// Tail of the file: the place of the next queues.
struct Tail {
    /// The piece mapped last for small queues, its offset in the file, and the length in use.
    piece: Option<(SharedMemory, u64)>,
    taken: usize,
    /// The end of what is mapped.
    end: u64,
    /// The extent that the program must populate.
    wanted: Option<Extent>,
    /// Bytes that it populates at a time.
    step: u64,
}

/// A range of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its first byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl QueueFile {
    /// A new file for [`QueueFile::adopt`], made by the program.
    pub fn memfd() -> io::Result<OwnedFd> {
        let fd = memfd_create("rdmesh-queues", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, SIZE)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(fd)
    }

    /// Populates a range, charged to the calling process.
    pub fn fill(fd: BorrowedFd<'_>, extent: Extent) -> io::Result<()> {
        io::retry_on_intr(|| fallocate(fd, FallocateFlags::KEEP_SIZE, extent.offset, extent.len))
    }

    /// An empty file, both ends of which are this process's.
    pub fn create() -> io::Result<Self> {
        Ok(Self::new(Source::File(Self::memfd()?), Alarm::default(), Box::new(|_| Ok(Box::new(()))), true))
    }

    /// A file that the other side has made. Each mapping of so many bytes is preceded by a call of `charge`. Where pages are
    /// taken away later, `alarm` is raised.
    pub fn adopt(
        fd: OwnedFd,
        alarm: &Alarm,
        charge: impl Fn(usize) -> io::Result<Charge> + Send + Sync + 'static,
    ) -> Result<Self, MapError> {
        // Errors are found now, not with the first queue.
        SharedMemory::map(fd.as_fd(), SIZE - PAGE, PAGE as usize, true)?;
        Ok(Self::new(Source::File(fd), alarm.clone(), Box::new(charge), false))
    }

    /// A file whose pages are those of `memory`, a virtual machine's, that [`QueueFile::add_pages`] names.
    pub fn in_guest(
        memory: OwnedFd,
        alarm: &Alarm,
        charge: impl Fn(usize) -> io::Result<Charge> + Send + Sync + 'static,
    ) -> Self {
        let source = Source::Guest { memory, places: Mutex::default() };
        Self::new(source, alarm.clone(), Box::new(charge), false)
    }

    fn new(
        source: Source,
        alarm: Alarm,
        charge: Box<dyn Fn(usize) -> io::Result<Charge> + Send + Sync>,
        fills: bool,
    ) -> Self {
        let place = Tail { piece: None, taken: 0, end: PAGE, wanted: None, step: FIRST_STEP };
        Self(Arc::new(File { source, alarm, charge, fills, place: Mutex::new(place), bad_indices: AtomicU64::new(0) }))
    }

    /// The memfd; none of a virtual machine's.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        if let Source::File(fd) = &self.0.source { Some(fd.as_fd()) } else { None }
    }

    /// Names pages in a virtual machine's memory. EINVAL where it is not one's, ENOMEM where there are too many.
    pub fn add_pages(&self, named: &Pages) -> io::Result<()> {
        let Source::Guest { places, .. } = &self.0.source else { return Err(io::Errno::INVAL) };
        let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.0.len() + named.places.len() > MAX_PAGES {
            return Err(io::Errno::NOMEM);
        }
        places.0.extend((named.offset..).step_by(PAGE as usize).zip(named.places.iter().copied()));
        Ok(())
    }

    /// The extent that the program must populate before the queue that was refused just now can be made.
    pub fn take_wanted(&self) -> Option<Extent> {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner).wanted.take()
    }

    /// Takes the count of indices beyond their rings that the program wrote, in all queues, since the last call.
    pub fn take_bad_indices(&self) -> u64 {
        self.0.bad_indices.swap(0, Ordering::Relaxed)
    }

    pub(super) fn count_bad_index(&self) {
        self.0.bad_indices.fetch_add(1, Ordering::Relaxed);
    }

    /// `len` zeroed bytes, mapped; returns them and their offset. ENODATA where the program has to populate them.
    pub(super) fn allocate(&self, len: usize) -> io::Result<(SharedMemory, u64)> {
        let room = len.next_multiple_of(PAGE as usize);
        let mut place = self.0.place.lock().unwrap_or_else(PoisonError::into_inner);
        if room > PIECE / 2 {
            let (memory, offset) = self.map(&place, room)?;
            self.require(&mut place, &memory, offset, room)?;
            place.end += room as u64;
            return Ok((memory.part(0, len), offset));
        }
        let taken = place.taken;
        let (piece, base) = match place.piece.take().filter(|(piece, _)| piece.len() - taken >= room) {
            Some(piece) => piece,
            None => {
                let piece = self.map(&place, PIECE)?;
                (place.end, place.taken) = (place.end + PIECE as u64, 0);
                piece
            }
        };
        place.piece = Some((piece.clone(), base));
        let rest = piece.part(place.taken, piece.len() - place.taken);
        let offset = base + place.taken as u64;
        self.require(&mut place, &rest, offset, room)?;
        place.taken += room;
        if place.taken == PIECE {
            place.piece = None;
        }
        Ok((rest.part(0, len), offset))
    }

    /// Takes the queue of `len` bytes at `offset`, which was allocated last and is still empty, back.
    pub(super) fn cancel(&self, offset: u64, len: usize) {
        let room = len.next_multiple_of(PAGE as usize);
        let end = offset + room as u64;
        let mut place = self.0.place.lock().unwrap_or_else(PoisonError::into_inner);
        match &place.piece {
            // One that ends where this piece begins is the last of the piece before.
            Some((_, base)) if *base <= offset && base + place.taken as u64 == end => place.taken -= room,
            _ if place.end == end && room > PIECE / 2 => place.end -= room as u64,
            _ => {
                drop(place);
                self.release(offset, len);
            }
        }
    }

    /// Makes sure that the first `room` bytes of `memory` have pages.
    fn require(&self, place: &mut Tail, memory: &SharedMemory, offset: u64, room: usize) -> io::Result<()> {
        let populated = match &self.0.source {
            Source::File(fd) => {
                if self.0.fills {
                    Self::fill(fd.as_fd(), Extent { offset, len: room as u64 })?;
                }
                memory.populate(0, room)
            }
            Source::Guest { memory: guest, places } => {
                let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
                places.put(memory, guest.as_fd(), Extent { offset, len: room as u64 })
            }
        };
        match populated {
            Err(io::Errno::FAULT) => {
                let len = (room as u64).max(place.step).min(memory.len() as u64);
                place.wanted = Some(Extent { offset, len });
                place.step = (place.step * 2).min(PIECE as u64);
                Err(io::Errno::NODATA)
            }
            result => result,
        }
    }

    /// Maps the next `len` bytes.
    fn map(&self, place: &Tail, len: usize) -> io::Result<(SharedMemory, u64)> {
        let offset = place.end;
        if len as u64 > SIZE - offset {
            return Err(io::Errno::NOSPC);
        }
        let charge = (self.0.charge)(len)?;
        let memory = match &self.0.source {
            Source::File(fd) => SharedMemory::map_watched(fd.as_fd(), offset, len, &self.0.alarm, charge)?,
            Source::Guest { .. } => SharedMemory::reserve_watched(len, &self.0.alarm, charge)?,
        };
        Ok((memory, offset))
    }

    /// Gives the pages of a queue back.
    pub(super) fn release(&self, offset: u64, len: usize) {
        let room = (len as u64).next_multiple_of(PAGE);
        match &self.0.source {
            // Pages that cannot be given back now are freed with the file.
            Source::File(fd) => {
                let _ = fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, room);
            }
            // They are the guest's: it gives them back with its own file.
            Source::Guest { .. } => {}
        }
    }
}

impl Places {
    /// Puts the pages of `extent` at the beginning of `memory`, which is reserved for them, and forgets their names. EFAULT where
    /// some of them have not been named.
    fn put(&mut self, memory: &SharedMemory, guest: BorrowedFd<'_>, extent: Extent) -> io::Result<()> {
        let Extent { offset, len } = extent;
        let named = self.0.range(offset..offset + len);
        let pages = Pages { offset, places: named.map(|(_, place)| *place).collect() };
        if pages.places.len() as u64 * PAGE != len {
            return Err(io::Errno::FAULT);
        }
        for (index, place, count) in pages.runs() {
            memory.place(index * PAGE as usize, guest, place, count * PAGE as usize)?;
        }
        memory.populate(0, len as usize)?;
        self.0.retain(|at, _| !(offset..offset + len).contains(at));
        Ok(())
    }
}

const PAGE: u64 = 4096;
/// More than all queues that a program can ever make.
const SIZE: u64 = 1 << 60;
/// Bytes of one mapping, of address space only. Queues that are larger, or nearly so, have mappings of their own.
const PIECE: usize = 16 << 20;
/// Bytes that a program populates first; doubled each time, up to a piece.
const FIRST_STEP: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Counts the mappings that there are.
    struct Counted(Arc<AtomicUsize>);

    impl Keep for Counted {}

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn counted(mappings: &Arc<AtomicUsize>) -> QueueFile {
        let mappings = mappings.clone();
        let charge = move |_| -> io::Result<Charge> {
            mappings.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Counted(mappings.clone())))
        };
        QueueFile::new(Source::File(QueueFile::memfd().unwrap()), Alarm::default(), Box::new(charge), true)
    }

    #[test]
    fn many_queues_share_a_mapping() {
        let mappings = Arc::default();
        let file = counted(&mappings);
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
        let mappings = Arc::default();
        let file = counted(&mappings);
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
        let seen = SharedMemory::map(file.fd().unwrap(), offset, 100, true).unwrap();
        assert_ne!(memory.as_ptr(), seen.as_ptr());
        assert!(offset.is_multiple_of(PAGE) && memory.as_ptr().addr().is_multiple_of(PAGE as usize));
    }

    #[test]
    fn the_program_fills_in_what_its_queues_need() {
        assert!(crate::guard::install(), "this kernel has no userfaultfd");
        let fd = QueueFile::memfd().unwrap();
        let file = QueueFile::adopt(fd.try_clone().unwrap(), &Alarm::default(), |_| Ok(Box::new(()))).unwrap();
        let pages = || rustix::fs::fstat(&fd).unwrap().st_blocks / 8;
        let mut asked = 0;
        for len in [100, 5000, PIECE + 1, 200_000, 300, PIECE / 2] {
            let before = pages();
            match file.allocate(len) {
                Err(io::Errno::NODATA) => asked += 1,
                Ok(_) => continue,
                Err(other) => panic!("{other}"),
            }
            assert_eq!(pages(), before, "a page was made in the program's place");
            let wanted = file.take_wanted().unwrap();
            assert!(wanted.len as usize >= len);
            QueueFile::fill(fd.as_fd(), wanted).unwrap();
            let (memory, offset) = file.allocate(len).unwrap();
            assert_eq!((offset, memory.len()), (wanted.offset, len));
        }
        assert_eq!((asked, file.take_wanted()), (4, None));
    }

    #[test]
    fn the_last_queue_of_a_piece_is_taken_back_after_the_next_piece_was_begun() {
        let fd = QueueFile::memfd().unwrap();
        QueueFile::fill(fd.as_fd(), Extent { offset: PAGE, len: PIECE as u64 }).unwrap();
        assert!(crate::guard::install(), "this kernel has no userfaultfd");
        let file = QueueFile::adopt(fd, &Alarm::default(), |_| Ok(Box::new(()))).unwrap();
        let first = file.allocate(PIECE / 2 - PAGE as usize).unwrap();
        let last = file.allocate(PIECE / 2).unwrap();
        let room = PAGE as usize;
        let filler = file.allocate(room).unwrap();
        assert_eq!(filler.1, last.1 + last.0.len() as u64);
        assert_eq!(file.allocate(room).err(), Some(io::Errno::NODATA));
        file.cancel(filler.1, room);
        assert_eq!(file.allocate(room).err(), Some(io::Errno::NODATA));
        let wanted = file.take_wanted().unwrap();
        assert_eq!(wanted.offset, first.1 + PIECE as u64);
    }

    #[test]
    fn a_queue_that_is_taken_back_leaves_its_place_to_the_next() {
        let file = QueueFile::create().unwrap();
        drop(file.allocate(100).unwrap());
        for len in [5000, PIECE + 1] {
            let offset = file.allocate(len).unwrap().1;
            file.cancel(offset, len);
            assert_eq!(file.allocate(len).unwrap().1, offset);
        }
    }

    #[test]
    fn a_file_of_another_kind_is_refused() {
        let charge = |_: usize| -> io::Result<Charge> { Ok(Box::new(())) };
        let (_memory, short) = SharedMemory::create("test", 4096).unwrap();
        assert!(matches!(QueueFile::adopt(short, &Alarm::default(), charge), Err(MapError::TooShort)));
        let open = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, SIZE).unwrap();
        assert!(matches!(QueueFile::adopt(open, &Alarm::default(), charge), Err(MapError::NotSealed)));
    }
}
