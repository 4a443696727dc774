//! Sending on a stream.

use super::wait::{Deadline, Way};
use super::{Channel, ENDED, Stream};
use crate::kernel;
use rdmesh_preload::real;
use rdmesh_streams::report::Reason;
use rdmesh_streams::ring::{Corrupt, Piece};
use rustix::io::Errno;
use std::ffi::c_int;
use std::sync::atomic::Ordering;

/// Where the bytes of a direction go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outlet {
    /// To the ring, or as soon as the other end has the slot.
    Ring,
    /// To TCP, until its queue is short enough for a move.
    Crowded,
    Tcp,
}

impl Outlet {
    fn of(channel: &Channel) -> Self {
        if channel.out().header.path.down_at.load(Ordering::Relaxed) != 0 {
            Self::Tcp
        } else if channel.back.is_crowded.load(Ordering::Relaxed) {
            Self::Crowded
        } else {
            Self::Ring
        }
    }
}

impl Stream {
    /// Sends the pieces as `sendmsg` with `flags` does: all of them, or what fits now where the socket does not wait.
    pub(crate) fn send(&self, fd: c_int, pieces: &[Piece], flags: c_int) -> Result<usize, Errno> {
        self.leave_parents_rings(fd);
        let total: usize = pieces.iter().map(|piece| piece.len).sum();
        if total == 0 && !self.is_shut[Way::Out as usize].load(Ordering::Relaxed) {
            return Ok(0);
        }
        if flags & ONLY_TCP != 0 {
            self.move_to_tcp(fd, Reason::Option);
        }
        let (mut done, mut deadline, mut kept) = (0, None, None);
        loop {
            let sent = rest_of(pieces, done, |rest| self.send_some(fd, rest, flags));
            let failed = match sent {
                Ok(sent) => {
                    done += sent;
                    if done == total || sent == 0 {
                        return Ok(done);
                    }
                    continue;
                }
                Err(Errno::AGAIN) if flags & libc::MSG_DONTWAIT != 0 || kernel::is_nonblocking(fd) => Errno::AGAIN,
                Err(Errno::AGAIN) => {
                    let deadline = deadline.get_or_insert_with(|| Deadline::of(fd, libc::SO_SNDTIMEO));
                    match self.wait(fd, Way::Out, *deadline, &mut kept) {
                        Ok(()) => continue,
                        Err(errno) => errno,
                    }
                }
                Err(errno) => errno,
            };
            if done != 0 {
                return Ok(done);
            }
            if failed == Errno::PIPE && flags & libc::MSG_NOSIGNAL == 0 {
                crate::signals::raise_sigpipe();
            }
            return Err(failed);
        }
    }

    /// Lets `fill` put up to `most` bytes into the ring; none where this direction is on TCP, or the ring is full.
    pub(crate) fn send_by(
        &self,
        fd: c_int,
        most: usize,
        fill: impl FnOnce(Piece) -> Result<usize, Errno>,
    ) -> Option<Result<usize, Errno>> {
        let held = self.locks.tx.lock();
        let channel = self.channel().filter(|_| !self.is_shut[Way::Out as usize].load(Ordering::Relaxed))?;
        let (ring, before) = (channel.out(), Outlet::of(channel));
        if !self.is_on_ring(fd, channel, &ring) || ring.free() == Ok(0) {
            drop(held);
            self.tell_of_outlet(channel, before);
            return None;
        }
        let filled = ring.write_by(most, fill).ok()?;
        drop(held);
        self.tell_of_outlet(channel, before);
        channel.link.signal(&ring.header.reader);
        Some(filled)
    }

