//! Memory and queues of simulated programs. Every effect of an engine on them is recorded in a [`Journal`], in order, for the
//! model to check.

use rdmesh_nic::platform::{BadEntry, CompletionQueue, Fault, Memory, Overrun, Platform, RecvQueue, SendQueue};
use rdmesh_verbs::{Completion, Precedence, QpType, RecvWr, SendWr};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// The simulated platform of an engine.
pub struct Sim;

impl Platform for Sim {
    type Memory = Region;
    type SendQueue = Sends;
    type RecvQueue = Recvs;
    type CompletionQueue = Completions;
}

/// Effect of an engine on memory or queues.
#[derive(Clone, Debug)]
pub enum Effect {
    /// It wrote to registered memory.
    Write {
        /// The region.
        region: u32,
        /// The offset in it.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
        /// The previous bytes.
        old: Vec<u8>,
    },
    /// It executed an atomic operation.
    Atomic {
        /// The region.
        region: u32,
        /// The offset in it.
        offset: u64,
        /// The operation.
        kind: Atomic,
        /// The previous value.
        old: u64,
    },
    /// It wrote a completion.
    Complete {
        /// Into which queue.
        queue: u32,
        /// The completion.
        completion: Completion,
    },
    /// A completion found no room.
    Overrun {
        /// The queue.
        queue: u32,
    },
    /// It took a receive request.
    Taken {
        /// From which queue.
        queue: u32,
        /// Its number.
        wr_id: u64,
    },
}

/// An atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Atomic {
    Swap { compare: u64, swap: u64 },
    Add(u64),
    Write([u8; 8]),
}

/// Effects of the engines, in order.
#[derive(Clone, Default)]
pub struct Journal(Arc<Mutex<Vec<Effect>>>);

impl Journal {
    /// Takes the effects since the last call.
    pub fn take(&self) -> Vec<Effect> {
        std::mem::take(&mut *locked(&self.0))
    }

    fn push(&self, effect: Effect) {
        locked(&self.0).push(effect);
    }
}

/// Memory of a program.
#[derive(Clone)]
pub struct Region {
    id: u32,
    bytes: Arc<Mutex<Vec<u8>>>,
    journal: Journal,
}

impl Region {
    /// `len` zero bytes.
    pub fn new(id: u32, len: usize, journal: Journal) -> Self {
        Self { id, bytes: Arc::new(Mutex::new(vec![0; len])), journal }
    }

    /// The program looks at its memory.
    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        locked(&self.bytes)[at as usize..at as usize + len].to_vec()
    }

    /// Whether `expected` is there.
    pub fn holds(&self, at: u64, expected: &[u8]) -> bool {
        &locked(&self.bytes)[at as usize..at as usize + expected.len()] == expected
    }

    /// The program changes its memory. Returns the previous content.
    pub fn put(&self, at: u64, bytes: &[u8]) -> Vec<u8> {
        let mut all = locked(&self.bytes);
        let place = &mut all[at as usize..at as usize + bytes.len()];
        let old = place.to_vec();
        place.copy_from_slice(bytes);
        old
    }

    fn atomic(&self, offset: u64, kind: Atomic) -> Result<u64, Fault> {
        let mut bytes = locked(&self.bytes);
        let place = bytes.get_mut(offset as usize..offset as usize + 8).ok_or(Fault::Gone)?;
        let old = u64::from_ne_bytes((&*place).try_into().expect("eight bytes"));
        let new = match kind {
            Atomic::Swap { compare, swap } => if old == compare { swap } else { old }.to_ne_bytes(),
            Atomic::Add(add) => old.wrapping_add(add).to_ne_bytes(),
            Atomic::Write(value) => value,
        };
        place.copy_from_slice(&new);
        self.journal.push(Effect::Atomic { region: self.id, offset, kind, old });
        Ok(old)
    }
}

impl Memory for Region {
    fn copy(&self, offset: u64, to: &Self, to_offset: u64, len: usize) -> Result<(), Fault> {
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes)?;
        to.write(to_offset, &bytes)
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let bytes = locked(&self.bytes);
        to.copy_from_slice(bytes.get(offset as usize..offset as usize + to.len()).ok_or(Fault::Gone)?);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        let mut bytes = locked(&self.bytes);
        let place = bytes.get_mut(offset as usize..offset as usize + from.len()).ok_or(Fault::Gone)?;
        let old = place.to_vec();
        place.copy_from_slice(from);
        self.journal.push(Effect::Write { region: self.id, offset, bytes: from.to_vec(), old });
        Ok(())
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.atomic(offset, Atomic::Swap { compare, swap })
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Fault> {
        self.atomic(offset, Atomic::Add(add))
    }

    fn write_atomic(&self, offset: u64, value: [u8; 8]) -> Result<(), Fault> {
        self.atomic(offset, Atomic::Write(value)).map(drop)
    }
}

/// A send queue. Inline data lies in a ring of its own, whose slots are spoilt as soon as they are handed back.
#[derive(Clone)]
pub struct Sends {
    state: Arc<Mutex<SendState>>,
    inline: Region,
}

