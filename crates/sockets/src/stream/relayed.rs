//! Streams to other endpoints and hosts, whose slot a relay copies.
//!
//! A relay's copy lags behind: an end on TCP may overtake the bytes of the ring, and the relay may end with bytes in flight. So two things differ from a slot that both processes share.
//!
//! * A program's orderly end goes by TCP, and so does everything that the other end may lack. The end (FIN) of a program that was
//!   killed counts once the relay has said that all bytes are there (`is_final`).
//! * A writer that has moved to the ring knows from the relays when the reader's slot says so (`up_seen`).
//! * Back on TCP, a writer sends a *record* first: the connection's nonce and a position of the ring. All bytes from that position
//!   on follow it, also those that the ring has brought already; the reader leaves those out. The writer keeps what the reader has
//!   not said to have read, so no byte is lost whatever has become of the relays.

use super::{Channel, ENDED, FIN, READY, Stream};
use crate::kernel;
use crate::spin::now;
use rdmesh_streams::report::Reason;
use rdmesh_streams::ring::Piece;
use rdmesh_streams::ring::layout::RING;
use rustix::io::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a record.
pub(super) const RECORD: usize = 24;
/// Set in a record's position where the other end has lost its relay, and will take rings again.
const COMES_BACK: u64 = 1 << 63;

/// Content of TCP's receive queue behind the bytes from before the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// No record can come.
    Never,
    /// An end, or an error: EAGAIN where there is nothing.
    End(Result<(), Errno>),
    /// So many bytes that are no record.
    Bytes(usize),
    /// There was a record, which has been taken.
    Taken,
}

/// Beginning of bytes of TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Front {
    /// A record that names this position.
    Record(u64),
    /// What may be a record, of which a part has come.
    Part,
    Other,
}

