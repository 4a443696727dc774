//! Messages that were announced and are not yet read: each has a word that its receiver sets.

use crate::announcement::{Announcement, Contents, LEN};
use crate::cache::COPIED;
use crate::control::Secret;
use crate::memory::{self, Pages};
use crate::verbs::{Device, Region};
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Most messages that are announced at a time.
const SLOTS: usize = 1024;

/// Parts of the pool into which short messages are copied.
const CHUNKS: usize = 64;

/// Announced messages by slot.
pub(crate) struct Sends {
    words: Pages,
    words_region: Region,
    pool: Pages,
    pool_region: Arc<Region>,
    free_chunks: Vec<usize>,
    /// Slots of copied messages that the program has been told are sent.
    left: Vec<usize>,
    slots: Vec<Option<Sent>>,
    free: Vec<usize>,
    sequence: u64,
}

/// One announced message.
struct Sent {
    sequence: u64,
    to: u32,
    address: usize,
    len: u64,
    /// Keeps the buffer registered.
    _region: Arc<Region>,
    /// Part of the pool with a copy, which the program need not wait for.
    chunk: Option<usize>,
    message: Box<[u8; LEN]>,
}

/// A message to be announced.
pub(crate) struct Outgoing {
    pub(crate) to: u32,
    pub(crate) address: usize,
    pub(crate) len: u64,
    /// None to have it copied.
    pub(crate) region: Option<Arc<Region>>,
}

impl Sends {
    pub(crate) fn new(device: &Device) -> Result<Self, Errno> {
        let words = Pages::new(SLOTS * size_of::<u64>())?;
        let words_region = device.register_shared(words.address(), words.len())?;
        let pool = Pages::new(CHUNKS * COPIED)?;
        let pool_region = Arc::new(device.register(pool.address(), pool.len())?);
        Ok(Self {
            words,
            words_region,
            pool,
            pool_region,
            free_chunks: (0..CHUNKS).rev().collect(),
            left: Vec::new(),
            slots: std::iter::repeat_with(|| None).take(SLOTS).collect(),
            free: (0..SLOTS).rev().collect(),
            sequence: 0,
        })
    }

    /// Whether there is room to copy one more message.
    pub(crate) fn can_copy(&mut self) -> bool {
        if self.free_chunks.is_empty() {
            self.sweep();
        }
        !self.free_chunks.is_empty()
    }

    /// A slot for a message of rank `sender`; none where all are in use.
    pub(crate) fn announce(&mut self, outgoing: Outgoing, sender: u32, secret: Secret) -> Option<usize> {
        if self.free.is_empty() {
            self.sweep();
        }
        let slot = self.free.pop()?;
        self.sequence += 1;
        let Outgoing { to, address, len, region } = outgoing;
        let (address, region, chunk) = match region {
            Some(region) => (address, region, None),
            None => {
                let chunk = self.free_chunks.pop()?;
                let copy = self.pool.address() + chunk * COPIED;
                memory::copy(address, copy, len as usize);
                (copy, Arc::clone(&self.pool_region), Some(chunk))
            }
        };
        let contents = Contents {
            address: address as u64,
            len,
            done_address: (self.words.address() + slot * size_of::<u64>()) as u64,
            sequence: self.sequence,
            rkey: region.rkey(),
            done_rkey: self.words_region.rkey(),
            sender,
        };
        let mut message = Box::new([0; LEN]);
        message.copy_from_slice(Announcement::new(secret, contents).as_bytes());
        self.words.set_word(slot, 0);
        self.slots[slot] = Some(Sent { sequence: self.sequence, to, address, len, _region: region, chunk, message });
        Some(slot)
    }

    /// Address of the announcement itself, which stays until the slot is freed.
    pub(crate) fn message(&self, slot: usize) -> usize {
        self.slots[slot].as_ref().map_or(0, |sent| sent.message.as_ptr().expose_provenance())
    }

    /// Whether the receiver has all of it.
    pub(crate) fn is_done(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_none_or(|sent| self.words.word(slot) == sent.sequence)
    }

    /// Whether the program need not wait for the receiver.
    pub(crate) fn is_copied(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_some_and(|sent| sent.chunk.is_some())
    }

    /// The program is told that a copied message is sent: its slot is freed when it was read.
    pub(crate) fn leave(&mut self, slot: usize) {
        self.left.push(slot);
    }

    /// Frees a slot whose message is done, or was never sent.
    pub(crate) fn end(&mut self, slot: usize) {
        if let Some(sent) = self.slots[slot].take() {
            self.free_chunks.extend(sent.chunk);
            self.free.push(slot);
        }
    }

    /// Frees the slots of messages that were read since the program was told.
    pub(crate) fn sweep(&mut self) {
        for slot in std::mem::take(&mut self.left) {
            if self.is_done(slot) { self.end(slot) } else { self.left.push(slot) }
        }
    }

    /// Whether no copied message waits to be read.
    pub(crate) fn is_swept(&self) -> bool {
        self.left.is_empty()
    }

    /// A part of the message `sequence`, for the rank that it was announced to.
    pub(crate) fn part(&self, sequence: u64, to: u32, offset: u64, len: u64) -> Option<Vec<u8>> {
        let (_, sent) = self.find(sequence, to)?;
        let end = offset.checked_add(len).filter(|&end| end <= sent.len)?;
        let mut bytes = vec![0; usize::try_from(end - offset).ok()?];
        memory::read(sent.address + usize::try_from(offset).ok()?, &mut bytes);
        Some(bytes)
    }

    /// The rank `to` says that it has all of the message `sequence`.
    pub(crate) fn complete(&mut self, sequence: u64, to: u32) {
        if let Some((slot, _)) = self.find(sequence, to) {
            self.words.set_word(slot, sequence);
        }
    }

    fn find(&self, sequence: u64, to: u32) -> Option<(usize, &Sent)> {
        let slots = self.slots.iter().enumerate().filter_map(|(slot, sent)| Some((slot, sent.as_ref()?)));
        slots.into_iter().find(|(_, sent)| sent.sequence == sequence && sent.to == to)
    }
}
