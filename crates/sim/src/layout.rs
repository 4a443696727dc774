//! Memory layout of a simulated program: equal slots, one for each of its queues.

use std::ops::Range;

/// Program's address of the first byte.
pub const BASE: u64 = 0x10_0000;
/// Bytes of a slot.
pub const SLOT: u64 = RECV.end;
/// Payload of SEND and WRITE, and results of READ and atomics.
pub const DATA: Range<u64> = 0..0x2_0000;
/// Range that the peer may WRITE.
pub const TARGET: Range<u64> = DATA.end..DATA.end + 0x8000;
/// Range that the program changes and the peer may READ.
pub const READABLE: Range<u64> = TARGET.end..TARGET.end + 0x8000;
/// Words for atomics.
pub const CELLS: Range<u64> = READABLE.end..READABLE.end + 0x100;
/// Slots for received messages.
pub const RECV: Range<u64> = CELLS.end..CELLS.end + BUFFER * BUFFERS;
/// Bytes of a receive buffer.
pub const BUFFER: u64 = 0x8000;
/// Receive buffers of a slot.
pub const BUFFERS: u64 = 10;
/// Bytes in front of a received datagram.
pub const GRH: u64 = 40;
