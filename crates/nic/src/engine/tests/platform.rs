//! Memory and queues of the tests' programs, in plain vectors.

use crate::platform::{BadEntry, CompletionQueue, Fault, Memory, Overrun, PacketId, Platform, RecvQueue, SendQueue};
use rdmesh_verbs::*;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

pub(super) struct Test;

impl Platform for Test {
    type Memory = Bytes;
    type SendQueue = Sends;
    type RecvQueue = Recvs;
    type CompletionQueue = Completions;

    fn serve(packet: Option<PacketId>) {
        SERVED.set(packet);
    }
}

thread_local! {
    static SERVED: Cell<Option<PacketId>> = const { Cell::new(None) };
    static SLOW: RefCell<Vec<Option<PacketId>>> = const { RefCell::new(Vec::new()) };
}

/// The packets for which memory was slow, since the last call.
pub(super) fn slow_packets() -> Vec<Option<PacketId>> {
    SLOW.take()
}

/// Memory, and how many of the next accesses to it are slow.
#[derive(Clone)]
pub(super) struct Bytes(pub(super) Arc<Mutex<Vec<u8>>>, Arc<AtomicU32>);

impl Bytes {
    pub(super) fn new(len: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![0; len])), Arc::default())
    }

    /// The next `accesses` are answered with [`Fault::Slow`].
    pub(super) fn be_slow(&self, accesses: u32) {
        self.1.store(accesses, Ordering::Relaxed);
    }

    fn access(&self) -> Result<(), Fault> {
        let one_less = self.1.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if one_less.is_err() {
            return Ok(());
        }
        SLOW.with_borrow_mut(|slow| slow.push(SERVED.get()));
        Err(Fault::Slow)
    }

    pub(super) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        self.0.lock().unwrap()[at..at + len].to_vec()
    }

    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        self.0.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn atomic(&self, offset: u64, f: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        self.access()?;
        let mut bytes = self.0.lock().unwrap();
        let word = bytes.get_mut(offset as usize..offset as usize + 8).ok_or(Fault::Gone)?;
        let old = u64::from_ne_bytes((&*word).try_into().unwrap());
        word.copy_from_slice(&f(old).to_ne_bytes());
        Ok(old)
    }
}

impl Memory for Bytes {
    fn copy(&self, offset: u64, to: &Self, to_offset: u64, len: usize) -> Result<(), Fault> {
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes)?;
        to.write(to_offset, &bytes)
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.access()?;
        let bytes = self.0.lock().unwrap();
        to.copy_from_slice(bytes.get(offset as usize..offset as usize + to.len()).ok_or(Fault::Gone)?);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.access()?;
        let mut bytes = self.0.lock().unwrap();
        bytes.get_mut(offset as usize..offset as usize + from.len()).ok_or(Fault::Gone)?.copy_from_slice(from);
        Ok(())
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.atomic(offset, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Fault> {
        self.atomic(offset, |old| old.wrapping_add(add))
    }

    fn write_atomic(&self, offset: u64, value: [u8; 8]) -> Result<(), Fault> {
        self.write(offset, &value)
    }
}

#[derive(Clone, Default)]
pub(super) struct Sends {
    pub(super) posted: Arc<Mutex<VecDeque<SendWr>>>,
    pub(super) taken: Arc<Mutex<u32>>,
}

impl SendQueue for Sends {
    type Memory = Bytes;

    fn is_ready(&self) -> bool {
        !self.posted.lock().unwrap().is_empty()
    }

    fn precedence(&self) -> Precedence {
        self.posted.lock().unwrap().front().map_or_else(Precedence::default, SendWr::precedence)
    }

    fn fetch(&mut self, _: QpType, wr: &mut SendWr) -> Option<Result<(), BadEntry>> {
        *wr = self.posted.lock().unwrap().pop_front()?;
        *self.taken.lock().unwrap() += 1;
        Some(Ok(()))
    }

    fn inline_data(&self) -> (Bytes, u64) {
        (Bytes(Arc::new(Mutex::new((0..=255).collect())), Arc::default()), 0)
    }

    fn release(&mut self, n: u32) {
        let mut taken = self.taken.lock().unwrap();
        *taken = taken.checked_sub(n).expect("a slot is released once");
    }

    fn clear(&mut self) {
        self.posted.lock().unwrap().clear();
        *self.taken.lock().unwrap() = 0;
    }
}

#[derive(Clone, Default)]
pub(super) struct Recvs(pub(super) Arc<Mutex<VecDeque<RecvWr>>>);

impl RecvQueue for Recvs {
    fn take(&mut self, wr: &mut RecvWr) -> Option<Result<(), BadEntry>> {
        *wr = self.0.lock().unwrap().pop_front()?;
        Some(Ok(()))
    }

    fn len(&self) -> u32 {
        self.0.lock().unwrap().len() as u32
    }

    fn move_into(&mut self, to: &mut Self) -> Result<(), Overrun> {
        to.0.lock().unwrap().append(&mut self.0.lock().unwrap());
        Ok(())
    }

    fn clear(&mut self) {
        self.0.lock().unwrap().clear();
    }
}

#[derive(Clone)]
pub(super) struct Completions {
    pub(super) entries: Arc<Mutex<VecDeque<Completion>>>,
    pub(super) room: usize,
    pub(super) armed: Arc<Mutex<Option<bool>>>,
}

impl CompletionQueue for Completions {
    fn push(&mut self, completion: &Completion) -> Result<(), Overrun> {
        let mut entries = self.entries.lock().unwrap();
        if entries.len() == self.room {
            return Err(Overrun);
        }
        entries.push_back(*completion);
        Ok(())
    }

    fn take_arm(&mut self, _: u32, solicited: bool) -> bool {
        let mut armed = self.armed.lock().unwrap();
        let due = armed.is_some_and(|only_solicited| !only_solicited || solicited);
        if due {
            *armed = None;
        }
        due
    }

    fn len(&self) -> u32 {
        self.entries.lock().unwrap().len() as u32
    }

    fn move_into(&mut self, to: &mut Self) -> Result<(), Overrun> {
        to.entries.lock().unwrap().append(&mut self.entries.lock().unwrap());
        Ok(())
    }
}