/// The record of a channel with this nonce for a position.
fn record(nonce: [u64; 2], position: u64) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    for (place, word) in bytes.chunks_exact_mut(8).zip([nonce[0], nonce[1], position]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn front(bytes: &[u8], nonce: [u64; 2]) -> Front {
    let name = &record(nonce, 0)[..NONCE];
    let len = bytes.len().min(NONCE);
    match bytes.get(NONCE..RECORD) {
        _ if bytes[..len] != name[..len] => Front::Other,
        Some(position) => Front::Record(u64::from_le_bytes(position.try_into().unwrap_or_default())),
        None => Front::Part,
    }
}

impl Channel {
    /// Whether a relay copies the slot.
    pub(super) fn is_relayed(&self) -> bool {
        self.link.is_relay()
    }

    /// Bits of the kernel's events that do not count yet: an end that has overtaken bytes of the ring.
    pub(super) fn early(&self) -> u32 {
        let path = &self.input().header.path;
        let is_complete = path.is_final.load(Ordering::Acquire) != 0 || path.down_at.load(Ordering::Acquire) != 0;
        let is_coming = !self.link.is_dead() && !self.is_lost.load(Ordering::Acquire);
        let is_early = self.is_relayed() && !is_complete && is_coming;
        if is_early && self.is_whole() { FIN | libc::POLLHUP as u32 } else { 0 }
    }

    /// Whether TCP is the faster way for what is written: so much that the ring has been full again and again. What a router sends
    /// costs a processor more for each byte than what the kernel does, and less for each message.
    pub(super) fn is_bulk(&self) -> bool {
        self.full.load(Ordering::Relaxed) >= BULK && self.is_relayed()
    }

    /// Whether TCP has an end that has overtaken bytes of the ring: the kernel would go on to report it.
    pub(crate) fn has_early_end(&self) -> bool {
        self.early() & self.kernel.load(Ordering::Acquire) != 0
    }

    /// Whether the other end has the slot too, or has had it.
    fn is_whole(&self) -> bool {
        self.is_accepted.load(Ordering::Acquire) || self.input().header.path.up_at.load(Ordering::Acquire) != 0
    }
}

impl Stream {
    /// Looks for a record at the front of what TCP has, and takes it: the ring ends, and what follows is TCP's. EAGAIN where one has
    /// come in part. The caller has the reader's lock, and the bytes from before the ring have been read.
    pub(super) fn look_for_record(&self, fd: c_int, channel: &Channel) -> Result<Look, Errno> {
        let has_come = channel.input().header.path.down_at.load(Ordering::Acquire) != 0;
        if !channel.is_relayed() || has_come {
            return Ok(Look::Never);
        }
        let mut bytes = [0; RECORD];
        let piece = [Piece { base: bytes.as_mut_ptr(), len: RECORD }];
        let len = match kernel::receive(fd, &piece, libc::MSG_PEEK) {
            Ok(0) => return Ok(Look::End(Ok(()))),
            Ok(len) => len,
            Err(errno) => return Ok(Look::End(Err(errno))),
        };
        match front(&bytes[..len], channel.slot.nonce()) {
            Front::Record(position) => self.take_record(fd, channel, position).map(|()| Look::Taken),
            Front::Part => Err(Errno::AGAIN),
            Front::Other => Ok(Look::Bytes(len)),
        }
    }

    /// The ring ends here: bytes from `position` on follow on TCP.
    fn take_record(&self, fd: c_int, channel: &Channel, position: u64) -> Result<(), Errno> {
        let (comes_back, position) = (position & COMES_BACK != 0, position & !COMES_BACK);
        let mut record = [0; RECORD];
        kernel::receive(fd, &[Piece { base: record.as_mut_ptr(), len: RECORD }], 0)?;
        let input = channel.input();
        let head = input.header.consumer.head.load(Ordering::Relaxed);
        let known = head.wrapping_sub(position);
        if known > RING as u64 {
            return Err(self.give_up(fd));
        }
        channel.skip.store(known, Ordering::Release);
        input.header.path.down_at.store(head.wrapping_add(1), Ordering::SeqCst);
        // The other end has left, or has lost its relay: this one goes too.
        channel.leaves.store(true, Ordering::Release);
        if comes_back {
            // Its relay has gone: what is in the ring that this end writes does not arrive any more.
            channel.is_lost.store(true, Ordering::Release);
            self.pin_for_now(Reason::PeerLeft);
        } else {
            self.pin(Reason::PeerLeft);
        }
        Ok(())
    }

    /// Takes bytes out of TCP that the ring has brought already; EAGAIN where they have not all come.
    pub(super) fn skip_known(&self, fd: c_int, channel: &Channel) -> Result<(), Errno> {
        let mut left = channel.skip.load(Ordering::Acquire);
        let mut bytes = if left == 0 { Vec::new() } else { vec![0; RING] };
        while left != 0 {
            let len = bytes.len().min(left as usize);
            match kernel::receive(fd, &[Piece { base: bytes.as_mut_ptr(), len }], 0)? {
                0 => return Err(self.give_up(fd)),
                taken => left -= taken as u64,
            }
            channel.skip.store(left, Ordering::Release);
        }
        Ok(())
    }

    /// After a record has come: the direction that this end writes goes back to TCP, too. Called without locks.
    ///
    /// Where the relay still carries what is in the ring, that waits for the program's next bytes: the other end may have closed
    /// its socket, and answers what comes now with a reset, which the program would find at its next write; by TCP alone it would
    /// not.
    pub(super) fn leave_after_record(&self, fd: c_int) {
        let is_broken = |channel: &Channel| channel.link.is_dead() || channel.is_lost.load(Ordering::Acquire);
        let leaves = |channel: &&Channel| {
            channel.leaves.load(Ordering::Relaxed) && is_broken(channel) && channel.leaves.swap(false, Ordering::AcqRel)
        };
        let Some(channel) = self.channel().filter(leaves) else { return };
        self.leave(fd, channel);
        self.epolls().iter().for_each(|epoll| epoll.stream_changed(self));
        self.wake_own_waiters();
    }

    /// Moves the direction that this end writes back to TCP: a record, and all bytes that the other end has not said to have read.
    /// The caller has the lock.
    pub(super) fn send_record(&self, fd: c_int, channel: &Channel) {
        let ring = channel.out();
        let path = &ring.header.path;
        if !is_up_seen(channel) {
            // Whether the reader would know a record nobody can tell: better an end than a wrong byte.
            self.give_up(fd);
            return;
        }
        let mut bytes = vec![0; RECORD + RING];
        // The relay may move the position meanwhile: the record and the bytes are of one.
        let head = ring.header.consumer.head.load(Ordering::Acquire);
        let Ok(kept) = ring.copy_from(head, bytes[RECORD..].as_mut_ptr()) else {
            self.give_up(fd);
            return;
        };
        let position = if self.comes_back() { head | COMES_BACK } else { head & !COMES_BACK };
        bytes[..RECORD].copy_from_slice(&record(channel.slot.nonce(), position));
        bytes.truncate(RECORD + kept);
        path.down_at.store(head.wrapping_add(1), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        channel.link.signal(&ring.header.reader);
        // All of it fits TCP's own queue then, whether or not the reader takes it.
        kernel::make_room(fd, bytes.len());
        if super::switch::send_all(fd, &mut bytes).is_err() {
            // The bytes cannot be had by the reader any more: better an end than a gap.
            self.give_up(fd);
        }
    }

    /// The program is about to end the direction that it writes: a relayed one ends on TCP, with what the other end may not have, so
    /// that the end has all bytes before it whatever becomes of the relays.
    pub(crate) fn ending(&self, fd: c_int) {
        let Some(channel) = self.channel().filter(|channel| channel.is_relayed()) else { return };
        self.pin(Reason::Closing);
        self.leave(fd, channel);
    }

    /// The relay has ended, or has lost the way: the stream goes on over TCP.
    pub(crate) fn lose_relay(&self, link: &Arc<crate::process::Link>) {
        let Some(channel) = self.channel().filter(|channel| Arc::ptr_eq(&channel.link, link)) else {
            return self.forget_published();
        };
        self.pin_for_now(Reason::Relay);
        channel.is_lost.store(true, Ordering::Release);
        // Where the other end may have the slot already, and bytes in it, the channel stays: a record is recognised by it.
        if let Some(fd) = crate::table::descriptor_of(self) {
            self.leave(fd, channel);
        }
        channel.note_kernel(READY);
        self.epolls().iter().for_each(|epoll| epoll.stream_changed(self));
        self.wake_own_waiters();
    }

    /// Whether what TCP has is no more than an end that has overtaken bytes of the ring.
    pub(super) fn is_only_early(&self, fd: c_int, channel: &Channel) -> bool {
        let mut byte = 0u8;
        channel.early() != 0
            && self.locks.left() == Some(0)
            && kernel::receive(fd, &[Piece { base: &raw mut byte, len: 1 }], libc::MSG_PEEK) == Ok(0)
    }

    /// End of a stream whose ring may lack bytes: what it has been told of TCP's end is no end of the stream.
    pub(super) fn cut_off(&self, fd: c_int, channel: &Channel) -> Errno {
        channel.note_kernel(ENDED);
        self.give_up(fd)
    }
}

/// Waits until the reader at the other end knows that the direction has moved to the ring, as long as a relay may tell.
fn is_up_seen(channel: &Channel) -> bool {
    let path = &channel.out().header.path;
    let begin = now();
    loop {
        let cannot_tell = channel.link.is_dead() || channel.is_lost.load(Ordering::Acquire);
        if path.up_seen.load(Ordering::Acquire) != 0 {
            return true;
        }
        if cannot_tell || now() - begin > SEEN_NS {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_micros(20));
    }
}

/// Times that a ring has been full, after which its stream goes by TCP: some megabytes without a pause.
const BULK: u32 = 32;
/// Bytes of a record that name the connection.
const NONCE: usize = 16;
/// Longest wait for the other end to see a move to the ring.
const SEEN_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_record_waits_for_the_rest() {
        let nonce = [0x0102_0304_0506_0708, 0x1112_1314_1516_1718];
        let whole = [&record(nonce, 7)[..], b"abc"].concat();
        for len in 1..=whole.len() {
            let expected = if len < RECORD { Front::Part } else { Front::Record(7) };
            assert_eq!(front(&whole[..len], nonce), expected, "{len}");
        }
        for wrong in 0..NONCE {
            let mut other = whole.clone();
            other[wrong] ^= 1;
            assert_eq!(front(&other, nonce), Front::Other);
            assert_eq!(front(&other[..=wrong], nonce), Front::Other);
        }
    }
}
