//! Receiving from a stream.

use super::relayed::Look;
use super::send::rest_of;
use super::wait::{Deadline, Way};
use super::{Channel, ENDED, FIN, READY, Stream};
use crate::kernel;
use crate::spin::now;
use rdmesh_preload::real;
use rdmesh_streams::report::Reason;
use rdmesh_streams::ring::{Corrupt, Piece};
use rustix::io::Errno;
use std::ffi::c_int;
use std::sync::atomic::Ordering;

/// Sources of a direction's bytes, in their order: TCP, the ring, TCP again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    BeforeRing,
    Ring,
    BehindRing,
}

impl Stream {
    /// Receives into the pieces as `recvmsg` with `flags` does: what is there, up to all of it with `MSG_WAITALL`. Waits for
    /// something unless the socket does not wait.
    pub(crate) fn receive(&self, fd: c_int, pieces: &[Piece], flags: c_int) -> Result<usize, Errno> {
        self.leave_parents_rings(fd);
        if flags & libc::MSG_OOB != 0 {
            self.move_to_tcp(fd, Reason::Option);
            return kernel::receive(fd, pieces, flags);
        }
        if flags & libc::MSG_ERRQUEUE != 0 {
            return kernel::receive(fd, pieces, flags);
        }
        let total: usize = pieces.iter().map(|piece| piece.len).sum();
        if total == 0 {
            // A `recv` of nothing fails where there is nothing; a `read` of nothing does not come here.
            let fails = flags & libc::MSG_DONTWAIT != 0 && !self.is_readable(fd);
            return if fails { Err(Errno::AGAIN) } else { Ok(0) };
        }
        let wants_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
        let (mut done, mut deadline, mut kept) = (0, None, None);
        // Behind the last bytes of one source there may be some of the next, which are there as well.
        let (mut source, mut is_next_source) = (self.source(fd), false);
        loop {
            let received = rest_of(pieces, done, |rest| self.receive_some(fd, rest, flags));
            self.leave_after_record(fd);
            let failed = match received {
                Ok(received) => {
                    done += received;
                    if received == 0 || done == total {
                        return Ok(done);
                    }
                    let before = std::mem::replace(&mut source, self.source(fd));
                    is_next_source = source != before && flags & libc::MSG_PEEK == 0;
                    if !wants_all && !is_next_source {
                        return Ok(done);
                    }
                    continue;
                }
                Err(Errno::AGAIN) if is_next_source && !wants_all => Errno::AGAIN,
                Err(Errno::AGAIN) if flags & libc::MSG_DONTWAIT != 0 || kernel::is_nonblocking(fd) => Errno::AGAIN,
                Err(Errno::AGAIN) => {
                    let deadline = deadline.get_or_insert_with(|| Deadline::of(fd, libc::SO_RCVTIMEO));
                    match self.wait(fd, Way::In, *deadline, &mut kept) {
                        Ok(()) => continue,
                        Err(errno) => errno,
                    }
                }
                Err(errno) => errno,
            };
            return if done == 0 { Err(failed) } else { Ok(done) };
        }
    }

    /// Source of the next bytes. Of a relayed stream always the same: its ring and TCP are two ways through a network, and a call need not wait for both.
    fn source(&self, fd: c_int) -> Source {
        let Some(channel) = self.channel().filter(|channel| !channel.is_relayed()) else { return Source::BehindRing };
        let input = channel.input();
        if !self.is_behind_switch(fd, channel) {
            Source::BeforeRing
        } else if input.header.path.down_at.load(Ordering::Acquire) != 0 && input.readable() == Ok(0) {
            Source::BehindRing
        } else {
            Source::Ring
        }
    }

    /// Bytes that can be received now, on all paths (`FIONREAD`).
    pub(crate) fn unread(&self, fd: c_int) -> usize {
        let mut queued: c_int = 0;
        real::ioctl(fd, libc::FIONREAD as libc::c_ulong, (&raw mut queued).cast());
        let on_ring = self.channel().map_or(0, |channel| channel.input().readable().unwrap_or(0));
        queued.max(0) as usize + on_ring
    }

    /// Bytes that have been sent and not been received (`SIOCOUTQ`).
    pub(crate) fn unsent(&self, fd: c_int) -> usize {
        let mut queued: c_int = 0;
        real::ioctl(fd, libc::TIOCOUTQ as libc::c_ulong, (&raw mut queued).cast());
        let on_ring = self.channel().map_or(0, |channel| channel.out().used().unwrap_or(0));
        queued.max(0) as usize + on_ring
    }

