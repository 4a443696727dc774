//! Streams to other endpoints and hosts, whose slot a relay copies.
//!
//! A relay's copy lags behind: an end on TCP may overtake the bytes of the ring, and the relay may end with bytes in flight. So two things differ from a slot that both processes share.
//!
//! * A program's orderly end goes by TCP, and so does everything that the other end may lack. The end (FIN) of a program that was
//!   killed counts once the relay has said that all bytes are there (`is_final`).
//! * The relay hands on no byte of the ring before the reader's slot says where the ring begins (`Path::moved`). A writer that goes
//!   back to TCP before that withdraws, and sends on TCP what it has put into the ring.
//! * Otherwise it sends a *record* first: the connection's nonce and a position of the ring. All bytes from that position on follow
//!   it, also those that the ring has brought already; the reader leaves those out. The writer keeps what the reader has not said to
//!   have read, so no byte is lost whatever has become of the relays.
//! * A direction moves to the ring only while TCP's queue has room for the record and a whole ring: the way back never waits for a
//!   reader that has paused.

use super::{Channel, ENDED, FIN, READY, Stream};
use crate::kernel;
use crate::spin::now;
use rdmesh_streams::report::Reason;
use rdmesh_streams::ring::Piece;
use rdmesh_streams::ring::layout::RING;
use rustix::io::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Bytes of a record.
pub(super) const RECORD: usize = 32;
/// Most bytes of a direction's way back to TCP.
pub(super) const WAY_BACK: usize = RECORD + RING;
/// Set in a record's position where the other end has lost its relay, and will take rings again.
const COMES_BACK: u64 = 1 << 63;

/// More bytes than a ring ever brings.
const UNKNOWN: u64 = u64::MAX;

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

/// Content of a record after the nonce: the ring's position from which bytes follow on TCP, and the number of bytes that the record's
/// writer has of the other direction's ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    position: u64,
    received: u64,
}

/// Beginning of bytes of TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Front {
    Record(Record),
    /// What may be a record, of which a part has come.
    Part,
    Other,
}

