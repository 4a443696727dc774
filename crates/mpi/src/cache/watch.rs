//! Watch over registered memory: the kernel tells when it is unmapped, moved or emptied (userfaultfd(2), events of ranges).
//!
//! Symbols are not enough: an allocator's own `munmap` passes them by. The events are synchronous: the call that unmaps returns after
//! the event was read. The reader holds the index's lock from before the read until the range is out of the index, so that no
//! look-up comes between.
#![allow(unsafe_code)]

use super::index::Index;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::mm::UserfaultfdFlags;
use std::sync::{Arc, Mutex, PoisonError};

/// A userfaultfd whose events make ranges of an index stale.
pub(super) struct Watch {
    fd: OwnedFd,
}

impl Watch {
    /// Starts watching for `index`, with a thread that waits for events; none where the kernel offers no such events.
    pub(super) fn start(index: Arc<Mutex<Index>>) -> Option<Arc<Self>> {
        let watch = Arc::new(Self { fd: open()? });
        let reader = Arc::clone(&watch);
        std::thread::Builder::new()
            .name("rdmesh-mpi-watch".to_owned())
            .stack_size(64 << 10)
            .spawn(move || {
                crate::helper::block_signals();
                reader.read_events(&index);
            })
            .ok()?;
        Some(watch)
    }

    /// Adds pages to those watched; false where the kernel cannot.
    pub(super) fn add(&self, start: usize, end: usize) -> bool {
        let mut arguments = [start as u64, (end - start) as u64, MODE_WRITE_PROTECT, 0];
        self.control(IOCTL_REGISTER, &mut arguments)
    }

    /// Takes pages out of those watched. A device may replace pages that it registers, which is no event.
    pub(super) fn remove(&self, start: usize, end: usize) {
        self.control(IOCTL_UNREGISTER, &mut [start as u64, (end - start) as u64, 0, 0]);
    }

    fn control(&self, request: u64, arguments: &mut [u64; 4]) -> bool {
        // SAFETY: the requests read and write at most four words.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), request as _, arguments.as_mut_ptr()) == 0 }
    }

    /// Reads events for ever. Does not allocate: another thread may be waiting in the allocator for the event to be read.
    fn read_events(&self, index: &Mutex<Index>) {
        loop {
            let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None);
            let mut index = index.lock().unwrap_or_else(PoisonError::into_inner);
            let mut message = [0; 32];
            while rustix::io::read(&self.fd, &mut message) == Ok(message.len()) {
                if let Some((start, end)) = gone(&message) {
                    index.invalidate(start, end);
                }
            }
        }
    }
}

/// The range that is no longer what it was, of a `struct uffd_msg`.
fn gone(message: &[u8; 32]) -> Option<(usize, usize)> {
    let word = |at: usize| usize::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| message[at + byte]));
    match message[0] {
        EVENT_REMOVE | EVENT_UNMAP => Some((word(8), word(16))),
        EVENT_REMAP => Some((word(8), word(8).saturating_add(word(24)))),
        _ => None,
    }
}

fn open() -> Option<OwnedFd> {
    // By the system call itself, past libc: another preloaded library would take it for the program's own use.
    let flags =
        UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: the call takes flags only.
    let fd = unsafe { rustix::mm::userfaultfd(flags) }.ok()?;
    let mut api = [API, FEATURES, 0];
    // SAFETY: the request reads and writes three words.
    let failed = unsafe { libc::ioctl(fd.as_raw_fd(), IOCTL_API as _, api.as_mut_ptr()) };
    (failed == 0).then_some(fd)
}

// `linux/userfaultfd.h`.
const API: u64 = 0xAA;
const USER_MODE_ONLY: u32 = 1;
const MODE_WRITE_PROTECT: u64 = 1 << 1;
/// EVENT_REMAP, EVENT_REMOVE, EVENT_UNMAP, and write protection of shared memory, which is never used: with it a range has no faults.
const FEATURES: u64 = 1 << 2 | 1 << 3 | 1 << 6 | 1 << 12;
const IOCTL_API: u64 = 0xC018_AA3F;
const IOCTL_REGISTER: u64 = 0xC020_AA00;
const IOCTL_UNREGISTER: u64 = 0x8010_AA01;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

#[cfg(test)]
mod tests {
    use super::super::index::Entry;
    use super::*;
    use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
    use std::ptr::null_mut;

    const LEN: usize = 16 << 12;

    fn map() -> usize {
        // SAFETY: new memory.
        let at = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        at.unwrap() as usize
    }

    /// Each way to lose pages, at once followed by a look-up.
    #[test]
    fn memory_that_is_unmapped_moved_or_emptied_is_stale_when_the_call_returns() {
        let index = Arc::new(Mutex::new(Index::new()));
        let Some(watch) = Watch::start(Arc::clone(&index)) else {
            eprintln!("skipped: this kernel gives no userfaultfd with events");
            return;
        };
        type Lose = fn(usize);
        // SAFETY: (all) pages that this test has mapped, and that nothing refers to.
        let ways: [(&str, Lose); 5] = [
            ("munmap", |at| unsafe { rustix::mm::munmap(at as *mut _, LEN) }.unwrap()),
            ("part", |at| unsafe { rustix::mm::munmap((at + (4 << 12)) as *mut _, 1 << 12) }.unwrap()),
            ("dontneed", |at| unsafe { rustix::mm::madvise(at as *mut _, LEN, Advice::LinuxDontNeed) }.unwrap()),
            ("fixed", |at| unsafe {
                let all = ProtFlags::READ | ProtFlags::WRITE;
                rustix::mm::mmap_anonymous(at as *mut _, LEN, all, MapFlags::PRIVATE | MapFlags::FIXED).unwrap();
            }),
            ("mremap", |at| unsafe {
                rustix::mm::mremap(at as *mut _, LEN, LEN * 64, MremapFlags::MAYMOVE).unwrap();
            }),
        ];
        for (name, lose) in ways {
            let at = map();
            assert!(watch.add(at, at + LEN), "{name}");
            let index = || index.lock().unwrap();
            assert!(index().insert(Entry { start: at, end: at + LEN, slot: 7 }));
            assert_eq!(index().find(at, at + LEN), Some(7));
            lose(at);
            assert_eq!(index().find(at, at + 1), None, "{name}");
            assert_eq!(index().take_stale(), Some(7), "{name}");
        }
    }
}
