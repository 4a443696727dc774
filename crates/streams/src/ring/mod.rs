//! Rings of bytes in shared memory: one direction of an accelerated connection.
//!
//! One end writes, the other reads; the callers' locks see to it that each is one thread at a time. The copy of bytes and the
//! store of the position behind it are ordered (release, acquire), and a full fence stands between the store of a position and
//! the look at who sleeps ([`crate::peer::Peer::signal`]), so that either the other end sees the position or this end sees that
//! it sleeps.
#![allow(unsafe_code)]

pub mod layout;

use layout::{Direction, HEADER, Header, RING, SLOT};
use rdmesh_uverbs::shared::SharedMemory;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// The shared slot of a connection.
#[derive(Clone)]
pub struct Slot(SharedMemory);

/// A direction of a slot.
pub struct Ring<'a> {
    /// Its header.
    pub header: &'a Direction,
    bytes: *mut u8,
}

/// The other end has written positions that no correct program writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt;

/// A piece of a program's memory, as `writev` and `readv` take it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Piece {
    /// Its first byte.
    pub base: *mut u8,
    /// Bytes.
    pub len: usize,
}

impl Slot {
    /// A slot in mapped memory; none where that is too small.
    pub fn new(memory: SharedMemory) -> Option<Self> {
        (memory.len() >= SLOT).then_some(Self(memory))
    }

    /// The random number of a relayed connection.
    pub fn nonce(&self) -> [u64; 2] {
        self.header().nonce.each_ref().map(|word| word.load(Relaxed))
    }

    /// Sets it.
    pub fn set_nonce(&self, nonce: [u64; 2]) {
        self.header().nonce.iter().zip(nonce).for_each(|(word, value)| word.store(value, Relaxed));
    }

    /// Direction `n`, 0 or 1.
    pub fn ring(&self, n: usize) -> Ring<'_> {
        let n = n & 1;
        let bytes = self.0.as_ptr().wrapping_add(HEADER + n * RING);
        Ring { header: &self.header().directions[n], bytes }
    }

    fn header(&self) -> &Header {
        // SAFETY: the memory is mapped as long as this value, as long as a slot, aligned to a page, and the header consists of
        // atomics, for which every content is valid.
        unsafe { &*self.0.as_ptr().cast() }
    }
}