impl Record {
    /// Its bytes, on a channel with this nonce.
    fn to_bytes(self, nonce: [u64; 2]) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        for (place, word) in bytes.chunks_exact_mut(8).zip([nonce[0], nonce[1], self.position, self.received]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

fn front(bytes: &[u8], nonce: [u64; 2]) -> Front {
    let name = &Record { position: 0, received: 0 }.to_bytes(nonce)[..NONCE];
    let len = bytes.len().min(NONCE);
    let word = |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
    match (word(NONCE), word(NONCE + 8)) {
        _ if bytes[..len] != name[..len] => Front::Other,
        (Some(position), Some(received)) => Front::Record(Record { position, received }),
        _ => Front::Part,
    }
}

/// The way of a relayed connection back to TCP, as far as this end knows.
pub(super) struct WayBack {
    /// Bytes of TCP that a ring has brought already.
    pub(super) skip: AtomicU64,
    /// TCP's queue has no room for it: what is sent stays on TCP until it has.
    pub(super) is_crowded: AtomicBool,
    /// Time at which something like the beginning of a record was seen first; 0 for never.
    part_since: AtomicU64,
    /// Bytes of the ring that this end writes which the other end has, by its record; [`UNKNOWN`] before that.
    peer_has: AtomicU64,
    /// A record has come: this end leaves the ring too.
    pub(super) leaves: AtomicBool,
    /// Waiters for space have not been told of that yet.
    has_turned: AtomicBool,
    /// The relay has lost the way to the other end: nothing more comes into the ring.
    pub(super) is_lost: AtomicBool,
}

impl Default for WayBack {
    fn default() -> Self {
        let not = || AtomicBool::new(false);
        Self {
            skip: AtomicU64::new(0),
            is_crowded: not(),
            part_since: AtomicU64::new(0),
            peer_has: AtomicU64::new(UNKNOWN),
            leaves: not(),
            has_turned: not(),
            is_lost: not(),
        }
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
        let is_coming = !self.link.is_dead() && !self.back.is_lost.load(Ordering::Acquire);
        let is_early = self.is_relayed() && !is_complete && is_coming;
        if is_early && self.is_whole() { FIN | libc::POLLHUP as u32 } else { 0 }
    }

    /// Whether TCP is the faster way for what is written: so much that there was no room again and again. What a router sends
    /// costs a processor more for each byte than what the kernel does, and less for each message.
    pub(super) fn is_bulk(&self) -> bool {
        self.full.load(Ordering::Relaxed) >= BULK && self.is_relayed()
    }

    /// Whether TCP has an end that has overtaken bytes of the ring: the kernel would go on to report it.
    pub(crate) fn has_early_end(&self) -> bool {
        self.early() & self.kernel.load(Ordering::Acquire) != 0
    }

    /// Whether the other end has all that this one has put into the ring: it has read it, or its record has said so.
    fn peer_has_all(&self) -> bool {
        self.out().used() == Ok(0)
            || self.back.peer_has.load(Ordering::Acquire) == self.out().header.producer.tail.load(Ordering::Acquire)
    }

    /// Whether the rest of what begins as a record has had time to come.
    fn has_waited_for_rest(&self) -> bool {
        let time = now();
        let began = self
            .back
            .part_since
            .compare_exchange(0, time, Ordering::Relaxed, Ordering::Relaxed)
            .unwrap_or_else(|since| since);
        began != 0 && time.saturating_sub(began) > PART_NS
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
        let looks_like = front(&bytes[..len], channel.slot.nonce());
        if looks_like == Front::Part && !channel.has_waited_for_rest() {
            return Err(Errno::AGAIN);
        }
        if let Front::Record(record) = looks_like {
            return self.take_record(fd, channel, record).map(|()| Look::Taken);
        }
        // The writer has withdrawn its move: nothing is in the ring, and no record comes.
        let input = channel.input();
        if input.readable() == Ok(0) && input.header.consumer.head.load(Ordering::Relaxed) == 0 {
            input.header.path.down_at.store(1, Ordering::SeqCst);
        }
        Ok(Look::Bytes(len))
    }

    /// The ring ends here: bytes from the record's position on follow on TCP.
    fn take_record(&self, fd: c_int, channel: &Channel, record: Record) -> Result<(), Errno> {
        let (comes_back, position) = (record.position & COMES_BACK != 0, record.position & !COMES_BACK);
        let mut bytes = [0; RECORD];
        kernel::receive(fd, &[Piece { base: bytes.as_mut_ptr(), len: RECORD }], 0)?;
        let input = channel.input();
        let head = input.header.consumer.head.load(Ordering::Relaxed);
        let known = head.wrapping_sub(position);
        if known > RING as u64 {
            return Err(self.give_up(fd));
        }
        channel.back.skip.store(known, Ordering::Release);
        channel.back.peer_has.store(record.received, Ordering::Release);
        input.header.path.down_at.store(head.wrapping_add(1), Ordering::SeqCst);
        // The other end has left, or has lost its relay: this one goes too.
        channel.back.leaves.store(true, Ordering::Release);
        channel.back.has_turned.store(true, Ordering::Release);
        if comes_back {
            // Its relay has gone: what is in the ring that this end writes does not arrive any more.
            channel.back.is_lost.store(true, Ordering::Release);
            self.pin_for_now(Reason::PeerLeft);
        } else {
            self.pin(Reason::PeerLeft);
        }
        Ok(())
    }

    /// Takes bytes out of TCP that the ring has brought already; EAGAIN where they have not all come.
    pub(super) fn skip_known(&self, fd: c_int, channel: &Channel) -> Result<(), Errno> {
        let mut left = channel.back.skip.load(Ordering::Acquire);
        let mut bytes = if left == 0 { Vec::new() } else { vec![0; RING] };
        while left != 0 {
            let len = bytes.len().min(left as usize);
            match kernel::receive(fd, &[Piece { base: bytes.as_mut_ptr(), len }], 0)? {
                0 => return Err(self.give_up(fd)),
                taken => left -= taken as u64,
            }
            channel.back.skip.store(left, Ordering::Release);
        }
        Ok(())
    }

    /// After a record has come: the direction that this end writes goes back to TCP, too. Called without locks.
    ///
    /// Where the other end has all that is in the ring, or the relay still carries it, that waits for the program's next bytes: the
    /// other end may have closed its socket, and answers what comes now with a reset. The program would lose what it has not read
    /// yet; by TCP alone it would not.
    pub(super) fn leave_after_record(&self, fd: c_int) {
        let Some(channel) = self.channel().filter(|channel| channel.back.leaves.load(Ordering::Relaxed)) else {
            return;
        };
        let is_broken = channel.link.is_dead() || channel.back.is_lost.load(Ordering::Acquire);
        let leaves_now = is_broken && !channel.peer_has_all() && channel.back.leaves.swap(false, Ordering::AcqRel);
        if leaves_now {
            self.leave(fd, channel);
        }
        if leaves_now || channel.back.has_turned.swap(false, Ordering::AcqRel) {
            self.tell_of_path();
        }
    }

    /// Moves the direction that this end writes back to TCP: a record, and all bytes that the other end has not said to have read.
    /// Where no byte of the ring has been handed on there is no record: the other end takes what comes for bytes of TCP, whether or
    /// not it knows of the ring. The caller has the lock.
    pub(super) fn send_record(&self, fd: c_int, channel: &Channel) {
        let ring = channel.out();
        let path = &ring.header.path;
        let record_len = if path.withdraw_move() { 0 } else { RECORD };
        let mut bytes = vec![0; record_len + RING];
        // The relay may move the position meanwhile: the record and the bytes are of one.
        let head = ring.header.consumer.head.load(Ordering::Acquire);
        let Ok(kept) = ring.copy_from(head, bytes[record_len..].as_mut_ptr()) else {
            self.give_up(fd);
            return;
        };
        let position = if self.comes_back() { head | COMES_BACK } else { head & !COMES_BACK };
        let received = channel.input().header.producer.tail.load(Ordering::Acquire);
        let record = Record { position, received }.to_bytes(channel.slot.nonce());
        bytes[..record_len].copy_from_slice(&record[..record_len]);
        bytes.truncate(record_len + kept);
        path.down_at.store(head.wrapping_add(1), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        channel.link.signal(&ring.header.reader);
        // TCP has had room for all of it since the direction has moved to the ring.
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
        channel.back.is_lost.store(true, Ordering::Release);
        // Where the other end may have the slot already, and bytes in it, the channel stays: a record is recognised by it.
        if channel.peer_has_all() {
            channel.back.leaves.store(true, Ordering::Release);
        } else if let Some(fd) = crate::table::descriptor_of(self) {
            self.leave(fd, channel);
        }
        channel.note_kernel(READY);
        self.tell_of_path();
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

/// Times that a ring has been full, or TCP's queue too long for one, after which a stream goes by TCP: some megabytes without a pause.
const BULK: u32 = 32;
/// Bytes of a record that name the connection.
const NONCE: usize = 16;
/// Longest wait for the rest of what begins as a record.
const PART_NS: u64 = 2_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_record_waits_for_the_rest() {
        let nonce = [0x0102_0304_0506_0708, 0x1112_1314_1516_1718];
        let record = Record { position: 7, received: 8 };
        let whole = [&record.to_bytes(nonce)[..], b"abc"].concat();
        for len in 1..=whole.len() {
            let expected = if len < RECORD { Front::Part } else { Front::Record(record) };
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
