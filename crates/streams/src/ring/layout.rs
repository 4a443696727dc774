//! Layout of the memory that the two ends of an accelerated connection share.
//!
//! One slot for a connection: a header and two rings of bytes, one for each direction. Both processes can write all of it, so
//! nothing in it is believed: positions are clamped, and no length, offset or identifier is used without a check.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a ring; a power of two. Small enough that both rings of a busy connection stay in a level 2 cache.
pub const RING: usize = 128 << 10;
/// Bytes of the header, a page.
pub const HEADER: usize = 4096;
/// Bytes of a slot.
pub const SLOT: usize = HEADER + 2 * RING;
/// Threads and epoll instances that can wait for one direction of a connection at its end.
pub const WAITERS: usize = 4;

/// Header of a slot.
#[repr(C)]
pub struct Header {
    /// From the connecting to the accepting end, and back.
    pub directions: [Direction; 2],
    /// Random; both ends of a relayed connection have the same. Tells that bytes on TCP are the other end's way back to it.
    pub nonce: [AtomicU64; 2],
}

/// Header of one direction. The lines are written by: the writer, the reader, rarely anyone, each end for itself.
#[repr(C)]
#[allow(missing_docs, reason = "the names are those of the types")]
pub struct Direction {
    pub producer: Producer,
    pub consumer: Consumer,
    pub path: Path,
    pub reader: Waiting,
    pub writer: Waiting,
}

/// Written by the writer for each message. The reader looks at all of it, so that its wish for space costs it no further line.
#[repr(C, align(64))]
pub struct Producer {
    /// Bytes that have ever been written.
    pub tail: AtomicU64,
    /// Whether the writer waits for space.
    pub wants_space: AtomicU32,
}

/// Written by the reader for each message.
#[repr(C, align(64))]
pub struct Consumer {
    /// Bytes that have ever been read.
    pub head: AtomicU64,
}

/// Path of the bytes of a direction: TCP, the ring from an offset on, and TCP again from another one on. Offsets are stored
/// plus one; zero means that there is no switch yet.
#[repr(C, align(64))]
pub struct Path {
    /// Bytes of the TCP stream before the first byte of the ring.
    pub up_at: AtomicU64,
    /// Bytes of the ring before TCP goes on.
    pub down_at: AtomicU64,
    /// Whether the reader takes nothing more from the ring and asks the writer to go back to TCP, with what is left there.
    pub is_frozen: AtomicU32,
    /// Whether the writer has shut the direction down, or closed its socket: what is in the ring cannot go by TCP any more.
    pub is_final: AtomicU32,
    /// Of a relayed connection, a [`Move`]: the relay and the writer settle here whether bytes of the ring are handed on.
    pub moved: AtomicU32,
}

/// A relayed direction's move to the ring, between the writer's word of it (`up_at`) and the reader's.
///
/// The relay hands on no byte before the reader's slot has `up_at`, and none if the writer has withdrawn by then. So a writer that
/// goes back to TCP knows whether its reader waits for a record, also where the relay has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Move {
    /// Not settled yet.
    Open = 0,
    /// The reader's slot has `up_at`.
    Seen = 1,
    /// The direction has stayed on TCP.
    Withdrawn = 2,
}

impl Path {
    /// Settles the move as seen: the reader's slot has `up_at`, and the relay hands bytes on. False where it is settled already.
    pub fn see_move(&self) -> bool {
        self.settle(Move::Seen)
    }

    /// Settles the move as withdrawn: no byte of the ring has been handed on, and none will be. False where it is settled already.
    pub fn withdraw_move(&self) -> bool {
        self.settle(Move::Withdrawn)
    }

    /// Whether the writer has withdrawn.
    pub fn is_withdrawn(&self) -> bool {
        self.moved.load(Ordering::Acquire) == Move::Withdrawn as u32
    }

    fn settle(&self, how: Move) -> bool {
        let settled = self.moved.compare_exchange(Move::Open as u32, how as u32, Ordering::SeqCst, Ordering::SeqCst);
        settled.is_ok()
    }
}

/// Waiters at one end of a direction: the connection's index there, and the waiters' numbers plus one.
#[repr(C, align(64))]
pub struct Waiting {
    /// Index of the connection in the inbox of this end's process.
    pub index: AtomicU32,
    /// Numbers of the waiters plus one; 0 for none.
    pub waiters: [AtomicU32; WAITERS],
}

const _: () = assert!(size_of::<Direction>() == 5 * 64 && size_of::<Header>() <= HEADER);
const _: () = assert!(RING.is_power_of_two());