struct SendState {
    posted: VecDeque<SendWr>,
    next: u64,
    fetched: u64,
    released: u64,
    over_released: bool,
}

impl Sends {
    /// An empty queue. Its journal is not checked: the program's own ring is not registered memory.
    pub fn new() -> Self {
        let inline = Region::new(u32::MAX, INLINE * SLOTS as usize, Journal::default());
        let state = SendState { posted: VecDeque::new(), next: 0, fetched: 0, released: 0, over_released: false };
        Self { state: Arc::new(Mutex::new(state)), inline }
    }

    /// Posts a request; `inline` is its data where it is inline.
    pub fn post(&self, wr: SendWr, inline: &[u8]) {
        let mut state = locked(&self.state);
        self.inline.put(state.next % SLOTS * INLINE as u64, inline);
        state.next += 1;
        state.posted.push_back(wr);
    }

    /// Requests whose slots the engine has not handed back.
    pub fn taken(&self) -> u64 {
        let state = locked(&self.state);
        state.next - state.released
    }

    /// Whether more slots were handed back than were taken.
    pub fn is_broken(&self) -> bool {
        locked(&self.state).over_released
    }
}

impl Default for Sends {
    fn default() -> Self {
        Self::new()
    }
}

impl SendQueue for Sends {
    type Memory = Region;

    fn is_ready(&self) -> bool {
        !locked(&self.state).posted.is_empty()
    }

    fn precedence(&self) -> Precedence {
        locked(&self.state).posted.front().map_or_else(Precedence::default, SendWr::precedence)
    }

    fn fetch(&mut self, _: QpType, wr: &mut SendWr) -> Option<Result<(), BadEntry>> {
        let mut state = locked(&self.state);
        *wr = state.posted.pop_front()?;
        state.fetched += 1;
        Some(Ok(()))
    }

    fn inline_data(&self) -> (Region, u64) {
        let slot = (locked(&self.state).fetched - 1) % SLOTS;
        (self.inline.clone(), slot * INLINE as u64)
    }

    fn release(&mut self, n: u32) {
        let mut state = locked(&self.state);
        for _ in 0..n {
            self.inline.put(state.released % SLOTS * INLINE as u64, &[0xdd; INLINE]);
            state.released += 1;
        }
        state.over_released |= state.released > state.fetched;
    }

    fn clear(&mut self) {
        let mut state = locked(&self.state);
        state.posted.clear();
        state.fetched = state.next;
        state.released = state.next;
    }
}

/// A receive queue.
#[derive(Clone)]
pub struct Recvs {
    id: u32,
    posted: Arc<Mutex<VecDeque<RecvWr>>>,
    journal: Journal,
}

impl Recvs {
    /// An empty queue.
    pub fn new(id: u32, journal: Journal) -> Self {
        Self { id, posted: Arc::default(), journal }
    }

    /// Posts a request.
    pub fn post(&self, wr: RecvWr) {
        locked(&self.posted).push_back(wr);
    }
}

impl RecvQueue for Recvs {
    fn take(&mut self, wr: &mut RecvWr) -> Option<Result<(), BadEntry>> {
        *wr = locked(&self.posted).pop_front()?;
        self.journal.push(Effect::Taken { queue: self.id, wr_id: wr.wr_id });
        Some(Ok(()))
    }

    fn len(&self) -> u32 {
        locked(&self.posted).len() as u32
    }

    fn move_into(&mut self, to: &mut Self) -> Result<(), Overrun> {
        locked(&to.posted).append(&mut locked(&self.posted));
        Ok(())
    }

    fn clear(&mut self) {
        locked(&self.posted).clear();
    }
}

/// A completion queue with a bound.
#[derive(Clone)]
pub struct Completions {
    id: u32,
    room: usize,
    entries: Arc<Mutex<VecDeque<Completion>>>,
    journal: Journal,
}

impl Completions {
    /// An empty queue for `room` entries.
    pub fn new(id: u32, room: usize, journal: Journal) -> Self {
        Self { id, room, entries: Arc::default(), journal }
    }

    /// The program takes the oldest entry.
    pub fn poll(&self) -> Option<Completion> {
        locked(&self.entries).pop_front()
    }
}

impl CompletionQueue for Completions {
    fn push(&mut self, completion: &Completion) -> Result<(), Overrun> {
        let mut entries = locked(&self.entries);
        if entries.len() >= self.room {
            self.journal.push(Effect::Overrun { queue: self.id });
            return Err(Overrun);
        }
        entries.push_back(*completion);
        self.journal.push(Effect::Complete { queue: self.id, completion: *completion });
        Ok(())
    }

    fn take_arm(&mut self, _: u32, _: bool) -> bool {
        false
    }

    fn len(&self) -> u32 {
        locked(&self.entries).len() as u32
    }

    fn move_into(&mut self, to: &mut Self) -> Result<(), Overrun> {
        locked(&to.entries).append(&mut locked(&self.entries));
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Most bytes of inline data.
pub const INLINE: usize = 128;
/// Slots of a send queue.
pub const SLOTS: u64 = 256;
