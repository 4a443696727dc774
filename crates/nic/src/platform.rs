//! Platform traits: memory and queues that the surroundings of the engine implement.

use rdmesh_verbs::{Completion, Precedence, Psn, QpType, Qpn, RecvWr, SendWr};

/// The types that one environment (router, test, simulator) plugs in.
pub trait Platform: Sized + 'static {
    /// Registered memory.
    type Memory: Memory;
    /// Send queues.
    type SendQueue: SendQueue<Memory = Self::Memory>;
    /// Receive queues, shared or not.
    type RecvQueue: RecvQueue;
    /// Completion queues.
    type CompletionQueue: CompletionQueue;
    /// From now on the calling thread reaches memory for this packet; for none that can be told from others where there is
    /// none.
    fn serve(_packet: Option<PacketId>) {}
}

/// Identity of a packet for which memory is reached: the same when the packet comes again after [`Fault::Slow`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketId {
    /// The queue pair that executes it.
    pub qpn: Qpn,
    /// Its connection: the next one, after RESET, may begin with the same packet number.
    pub connection: u32,
    /// Whether it is a response to a request of that queue pair.
    pub is_response: bool,
    /// Its number.
    pub psn: Psn,
}

/// A registered range cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// For good: the program unmapped it, or died.
    Gone,
    /// At present: the same is to be asked again later. A part of the bytes may have been copied, or be copied until then;
    /// an atomic has not been executed, or its result is kept for the same packet.
    Slow,
}

/// A run of bytes that the NIC may reach, addressed by offsets from its start. Clones share the bytes and keep them
/// reachable. The engine checks bounds; an offset out of range is [`Fault::Gone`] all the same, never a panic.
pub trait Memory: Clone + Send {
    /// Copies `len` bytes to `to`. The bytes may change meanwhile: then any mixture may arrive.
    fn copy(&self, offset: u64, to: &Self, to_offset: u64, len: usize) -> Result<(), Fault>;
    /// Copies bytes out.
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault>;
    /// Copies bytes in.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault>;
    /// Atomic compare-and-swap on eight aligned bytes; returns the old value.
    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault>;
    /// Atomic add on eight aligned bytes; returns the old value.
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Fault>;
    /// Copies whole aligned words out, each of them at once, where another side may write to them meanwhile.
    fn load(&self, offset: u64, words: &mut [u64]) -> Result<(), Fault> {
        for (at, word) in (offset..).step_by(8).zip(words) {
            let mut bytes = [0; 8];
            self.read(at, &mut bytes)?;
            *word = u64::from_ne_bytes(bytes);
        }
        Ok(())
    }
    /// Writes eight aligned bytes at once.
    fn write_atomic(&self, offset: u64, value: [u8; 8]) -> Result<(), Fault>;
}

/// An entry of a queue cannot be understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadEntry {
    /// Its identifier, as far as it could be read.
    pub wr_id: u64,
}

/// A send queue, seen from the NIC: entries are fetched in order, and slots are handed back in order.
pub trait SendQueue: Send {
    /// See [`Platform::Memory`].
    type Memory;
    /// Whether there is an entry to fetch.
    fn is_ready(&self) -> bool;
    /// Ordering properties of the next entry: whether earlier ones come first. They may have changed when the entry is fetched.
    fn precedence(&self) -> Precedence;
    /// Copies the next entry of a `qp_type` QP into `wr`, or none. The slot stays taken until it is released.
    fn fetch(&mut self, qp_type: QpType, wr: &mut SendWr) -> Option<Result<(), BadEntry>>;
    /// Inline data of the entry fetched last: its memory and the offset there.
    fn inline_data(&self) -> (Self::Memory, u64);
    /// Hands the `n` oldest fetched slots back to the program.
    fn release(&mut self, n: u32);
    /// Forgets every entry, fetched or not.
    fn clear(&mut self);
}

/// A receive queue, seen from the NIC.
pub trait RecvQueue: Send {
    /// Copies the next entry into `wr` and hands its slot back, or none.
    fn take(&mut self, wr: &mut RecvWr) -> Option<Result<(), BadEntry>>;
    /// Number of posted entries.
    fn len(&self) -> u32;
    /// Whether none is posted.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Moves the entries into `to`, which is to take this queue's place.
    fn move_into(&mut self, to: &mut Self) -> Result<(), Overrun>;
    /// Forgets every entry.
    fn clear(&mut self);
}

/// The queue is too small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overrun;

/// A completion queue, seen from the NIC.
pub trait CompletionQueue: Send {
    /// Adds an entry.
    fn push(&mut self, completion: &Completion) -> Result<(), Overrun>;
    /// Asked after each entry: whether the program wants an event for it, as armed. Disarms. `cq` is the queue's own handle.
    fn take_arm(&mut self, cq: u32, solicited: bool) -> bool;
    /// Called for each remote WRITE without a completion, of a queue pair that receives into it: a thread that polls memory for
    /// the data may sleep like one that polls the queue.
    fn on_write(&mut self) {}
    /// Entries that the program has not polled.
    fn len(&self) -> u32;
    /// Whether the program has polled everything.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Moves unpolled entries into `to`, which is to take this queue's place.
    fn move_into(&mut self, to: &mut Self) -> Result<(), Overrun>;
}
