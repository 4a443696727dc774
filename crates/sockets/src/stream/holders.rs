//! Counts of the processes that have a connection, in memory that forks share.
//!
//! No call tells a process whether others have its socket too, so the processes of a family count themselves: one more before each
//! fork, one less where a process closes its last descriptor. One that ends without a close is counted for ever, which leaves the
//! connection on TCP.
#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reference to a count: cell and use of the cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holders(NonZeroU64);

/// Counts, reused in turn. One whose cell serves another connection by now is lost.
#[repr(C)]
struct Counts {
    next: AtomicU64,
    /// Use of the cell in the upper half, number of processes in the lower one.
    cells: [AtomicU64; CELLS],
}

impl Holders {
    /// A count of two processes: this one, and the child that it is about to have. None where there is no memory.
    pub(super) fn of_fork() -> Option<Self> {
        Self::among(counts()?)
    }

    fn among(counts: &Counts) -> Option<Self> {
        let ticket = counts.next.fetch_add(1, Ordering::Relaxed);
        let (cell, used) = (ticket % CELLS as u64, (ticket / CELLS as u64 + 1) & USES);
        counts.cells[cell as usize].store(used << 32 | 2, Ordering::SeqCst);
        NonZeroU64::new(used << 32 | cell).map(Self)
    }

    /// The reference that a word holds; 0 is none.
    pub(super) fn of_word(word: u64) -> Option<Self> {
        NonZeroU64::new(word).map(Self)
    }

    pub(super) fn word(self) -> u64 {
        self.0.get()
    }

    /// One process more.
    pub(super) fn add(self) {
        self.change(|count| count.saturating_add(1));
    }

    /// One process less.
    pub(super) fn remove(self) {
        self.change(|count| count.saturating_sub(1));
    }

    /// Number of processes; none where the count is lost.
    pub(super) fn count(self) -> Option<u32> {
        let word = self.cell()?.load(Ordering::SeqCst);
        (word >> 32 == self.word() >> 32).then_some(word as u32)
    }

    fn change(self, by: impl Fn(u32) -> u32) {
        let used = self.word() >> 32;
        let changed = |word: u64| (word >> 32 == used).then(|| used << 32 | u64::from(by(word as u32)));
        if let Some(cell) = self.cell() {
            let _ = cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed);
        }
    }

    fn cell(self) -> Option<&'static AtomicU64> {
        counts()?.cells.get(self.word() as u32 as usize)
    }
}

/// The counts of this family of processes, made before the first fork that needs one.
fn counts() -> Option<&'static Counts> {
    static COUNTS: OnceLock<Option<&'static Counts>> = OnceLock::new();
    *COUNTS.get_or_init(|| {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), size_of::<Counts>(), prot, MapFlags::SHARED).ok()? };
        // SAFETY: as long as the struct, aligned to a page, never unmapped; atomics, for which every content is valid.
        Some(unsafe { &*base.cast() })
    })
}

/// Connections whose counts are kept at a time.
const CELLS: usize = 1 << 16;
/// Highest number of a cell's uses.
const USES: u64 = u32::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_counted_until_the_cell_serves_another_connection() {
        let holders = Holders::of_fork().expect("memory");
        holders.add();
        assert_eq!(holders.count(), Some(3));
        holders.remove();
        holders.remove();
        assert_eq!((holders.count(), Holders::of_word(holders.word())), (Some(1), Some(holders)));
        assert_eq!(Holders::of_word(0), None);
        for _ in 0..CELLS {
            Holders::of_fork().expect("memory");
        }
        assert_eq!(holders.count(), None);
        holders.remove();
        let others = counts().expect("memory").cells.iter().filter(|cell| cell.load(Ordering::SeqCst) as u32 != 2);
        assert_eq!(others.count(), 0, "a lost count is changed by nobody");
    }
}