    fn receive_some(&self, fd: c_int, pieces: &[Piece], flags: c_int) -> Result<usize, Errno> {
        let held = self.locks.rx.lock();
        let Some(channel) = self.channel() else {
            let received = kernel::receive(fd, pieces, flags & PASSED);
            drop(held);
            if received.is_ok() && !self.is_pinned.load(Ordering::Relaxed) {
                self.count_call(fd);
            }
            return received;
        };
        match self.left_on_tcp(fd, channel)? {
            Some(0) => {}
            Some(left) => {
                channel.kernel.fetch_and(!READY, Ordering::AcqRel);
                return self.receive_before_switch(fd, pieces, flags, left);
            }
            None => {
                channel.kernel.fetch_and(!READY, Ordering::AcqRel);
                return match self.receive_before_move(fd, channel, pieces, flags) {
                    Some(received) => received,
                    None => {
                        drop(held);
                        self.receive_some(fd, pieces, flags)
                    }
                };
            }
        }
        if channel.input().header.path.down_at.load(Ordering::Acquire) != 0 && channel.is_relayed() {
            return self.receive_behind_ring(fd, channel, pieces, flags);
        }
        match self.receive_from_ring(fd, channel, pieces, flags)? {
            0 => self.receive_behind_ring(fd, channel, pieces, flags),
            received => Ok(received),
        }
    }

    /// Bytes of the ring; 0 where it has none. Tells a writer that waits for space. The caller has the lock.
    fn receive_from_ring(&self, fd: c_int, channel: &Channel, pieces: &[Piece], flags: c_int) -> Result<usize, Errno> {
        let ring = channel.input();
        let keep = flags & libc::MSG_PEEK != 0;
        let received = if flags & libc::MSG_TRUNC != 0 && !keep {
            ring.discard(pieces.iter().map(|piece| piece.len).sum())
        } else {
            ring.read(pieces, keep)
        };
        let received = received.map_err(|Corrupt| self.give_up(fd))?;
        if received != 0 && !keep && ring.take_wish_for_space() {
            channel.link.signal(&ring.header.writer);
        }
        Ok(received)
    }

    /// Bytes on TCP before those of the ring; none while the direction has not moved to it.
    fn left_on_tcp(&self, fd: c_int, channel: &Channel) -> Result<Option<u64>, Errno> {
        if let Some(left) = self.locks.left() {
            return Ok(Some(left));
        }
        let Some(up_at) = channel.input().header.path.up_at.load(Ordering::Acquire).checked_sub(1) else {
            return Ok(None);
        };
        let read = channel.read_from_tcp(fd, up_at).ok_or(Errno::IO)?;
        let mut left = up_at.wrapping_sub(read);
        if channel.is_relayed() && (1..=MOST_LEFT).contains(&read.wrapping_sub(up_at)) {
            // The writer had withdrawn its move before this end could know of it.
            channel.input().header.path.down_at.store(1, Ordering::SeqCst);
            left = 0;
        }
        if left > MOST_LEFT {
            return Err(self.give_up(fd));
        }
        self.locks.set_left(left);
        Ok(Some(left))
    }

    /// The direction has not moved to a ring, as far as this end knows. None where it has moved meanwhile: the switch, and bytes
    /// behind it, may have come since the look. The caller has the lock.
    fn receive_before_move(
        &self,
        fd: c_int,
        channel: &Channel,
        pieces: &[Piece],
        flags: c_int,
    ) -> Option<Result<usize, Errno>> {
        let path = &channel.input().header.path;
        // A relayed direction may move to the ring and back between a look and a call: a record is not to be taken for bytes.
        let may_come_back = channel.is_relayed() && path.down_at.load(Ordering::Acquire) == 0;
        let looks_first = if may_come_back { libc::MSG_PEEK } else { 0 };
        let received = kernel::receive(fd, pieces, flags & PASSED | looks_first);
        // An end that is no longer early comes after the switch.
        let is_early = channel.early() != 0;
        let has_moved = path.up_at.load(Ordering::Acquire) != 0;
        let received = match received {
            Err(Errno::AGAIN) | Ok(0) if has_moved => return None,
            Ok(0) if is_early => return Some(Err(Errno::AGAIN)),
            Ok(_) if may_come_back && has_moved => return None,
            Ok(length) if length != 0 && may_come_back && flags & libc::MSG_PEEK == 0 => {
                self.receive_at_most(fd, pieces, flags, length as u64)
            }
            received => received,
        };
        self.settle(channel);
        Some(note(channel, received))
    }

