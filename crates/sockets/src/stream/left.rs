//! `TCP_INQ` (linux/tcp.h): the count of unread bytes that `recvmsg` tells in a control message.

use super::{Channel, FIN, Stream};
use crate::kernel;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether a connection has the option: the kernel is asked when it is first of interest, because who accepts inherits it.
pub(super) struct Asked(AtomicU8);

impl Default for Asked {
    fn default() -> Self {
        Self(AtomicU8::new(UNKNOWN))
    }
}

impl Stream {
    /// As the kernel's `tcp_inq_hint`: an end that has come counts as one byte. None where the program has not asked for it.
    pub(crate) fn left_to_read(&self, fd: c_int) -> Option<c_int> {
        if self.asks_for_left.0.load(Ordering::Relaxed) == UNKNOWN {
            let is_set = kernel::option(fd, libc::IPPROTO_TCP, libc::TCP_INQ).is_some_and(|value| value != 0);
            self.asks_for_left.0.store(u8::from(is_set), Ordering::Relaxed);
        }
        if self.asks_for_left.0.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let is_all_on_ring = |channel: &&Channel| {
            self.locks.left() == Some(0) && channel.input().header.path.down_at.load(Ordering::Acquire) == 0
        };
        let (unread, ends) = match self.channel().filter(is_all_on_ring) {
            Some(channel) => {
                self.look_for_end(fd);
                (channel.input().readable().unwrap_or(0), channel.kernel())
            }
            None => (self.unread(fd), kernel::ends_of(fd)),
        };
        Some(c_int::try_from(unread + usize::from(ends & FIN != 0)).unwrap_or(c_int::MAX))
    }

    /// The program has set the option.
    pub(crate) fn ask_again_for_left(&self) {
        self.asks_for_left.0.store(UNKNOWN, Ordering::Relaxed);
    }
}

const UNKNOWN: u8 = 2;