    fn send_some(&self, fd: c_int, pieces: &[Piece], flags: c_int) -> Result<usize, Errno> {
        if self.is_shut[Way::Out as usize].load(Ordering::Relaxed) {
            return Err(Errno::PIPE);
        }
        let held = self.locks.tx.lock();
        let Some(channel) = self.channel() else {
            let sent = kernel::send(fd, pieces, flags & PASSED);
            drop(held);
            if sent.is_ok() && !self.is_pinned.load(Ordering::Relaxed) {
                self.count_call(fd);
            }
            return sent;
        };
        let (ring, before) = (channel.out(), Outlet::of(channel));
        if !self.is_on_ring(fd, channel, &ring) {
            let sent = kernel::send(fd, pieces, flags & PASSED);
            if sent == Err(Errno::CONNRESET) {
                channel.note_kernel(ENDED);
            }
            drop(held);
            let has_sent_record = before != Outlet::Tcp
                && Outlet::of(channel) == Outlet::Tcp
                && channel.is_relayed()
                && ring.header.path.up_at.load(Ordering::Relaxed) != 0;
            self.tell_of_outlet(channel, before);
            self.settle(channel);
            return match sent {
                // A closed peer has answered the record, which went before these bytes, not them: by TCP they would have been taken.
                Err(Errno::PIPE | Errno::CONNRESET)
                    if has_sent_record && !self.is_shut[Way::Out as usize].load(Ordering::Relaxed) =>
                {
                    Ok(pieces.iter().map(|piece| piece.len).sum())
                }
                sent => sent,
            };
        }
        let sent = write(channel, pieces).map_err(|Corrupt| self.give_up(fd))?;
        drop(held);
        self.tell_of_outlet(channel, before);
        if sent == 0 {
            self.watch_for_stall(channel);
            return Err(Errno::AGAIN);
        }
        channel.link.signal(&ring.header.reader);
        Ok(sent)
    }

    /// Lets waiters for space wait for the kernel's from now on, or for the ring's.
    pub(super) fn tell_of_path(&self) {
        self.epolls().iter().for_each(|epoll| epoll.stream_changed(self));
        self.wake_own_waiters();
    }

    /// Likewise, if the way out is another than before.
    fn tell_of_outlet(&self, channel: &Channel, before: Outlet) {
        if Outlet::of(channel) != before {
            self.tell_of_path();
        }
    }

    /// Ends a connection whose other end has written nonsense into the shared memory.
    pub(super) fn give_up(&self, fd: c_int) -> Errno {
        self.pin(Reason::Broken);
        match self.channel() {
            // Its bytes may have got lost: the other end is not to see an orderly end.
            Some(channel) if channel.is_relayed() => kernel::abort(fd),
            _ => drop(real::shutdown(fd, libc::SHUT_RDWR)),
        }
        self.is_shut.iter().for_each(|shut| shut.store(true, Ordering::Release));
        Errno::CONNRESET
    }

    /// The program has shut directions down, as `shutdown` with `how`; the kernel has done so.
    pub(crate) fn shut(&self, fd: c_int, how: c_int) {
        if how != libc::SHUT_WR {
            self.is_shut[Way::In as usize].store(true, Ordering::Release);
        }
        if how != libc::SHUT_RD {
            self.is_shut[Way::Out as usize].store(true, Ordering::Release);
        }
        if let Some(channel) = self.channel() {
            if how != libc::SHUT_RD {
                super::finish(channel);
                self.tell_end();
            }
            channel.note_kernel(kernel::ends_of(fd));
        }
        self.wake_own_waiters();
    }

    /// In a fork's child a stream of the parent goes back to TCP when it is used: waiters and links are the parent's.
    pub(crate) fn leave_parents_rings(&self, fd: c_int) {
        if self.is_inherited() && self.channel().is_some() {
            self.move_to_tcp(fd, Reason::Fork);
        }
    }
}

/// Writes what fits. Where nothing does, the reader is asked to tell of space.
fn write(channel: &Channel, pieces: &[Piece]) -> Result<usize, Corrupt> {
    let ring = channel.out();
    let sent = ring.write(pieces)?;
    if sent != 0 {
        return Ok(sent);
    }
    channel.full.fetch_add(1, Ordering::AcqRel);
    ring.wish_for_space();
    if ring.free()? == 0 { Ok(0) } else { ring.write(pieces) }
}

/// Calls `with` with the pieces behind the first `done` bytes.
pub(super) fn rest_of<R>(pieces: &[Piece], done: usize, with: impl FnOnce(&[Piece]) -> R) -> R {
    if done == 0 {
        return with(pieces);
    }
    let mut skip = done;
    let rest = pieces.iter().filter_map(|piece| {
        let skipped = skip.min(piece.len);
        skip -= skipped;
        (skipped < piece.len).then(|| Piece { base: piece.base.wrapping_add(skipped), len: piece.len - skipped })
    });
    with(&rest.collect::<Vec<_>>())
}

/// Flags that only TCP can do.
const ONLY_TCP: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;
/// Flags that are passed on to TCP.
const PASSED: c_int = libc::MSG_OOB | libc::MSG_MORE | libc::MSG_CONFIRM | libc::MSG_DONTROUTE;