    fn receive_before_switch(&self, fd: c_int, pieces: &[Piece], flags: c_int, left: u64) -> Result<usize, Errno> {
        let received = self.receive_at_most(fd, pieces, flags, left)?;
        if flags & libc::MSG_PEEK == 0 {
            self.locks.set_left(left - received as u64);
        }
        Ok(received)
    }

    fn receive_at_most(&self, fd: c_int, pieces: &[Piece], flags: c_int, most: u64) -> Result<usize, Errno> {
        let mut room = usize::try_from(most).unwrap_or(usize::MAX);
        let limited = pieces.iter().map(|piece| {
            let len = piece.len.min(room);
            room -= len;
            Piece { base: piece.base, len }
        });
        kernel::receive(fd, &limited.collect::<Vec<_>>(), flags & PASSED)
    }

    /// Nothing is in the ring: TCP has an end, an error, or bytes that came round the ring.
    fn receive_behind_ring(
        &self,
        fd: c_int,
        channel: &Channel,
        pieces: &[Piece],
        flags: c_int,
    ) -> Result<usize, Errno> {
        let ring = channel.input();
        if ring.header.path.down_at.load(Ordering::Acquire) != 0 {
            channel.kernel.fetch_and(!READY, Ordering::AcqRel);
            self.skip_known(fd, channel)?;
            let received = kernel::receive(fd, pieces, flags & PASSED);
            self.settle(channel);
            return received;
        }
        if self.is_shut[Way::In as usize].load(Ordering::Acquire) {
            return Ok(0);
        }
        let told = channel.kernel.fetch_and(!READY, Ordering::AcqRel) & READY != 0
            || channel.is_relayed() && ring.header.path.is_final.load(Ordering::Acquire) != 0;
        if !told && now().saturating_sub(channel.looked.load(Ordering::Relaxed)) < LOOK_NS {
            return Err(Errno::AGAIN);
        }
        channel.looked.store(now(), Ordering::Relaxed);
        let received = match self.look_for_record(fd, channel)? {
            Look::Taken => return self.receive_behind_ring(fd, channel, pieces, flags),
            Look::Bytes(len) => Ok(len),
            Look::End(end) => end.map(|()| 0),
            Look::Never => kernel::receive(fd, pieces, flags & PASSED | libc::MSG_PEEK),
        };
        let (is_early, is_complete) = (channel.early() != 0, ring.header.path.is_final.load(Ordering::Acquire) != 0);
        // What was written before the end is in the ring by now.
        if ring.readable() != Ok(0) {
            channel.note_kernel(READY);
            return self.receive_from_ring(fd, channel, pieces, flags);
        }
        match received {
            // The end has overtaken bytes that are on their way.
            Ok(0) if is_early => Err(Errno::AGAIN),
            // They do not come any more.
            Ok(0) if channel.is_relayed() && !is_complete => Err(self.cut_off(fd, channel)),
            Ok(length) if length != 0 && flags & libc::MSG_PEEK == 0 => {
                channel.note_kernel(READY);
                self.receive_at_most(fd, pieces, flags, length as u64)
            }
            received => note(channel, received),
        }
    }

    /// Whether a call would find something on this way without waiting, as far as shared memory tells; what TCP has is the
    /// kernel's to say.
    pub(crate) fn is_ready(&self, way: Way) -> bool {
        if self.is_shut[way as usize].load(Ordering::Acquire) {
            return true;
        }
        let Some(channel) = self.channel() else { return false };
        match way {
            Way::In => {
                let ring = channel.input();
                let has_moved = ring.header.path.up_at.load(Ordering::Acquire) != 0 && self.locks.left().is_none();
                let may_read = has_moved || self.locks.left() == Some(0);
                may_read && ring.readable() != Ok(0) || channel.kernel() & READY != 0
            }
            Way::Out => self.writes_to_ring(channel) && channel.out().free() != Ok(0),
        }
    }

