//! Descriptors that a library keeps to itself, safe from a program that closes everything it did not open.
#![allow(unsafe_code)]

use crate::real;
use libc::{c_int, c_uint};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;
/// The library's own descriptors go above this, away from the numbers that programs name themselves.
const OWN_FROM: RawFd = 512;

/// A bit for each of as many numbers.
type Chunk = [AtomicU64; CHUNK / 64];

static MARKS: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];

/// A descriptor of the library: out of the way, close-on-exec, and known to [`is_own`].
pub struct OwnFd(OwnedFd);

impl OwnFd {
    /// Takes `fd` over.
    pub fn new(fd: OwnedFd) -> Self {
        let fd = rustix::io::fcntl_dupfd_cloexec(&fd, OWN_FROM).unwrap_or(fd);
        mark(fd.as_raw_fd());
        Self(fd)
    }

    /// Lets go of a number that the program has closed: what has it now is the program's.
    pub fn abandon(self) {
        let number = self.0.as_raw_fd();
        std::mem::forget(self);
        clear(number);
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        clear(self.0.as_raw_fd());
    }
}

/// Whether `fd` is a descriptor of the library.
pub fn is_own(fd: RawFd) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

/// Closes the descriptors `first..=last` except for the library's, as `close_range` with `flags` does.
pub fn close_between(first: c_uint, last: c_uint, flags: c_uint) -> c_int {
    let (mut from, mut result) = (first, 0);
    for_each(|fd| {
        let number = fd.cast_unsigned();
        if number < from || number > last {
            return;
        }
        if number > from {
            result |= close_span(from, number - 1, flags);
        }
        from = number + 1;
    });
    if from <= last {
        result |= close_span(from, last, flags);
    }
    result
}

/// `close_range`, also where libc or the kernel has none.
fn close_span(first: c_uint, last: c_uint, flags: c_uint) -> c_int {
    let result = real::close_range(first, last, flags);
    if result == 0 || !crate::errno::is(rustix::io::Errno::NOSYS) {
        return result;
    }
    // SAFETY: asks for a number.
    let open_max = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.clamp(0, 1 << 20) as c_uint;
    for fd in first..=last.min(open_max) {
        real::close(fd as c_int);
    }
    0
}

/// Calls `visit` for every descriptor of the library, in ascending order.
fn for_each(mut visit: impl FnMut(RawFd)) {
    for (high, chunk) in MARKS.iter().enumerate() {
        // SAFETY: chunks are never freed.
        let Some(chunk) = (unsafe { chunk.load(Ordering::Acquire).as_ref() }) else { continue };
        let numbers = chunk.iter().enumerate().flat_map(|(at, word)| {
            let word = word.load(Ordering::Relaxed);
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| at * 64 + bit)
        });
        numbers.for_each(|low| visit((high * CHUNK + low) as RawFd));
    }
}

fn mark(fd: RawFd) {
    if bit(fd).is_none() {
        add_chunk(fd);
    }
    if let Some((word, bit)) = bit(fd) {
        word.fetch_or(bit, Ordering::AcqRel);
    }
}

/// `fd` is no descriptor of the library any more.
pub(crate) fn clear(fd: RawFd) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::AcqRel);
    }
}

fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    // SAFETY: chunks are never freed.
    let chunk = unsafe { MARKS.get(fd / CHUNK)?.load(Ordering::Acquire).as_ref() }?;
    Some((&chunk[fd % CHUNK / 64], 1 << (fd % 64)))
}

#[cold]
fn add_chunk(fd: RawFd) {
    let Some(slot) = usize::try_from(fd).ok().and_then(|fd| MARKS.get(fd / CHUNK)) else { return };
    let chunk = Box::into_raw(Box::new([const { AtomicU64::new(0) }; CHUNK / 64]));
    if slot.compare_exchange(null_mut(), chunk, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was faster; this one was never shared.
        drop(unsafe { Box::from_raw(chunk) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_descriptors_are_out_of_the_way() {
        let fd = OwnFd::new(rustix::pipe::pipe().unwrap().0);
        let number = fd.as_fd().as_raw_fd();
        assert!(number >= OWN_FROM);
        assert!(is_own(number));
        let mut seen = Vec::new();
        for_each(|fd| seen.push(fd));
        assert!(seen.contains(&number) && seen.is_sorted());
        drop(fd);
        assert!(!is_own(number));
    }

    #[test]
    fn numbers_out_of_range_are_nobodys() {
        for fd in [-1, i32::MIN, i32::MAX] {
            mark(fd);
            assert!(!is_own(fd));
        }
    }

    #[test]
    fn a_range_is_closed_but_for_the_librarys_descriptors() {
        // Far from those of other tests.
        let (end, _other) = rustix::pipe::pipe().unwrap();
        let [below, own, above] = [(); 3].map(|()| rustix::io::fcntl_dupfd_cloexec(&end, 800).unwrap());
        let numbers = [&below, &own, &above].map(AsRawFd::as_raw_fd);
        mark(numbers[1]);
        let [below, above] = [below, above].map(std::mem::ManuallyDrop::new);
        assert_eq!(close_between(numbers[0].cast_unsigned(), numbers[2].cast_unsigned(), 0), 0);
        let is_open = |fd: &OwnedFd| rustix::io::fcntl_getfd(fd).is_ok();
        assert!(!is_open(&below) && is_open(&own) && !is_open(&above));
        clear(numbers[1]);
    }
}
