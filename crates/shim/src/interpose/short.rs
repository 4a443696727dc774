//! Short reads and writes: a signal ends a call that has transferred some bytes with their number. Where the only signal was a stop
//! by this library, the call goes on with the rest.
//!
//! A read does so only where it cannot wait for more than without the stop: of a regular file, of `/dev/zero` and the like, and
//! with `MSG_WAITALL`. Pipes and sockets deliver what is there anyway.

use crate::memory;
use libc::{size_t, ssize_t};

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