impl Ring<'_> {
    /// Bytes in the ring.
    pub fn used(&self) -> Result<usize, Corrupt> {
        let tail = self.header.producer.tail.load(Acquire);
        let used = tail.wrapping_sub(self.header.consumer.head.load(Acquire));
        if used <= RING as u64 { Ok(used as usize) } else { Err(Corrupt) }
    }

    /// Bytes that can be read: those before the switch to TCP, where there is one.
    pub fn readable(&self) -> Result<usize, Corrupt> {
        let used = self.used()?;
        let down_at = self.header.path.down_at.load(Acquire);
        if down_at == 0 {
            return Ok(used);
        }
        let before = (down_at - 1).wrapping_sub(self.header.consumer.head.load(Relaxed));
        if before <= RING as u64 { Ok(used.min(before as usize)) } else { Err(Corrupt) }
    }

    /// Bytes that can be written.
    pub fn free(&self) -> Result<usize, Corrupt> {
        self.used().map(|used| RING - used)
    }

    /// Copies as much of the pieces as fits; returns how much. The caller is the only writer.
    pub fn write(&self, pieces: &[Piece]) -> Result<usize, Corrupt> {
        let free = self.free()?;
        let tail = self.header.producer.tail.load(Relaxed);
        let mut done = 0;
        for piece in pieces {
            let len = piece.len.min(free - done);
            self.copy_in(tail.wrapping_add(done as u64), piece.base, len);
            done += len;
            if done == free {
                break;
            }
        }
        self.header.producer.tail.store(tail.wrapping_add(done as u64), Release);
        std::sync::atomic::fence(SeqCst);
        Ok(done)
    }

    /// Lets `fill` put bytes where the next ones go: into one piece, at most `most` long. What it returns is how many it has put
    /// there. The caller is the only writer.
    pub fn write_by<E>(
        &self,
        most: usize,
        fill: impl FnOnce(Piece) -> Result<usize, E>,
    ) -> Result<Result<usize, E>, Corrupt> {
        let free = self.free()?;
        let tail = self.header.producer.tail.load(Relaxed);
        let at = tail as usize & (RING - 1);
        let len = free.min(RING - at).min(most);
        let filled = fill(Piece { base: self.bytes.wrapping_add(at), len });
        if let Ok(done) = &filled {
            self.header.producer.tail.store(tail.wrapping_add((*done).min(len) as u64), Release);
            std::sync::atomic::fence(SeqCst);
        }
        Ok(filled)
    }

    /// Copies bytes into the pieces; returns how many. With `keep` they stay in the ring. The caller is the only reader.
    pub fn read(&self, pieces: &[Piece], keep: bool) -> Result<usize, Corrupt> {
        let available = self.readable()?;
        let head = self.header.consumer.head.load(Relaxed);
        let mut done = 0;
        for piece in pieces {
            let len = piece.len.min(available - done);
            self.copy_out(head.wrapping_add(done as u64), piece.base, len);
            done += len;
            if done == available {
                break;
            }
        }
        if !keep {
            self.advance(head, done);
        }
        Ok(done)
    }

    /// Copies what has been written from position `from` on, which the reader had come to a moment ago, to `to`, which has room for a
    /// ring; returns how many bytes. The caller is the only writer.
    pub fn copy_from(&self, from: u64, to: *mut u8) -> Result<usize, Corrupt> {
        let len = self.header.producer.tail.load(Relaxed).wrapping_sub(from);
        if len > RING as u64 {
            return Err(Corrupt);
        }
        self.copy_out(from, to, len as usize);
        Ok(len as usize)
    }

    /// Takes bytes out without copying them; returns how many.
    pub fn discard(&self, most: usize) -> Result<usize, Corrupt> {
        let len = self.readable()?.min(most);
        self.advance(self.header.consumer.head.load(Relaxed), len);
        Ok(len)
    }

    /// Whether the writer waits for space and there is enough for it to go on, which is said once.
    pub fn take_wish_for_space(&self) -> bool {
        let wish = &self.header.producer.wants_space;
        if wish.load(Relaxed) == 0 || self.free().is_ok_and(|free| free < RING / 4) {
            return false;
        }
        wish.swap(0, SeqCst) != 0
    }

    /// Asks the reader to tell of space. The caller looks once more whether there is some.
    pub fn wish_for_space(&self) {
        self.header.producer.wants_space.store(1, SeqCst);
    }

    fn advance(&self, head: u64, by: usize) {
        self.header.consumer.head.store(head.wrapping_add(by as u64), SeqCst);
    }

    /// Copies the bytes at positions `from` on out of the ring, whoever else may write there. At most a ring of them.
    pub fn load(&self, from: u64, to: &mut [u8]) {
        assert!(to.len() <= RING);
        self.copy_out(from, to.as_mut_ptr(), to.len());
    }

    /// Puts bytes at positions `at` on into the ring, before the position tells of them. At most a ring of them.
    pub fn place(&self, at: u64, bytes: &[u8]) {
        assert!(bytes.len() <= RING);
        self.copy_in(at, bytes.as_ptr(), bytes.len());
    }

    fn copy_in(&self, at: u64, from: *const u8, len: usize) {
        let at = at as usize & (RING - 1);
        let first = len.min(RING - at);
        // SAFETY: both parts lie in the ring; the caller's memory is the program's own, which it says is readable.
        unsafe {
            std::ptr::copy_nonoverlapping(from, self.bytes.add(at), first);
            std::ptr::copy_nonoverlapping(from.add(first), self.bytes, len - first);
        }
    }

    fn copy_out(&self, at: u64, to: *mut u8, len: usize) {
        let at = at as usize & (RING - 1);
        let first = len.min(RING - at);
        // SAFETY: likewise, and it says that it is writable.
        unsafe {
            std::ptr::copy_nonoverlapping(self.bytes.add(at), to, first);
            std::ptr::copy_nonoverlapping(self.bytes, to.add(first), len - first);
        }
    }
}

#[cfg(test)]
mod tests;