    /// Whether what is sent goes, or would go, to the ring.
    pub(crate) fn writes_to_ring(&self, channel: &Channel) -> bool {
        let path = &channel.out().header.path;
        let may_go_up = || {
            channel.is_accepted.load(Ordering::Acquire)
                && !self.is_pinned.load(Ordering::Acquire)
                && !channel.back.is_crowded.load(Ordering::Acquire)
        };
        path.down_at.load(Ordering::Acquire) == 0
            && !channel.back.leaves.load(Ordering::Acquire)
            && path.is_frozen.load(Ordering::Acquire) == 0
            && (path.up_at.load(Ordering::Acquire) != 0 || may_go_up())
    }

    /// As [`Stream::is_ready`], for `poll` and `epoll`: with what TCP has, and only where a call would certainly not wait.
    pub(crate) fn is_readable(&self, fd: c_int) -> bool {
        if self.is_shut[Way::In as usize].load(Ordering::Acquire) {
            return true;
        }
        let Some(channel) = self.channel() else { return kernel::has_something(fd) };
        if self.locks.left() == Some(0) && channel.input().readable() != Ok(0) {
            return true;
        }
        if channel.kernel() & (FIN | ENDED) != 0 {
            return true;
        }
        let is_between =
            self.locks.left() != Some(0) || channel.input().header.path.down_at.load(Ordering::Acquire) != 0;
        if !is_between && channel.kernel() & READY == 0 {
            return false;
        }
        // Taken back first: what the kernel reports from here on is news.
        channel.kernel.fetch_and(!READY, Ordering::AcqRel);
        if kernel::has_something(fd) && !self.is_only_early(fd, channel) {
            channel.note_kernel(READY);
            return true;
        }
        self.locks.left().is_none() && channel.input().readable() != Ok(0) && self.is_behind_switch(fd, channel)
    }

    /// Likewise for a call that sends. Where the ring is full its reader is asked to tell of space: the caller is about to wait.
    pub(crate) fn is_writable(&self, fd: c_int) -> bool {
        let Some(channel) = self.channel().filter(|channel| self.writes_to_ring(channel)) else {
            let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
            return real::poll(&raw mut poll, 1, 0) > 0;
        };
        let ring = channel.out();
        if channel.kernel() & (FIN | ENDED) != 0 || ring.free() != Ok(0) {
            return true;
        }
        // Who waits for space need not have found the ring full by a call: it may have filled it to the last byte.
        ring.wish_for_space();
        let has_space = ring.free() != Ok(0);
        if !has_space {
            self.watch_for_stall(channel);
        }
        has_space
    }

    /// Whether the next bytes are those of the ring. A switch may not have been looked at. Bytes before it have been read, or come
    /// later than the ring's: TCP is another way through the network than a relay's.
    pub(super) fn is_behind_switch(&self, fd: c_int, channel: &Channel) -> bool {
        let up_at = channel.input().header.path.up_at.load(Ordering::Acquire);
        let has_all = || up_at.checked_sub(1).is_some_and(|before| channel.read_from_tcp(fd, before) == Some(before));
        self.locks.left().map_or_else(has_all, |left| left == 0)
    }

    /// Number that changes with each byte that comes, for edge-triggered events.
    pub(crate) fn arrived(&self) -> u64 {
        self.channel().map_or(0, |channel| channel.input().header.producer.tail.load(Ordering::Acquire))
    }

    /// Number that changes each time a writer found no space, likewise.
    pub(crate) fn times_full(&self) -> u32 {
        self.channel().map_or(0, |channel| channel.full.load(Ordering::Acquire))
    }
}

/// Notes an end or an error, which is found again by the next call.
fn note(channel: &Channel, received: Result<usize, Errno>) -> Result<usize, Errno> {
    match received {
        Ok(0) => channel.note_kernel(FIN),
        Ok(_) => {}
        Err(Errno::AGAIN) => {}
        Err(_) => channel.note_kernel(ENDED),
    }
    received
}

/// Flags that are passed on to TCP.
const PASSED: c_int = libc::MSG_PEEK | libc::MSG_TRUNC;
/// Time between two looks at TCP of a program that polls a stream in vain.
const LOOK_NS: u64 = 1_000_000;
/// More than TCP can have on its way.
const MOST_LEFT: u64 = 1 << 40;
