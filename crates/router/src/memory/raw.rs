//! Copies and atomics on memory that another process may write concurrently.

use rdmesh_nic::platform::Fault;
use rdmesh_uverbs::guard;
use std::sync::atomic::{AtomicU64, Ordering, fence};

struct Copy {
    from: *const u8,
    to: *mut u8,
    len: usize,
}

/// Copies `len` bytes; the ranges may overlap. The last bytes arrive last: programs that poll the end of a buffer for
/// the arrival of a message rely on it, as every NIC does it so. A fault where pages have gone.
pub(super) fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Fault> {
    attempt(copy_all, &mut Copy { from, to, len })
}

extern "C" fn copy_all(&mut Copy { from, to, len }: &mut Copy) {
    const TAIL: usize = 8;
    let head = len.saturating_sub(TAIL);
    #[allow(unsafe_code)]
    // SAFETY: the caller resolved both runs to `len` bytes of live mappings, or of a local buffer. Other processes may
    // change the bytes meanwhile, and then any mixture may arrive; `memmove` reads and writes in bounds for all values.
    unsafe {
        if head != 0 {
            std::ptr::copy(from, to, head);
            fence(Ordering::Release);
        }
        copy_tail(from.add(head), to.add(head), len - head);
    }
}

/// Copies `len` bytes into a ring: each aligned word of it in one store, because its other side may read it meanwhile. The ranges
/// may overlap. A fault where pages have gone.
pub(super) fn copy_words(from: *const u8, to: *mut u8, len: usize) -> Result<(), Fault> {
    attempt(copy_all_words, &mut Copy { from, to, len })
}

extern "C" fn copy_all_words(&mut Copy { from, to, len }: &mut Copy) {
    const WORD: usize = size_of::<u64>();
    let head = (to.addr().wrapping_neg() % WORD).min(len);
    let tail = head + (len - head) / WORD * WORD;
    let byte = |at: usize| {
        #[allow(unsafe_code)]
        // SAFETY: as in `copy_all`; both runs have `len` bytes, and `at` is less. Volatile, because they may be shared.
        unsafe {
            to.add(at).write_volatile(from.add(at).read_volatile());
        }
    };
    let copy_word = |at: usize| {
        #[allow(unsafe_code)]
        // SAFETY: as above; the eight bytes at `at` are within.
        let value = unsafe { from.add(at).cast::<u64>().read_unaligned() };
        word(to.wrapping_add(at)).store(value, Ordering::Release);
    };
    // From the end where the bytes after `from` would be overwritten before they are read.
    if to.addr().wrapping_sub(from.addr()) < len {
        (tail..len).rev().for_each(byte);
        (head..tail).rev().step_by(WORD).for_each(|last| copy_word(last + 1 - WORD));
        (0..head).rev().for_each(byte);
    } else {
        (0..head).for_each(byte);
        (head..tail).step_by(WORD).for_each(copy_word);
        (tail..len).for_each(byte);
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

/// Whole aligned words that another process may write, and where they go.
struct Words<'a> {
    from: *mut u8,
    to: &'a mut [u64],
}

/// Copies aligned words out, each of them at once. A fault where pages have gone.
pub(super) fn load(from: *mut u8, to: &mut [u64]) -> Result<(), Fault> {
    extern "C" fn execute(words: &mut Words<'_>) {
        for (i, to) in words.to.iter_mut().enumerate() {
            *to = word(words.from.wrapping_add(i * size_of::<u64>())).load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
    }
    attempt(execute, &mut Words { from, to })
}

/// An atomic on eight aligned bytes, and what it finds there.
struct Atomic {
    cell: *mut u8,
    operands: [u64; 2],
    old: u64,
}

pub(super) fn compare_swap(cell: *mut u8, compare: u64, swap: u64) -> Result<u64, Fault> {
    extern "C" fn execute(atomic: &mut Atomic) {
        let [compare, swap] = atomic.operands;
        let result = word(atomic.cell).compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        atomic.old = result.unwrap_or_else(|old| old);
    }
    run(execute, cell, [compare, swap])
}

pub(super) fn fetch_add(cell: *mut u8, add: u64) -> Result<u64, Fault> {
    extern "C" fn execute(atomic: &mut Atomic) {
        atomic.old = word(atomic.cell).fetch_add(atomic.operands[0], Ordering::SeqCst);
    }
    run(execute, cell, [add, 0])
}

pub(super) fn swap(cell: *mut u8, value: u64) -> Result<u64, Fault> {
    extern "C" fn execute(atomic: &mut Atomic) {
        atomic.old = word(atomic.cell).swap(atomic.operands[0], Ordering::SeqCst);
    }
    run(execute, cell, [value, 0])
}

fn run(execute: extern "C" fn(&mut Atomic), cell: *mut u8, operands: [u64; 2]) -> Result<u64, Fault> {
    let mut atomic = Atomic { cell, operands, old: 0 };
    attempt(execute, &mut atomic)?;
    Ok(atomic.old)
}

#[inline]
fn attempt<A>(f: extern "C" fn(&mut A), args: &mut A) -> Result<(), Fault> {
    guard::attempt(f, args).map_err(|guard::Missing| Fault::Gone)
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
    fn words_are_loaded_in_order() {
        let mut from = [1_u64, 2, 3, 4];
        let mut to = [0; 3];
        load(from[1..].as_mut_ptr().cast(), &mut to).unwrap();
        assert_eq!(to, [2, 3, 4]);
    }

    #[test]
    fn words_of_a_ring_are_copied_as_bytes_would_be() {
        for (from, to) in (0..20).flat_map(|from| (0..20).map(move |to| (from, to))) {
            for len in [0, 1, 7, 8, 9, 23, 24, 40] {
                let mut words: [u64; 8] = std::array::from_fn(|n| 0x0101_0101_0101_0101 * n as u64);
                let mut expected: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                expected.copy_within(from..from + len, to);
                let base = words.as_mut_ptr().cast::<u8>();
                copy_words(base.wrapping_add(from), base.wrapping_add(to), len).unwrap();
                let found: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert_eq!(found, expected, "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn every_length_is_copied_exactly() {
        let from: Vec<u8> = (0..100).collect();
        for len in 0..64 {
            let mut to = [0xff; 100];
            copy(from.as_ptr(), to[1..].as_mut_ptr(), len).unwrap();
            assert_eq!(to[1..=len], from[..len]);
            assert_eq!((to[0], to[len + 1]), (0xff, 0xff));
        }
    }
}
