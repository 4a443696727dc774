//! Copies and atomics on memory that another process writes at the same time.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Copies `len` bytes; the ranges may overlap. The last bytes arrive last: programs that poll the end of a buffer for
/// the arrival of a message rely on it, as every NIC does it so.
pub(super) fn copy(from: *const u8, to: *mut u8, len: usize) {
    const TAIL: usize = 8;
    let head = len.saturating_sub(TAIL);
    #[allow(unsafe_code)]
    // SAFETY: the caller resolved both runs to `len` bytes of live mappings, or of a local buffer. Other processes may
    // change the bytes meanwhile, and then any mixture may arrive; `memmove` reads and writes in bounds whatever they are.
    unsafe {
        if head != 0 {
            std::ptr::copy(from, to, head);
            fence(Ordering::Release);
        }
        copy_tail(from.add(head), to.add(head), len - head);
    }
}

/// Copies up to eight bytes, in one store where the length is a power of two.
///
/// # Safety
/// Both runs must be valid for `len` bytes.
#[allow(unsafe_code)]
unsafe fn copy_tail(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: in bounds by the caller's promise; unaligned accesses are asked for as such.
    unsafe {
        match len {
            8 => to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()),
            4 => to.cast::<u32>().write_unaligned(from.cast::<u32>().read_unaligned()),
            2 => to.cast::<u16>().write_unaligned(from.cast::<u16>().read_unaligned()),
            1 => to.write(from.read()),
            0 => {}
            _ => std::ptr::copy(from, to, len),
        }
    }
}

pub(super) fn compare_swap(cell: *mut u8, compare: u64, swap: u64) -> u64 {
    match word(cell).compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(old) | Err(old) => old,
    }
}

pub(super) fn fetch_add(cell: *mut u8, add: u64) -> u64 {
    word(cell).fetch_add(add, Ordering::SeqCst)
}

pub(super) fn swap(cell: *mut u8, value: u64) -> u64 {
    word(cell).swap(value, Ordering::SeqCst)
}

#[allow(unsafe_code)]
fn word<'a>(cell: *mut u8) -> &'a AtomicU64 {
    // SAFETY: the caller resolved the address to eight aligned bytes of a live mapping, which outlives the call.
    unsafe { AtomicU64::from_ptr(cell.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_exactly() {
        let from: Vec<u8> = (0..100).collect();
        for len in 0..64 {
            let mut to = [0xff; 100];
            copy(from.as_ptr(), to[1..].as_mut_ptr(), len);
            assert_eq!(to[1..=len], from[..len]);
            assert_eq!((to[0], to[len + 1]), (0xff, 0xff));
        }
    }
}
