//! Short reads and writes: a signal ends a call that has transferred some bytes with their number. Where the only signal was a stop
//! by this library, the call goes on with the rest.
//!
//! A read does so only where it cannot wait for more than without the stop: of a regular file, of `/dev/zero` and the like, and
//! with `MSG_WAITALL`. Pipes and sockets deliver what is there anyway.

#![allow(unsafe_code)]

use crate::memory;
use libc::{c_int, c_void, iovec, size_t, ssize_t};

/// The result of `call`, which is told how many of the `count` bytes are done, and made again for the rest where a stop has cut it
/// short and `goes_on`.
#[inline]
pub(super) fn whole(count: size_t, goes_on: impl Fn() -> bool, mut call: impl FnMut(size_t) -> ssize_t) -> ssize_t {
    let before = memory::shortened();
    let result = call(0);
    if memory::shortened() == before || result <= 0 {
        return result;
    }
    rest(result as size_t, count, goes_on, call)
}

/// A piece of memory that a call is made for again.
pub(super) struct Piece {
    pub(super) at: *mut c_void,
    pub(super) len: size_t,
    /// Number of bytes that were transferred before it.
    pub(super) done: size_t,
}

/// The result of `all`, which transfers `count` parts; `one` is called for what is left of each of them where a stop has cut it
/// short and `goes_on`. Nothing is allocated: a handler of the program may call it.
#[inline]
pub(super) fn whole_parts(
    parts: *const iovec,
    count: c_int,
    goes_on: impl Fn() -> bool,
    all: impl FnOnce() -> ssize_t,
    one: impl FnMut(Piece) -> ssize_t,
) -> ssize_t {
    let before = memory::shortened();
    let result = all();
    if memory::shortened() == before || result <= 0 {
        return result;
    }
    // SAFETY: the call has transferred something, so the parts can be read.
    let parts = unsafe { std::slice::from_raw_parts(parts, count as usize) };
    rest_of_parts(result as size_t, parts, goes_on, one)
}

#[cold]
fn rest_of_parts(
    first: size_t,
    parts: &[iovec],
    goes_on: impl Fn() -> bool,
    mut one: impl FnMut(Piece) -> ssize_t,
) -> ssize_t {
    let mut done = first;
    let mut end = 0;
    for part in parts {
        end += part.iov_len;
        while done < end && goes_on() {
            let (before, left) = (memory::shortened(), end - done);
            let at = part.iov_base.wrapping_byte_add(part.iov_len - left);
            let more = one(Piece { at, len: left, done });
            done += more.max(0) as size_t;
            if more <= 0 || (done < end && memory::shortened() == before) {
                return done as ssize_t;
            }
        }
    }
    done as ssize_t
}

#[cold]
fn rest(first: size_t, count: size_t, goes_on: impl Fn() -> bool, mut call: impl FnMut(size_t) -> ssize_t) -> ssize_t {
    let mut done = first;
    while done < count && goes_on() {
        let before = memory::shortened();
        let more = call(done);
        done += more.max(0) as size_t;
        if more <= 0 || memory::shortened() == before {
            break;
        }
    }
    done as ssize_t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_parts_is_transferred_part_by_part() {
        let mut bytes = [0_u8; 10];
        let at = bytes.as_mut_ptr();
        let part = |from: usize, iov_len| iovec { iov_base: at.wrapping_add(from).cast(), iov_len };
        let parts = [part(0, 3), part(3, 0), part(3, 4), part(7, 3)];
        for first in 1..=10 {
            let mut pieces = Vec::new();
            let take = |piece: Piece| {
                pieces.push((piece.at as usize - at as usize, piece.len, piece.done));
                piece.len as ssize_t
            };
            assert_eq!(rest_of_parts(first, &parts, || true, take), 10);
            assert!(pieces.iter().all(|(at, _, done)| at == done), "{pieces:?}");
            assert_eq!(pieces.iter().map(|(_, len, _)| len).sum::<usize>(), 10 - first);
        }
        // What ends early for a reason of its own ends the whole.
        assert_eq!(rest_of_parts(2, &parts, || true, |piece| piece.len as ssize_t - 1), 2);
        assert_eq!(rest_of_parts(3, &parts, || true, |piece| piece.len as ssize_t - 1), 6);
        assert_eq!(rest_of_parts(3, &parts, || true, |_| -1), 3);
        assert_eq!(rest_of_parts(3, &parts, || false, |_| unreachable!("not asked to go on")), 3);
    }
}
