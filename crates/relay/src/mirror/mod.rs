//! A stream's slot at one end of a trunk, as the copy of the slot at the other end.
//!
//! The process at either end sees a slot of its own, and the relay as its peer. What the process writes there, bytes and positions,
//! a mirror finds and hands to the trunk; what comes from the trunk it enters. Bytes do not pass through here: they are written
//! from one ring into the other, at the same place.
//!
//! Order matters twice. The position at which a direction moves to the ring is told, and known at the other end, before the first
//! byte of the ring; its end, or its move back to TCP, is told after the last one. So a reader at the other end that sees an end has
//! all bytes.
//!
//! Nothing that the process writes is believed: positions are checked against those that the other end has told.

use crate::wire::State;
use rdmesh_streams::ring::layout::RING;
use rdmesh_streams::ring::{Corrupt, Ring, Slot};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;

/// The slot, and what has been told of it.
pub(crate) struct Mirror {
    slot: Slot,
    /// Direction that the process writes.
    tx: usize,
    /// Bytes of it that have been handed to the trunk.
    sent: u64,
    /// Bytes of it that the other end has read, as far as it has told.
    peer_head: u64,
    /// Bytes of the other direction that have come.
    received: u64,
    told: State,
    heard: State,
    /// The other end knows where the ring begins, and the process has not withdrawn: bytes are handed on.
    is_open: bool,
    /// The process has ended: it writes nothing more.
    is_orphan: bool,
}

/// Something for the trunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// `len` bytes at offset `at` of the ring that the process writes.
    Bytes { at: usize, len: usize },
    /// The header's words, where they have changed.
    Tell(State),
}

/// Waiters of the process that are to look at the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Changed {
    pub(crate) reader: bool,
    pub(crate) writer: bool,
    /// The reader at the other end asks the writer to go back to TCP.
    pub(crate) is_frozen: bool,
}

impl Mirror {
    /// Of a new slot, whose process writes direction `tx`. The relay finds the stream by `index` in its inbox.
    pub(crate) fn new(slot: Slot, tx: usize, index: u32) -> Self {
        let mirror = Self {
            slot,
            tx: tx & 1,
            sent: 0,
            peer_head: 0,
            received: 0,
            told: State::default(),
            heard: State::default(),
            is_open: false,
            is_orphan: false,
        };
        let (out, input) = (mirror.out(), mirror.input());
        for waiting in [&out.header.reader, &input.header.writer] {
            waiting.index.store(index, Relaxed);
            // Waiter 0, the only one that a relay has.
            waiting.waiters[0].store(1, SeqCst);
        }
        mirror
    }

    /// The ring that the process writes.
    pub(crate) fn out(&self) -> Ring<'_> {
        self.slot.ring(self.tx)
    }

    /// The ring that it reads.
    pub(crate) fn input(&self) -> Ring<'_> {
        self.slot.ring(1 - self.tx)
    }

    /// Direction that the process writes, 0 or 1.
    pub(crate) fn tx(&self) -> usize {
        self.tx
    }

    /// Sets the random number by which a way back to TCP is recognised.
    pub(crate) fn set_nonce(&self, nonce: [u64; 2]) {
        self.slot.set_nonce(nonce);
    }

    /// Whether the other end has told the end of its direction, or its move back to TCP.
    pub(crate) fn has_heard_end(&self) -> bool {
        self.heard.is_final || self.heard.down_at != 0
    }

    /// The process has ended. What it has written is still handed on; nobody goes back to TCP with it any more, so that needs no
    /// word of the other end.
    pub(crate) fn orphan(&mut self) {
        self.is_orphan = true;
        self.is_open |= self.out().header.path.see_move();
    }

    /// Whether nothing more is to be told to, or heard from, the other end.
    pub(crate) fn is_over(&self) -> bool {
        let is_told = self.told.is_final && self.sent == self.out().header.producer.tail.load(Acquire);
        (is_told || self.told.down_at != 0) && (self.is_orphan || self.has_heard_end())
    }

    /// Whether bytes wait for the other end's word that it knows where the ring begins.
    pub(crate) fn is_unsettled(&self) -> bool {
        let header = self.out().header;
        !self.is_open && !header.path.is_withdrawn() && self.sent != header.producer.tail.load(Acquire)
    }

    /// Hands what is new to `send`, which returns false where the trunk has no room: the rest comes with the next call.
    pub(crate) fn poll(&mut self, mut send: impl FnMut(Action) -> bool) -> Result<(), Corrupt> {
        let path = &self.slot.ring(self.tx).header.path;
        // The end before the position, so that an end is told with all bytes before it.
        let (is_final, down_at) = (path.is_final.load(Acquire) != 0 || self.is_orphan, path.down_at.load(Acquire));
        let tail = self.out().header.producer.tail.load(Acquire);
        // And the beginning after it. A process that has withdrawn has not moved.
        let is_withdrawn = !self.is_open && path.is_withdrawn();
        let up_at = if is_withdrawn { 0 } else { path.up_at.load(Acquire) };
        let ahead = tail.wrapping_sub(self.sent);
        if ahead > RING as u64 || tail.wrapping_sub(self.peer_head) > RING as u64 {
            return Err(Corrupt);
        }
        let mut state = State { up_at, has_up: self.heard.up_at != 0, ..self.told };
        self.report_reading(&mut state)?;
        if !self.tell(state, &mut send) {
            return Ok(());
        }
        if !self.is_open && !is_withdrawn && self.sent != tail {
            return Ok(());
        }
        while self.sent != tail && !is_withdrawn {
            let at = self.sent as usize & (RING - 1);
            let len = (tail.wrapping_sub(self.sent) as usize).min(RING - at);
            if !send(Action::Bytes { at, len }) {
                return Ok(());
            }
            self.sent = self.sent.wrapping_add(len as u64);
        }
        self.tell(State { is_final, down_at, ..state }, &mut send);
        Ok(())
    }

    /// Puts the reader's position into `state` where it is due: with every quarter of the ring, or when the process has frozen the
    /// direction, whose position has to be exact then.
    fn report_reading(&self, state: &mut State) -> Result<(), Corrupt> {
        let input = self.input();
        state.is_frozen = input.header.path.is_frozen.load(SeqCst) != 0;
        let head = |input: &Ring<'_>| input.header.consumer.head.load(Acquire);
        let mut read = head(&input);
        // The process is asked to say when it has read more, where its peer sees little space.
        if self.received.wrapping_sub(state.head) >= (RING / 2) as u64 && read.wrapping_sub(state.head) < QUARTER {
            input.wish_for_space();
            fence(SeqCst);
            read = head(&input);
        }
        if self.received.wrapping_sub(read) > RING as u64 {
            return Err(Corrupt);
        }
        if read.wrapping_sub(state.head) >= QUARTER || state.is_frozen != self.told.is_frozen {
            state.head = read;
        }
        Ok(())
    }

    fn tell(&mut self, state: State, send: &mut impl FnMut(Action) -> bool) -> bool {
        let is_known = state == self.told;
        if is_known || send(Action::Tell(state)) {
            self.told = state;
            return true;
        }
        false
    }

    /// Another reference to the slot, to be read while the mirror is polled.
    pub(crate) fn slot(&self) -> Slot {
        self.slot.clone()
    }

    /// Bytes have come that go into the ring that the process reads.
    pub(crate) fn on_few_bytes(&mut self, bytes: &[u8]) -> Result<Changed, Corrupt> {
        let ahead = self.received.wrapping_sub(self.input().header.consumer.head.load(Acquire));
        if ahead.saturating_add(bytes.len() as u64) > RING as u64 {
            return Err(Corrupt);
        }
        self.input().place(self.received, bytes);
        self.on_bytes(bytes.len() as u32)
    }

    /// `len` bytes have been written into the ring that the process reads.
    pub(crate) fn on_bytes(&mut self, len: u32) -> Result<Changed, Corrupt> {
        let input = self.input();
        let received = self.received.wrapping_add(len.into());
        if received.wrapping_sub(input.header.consumer.head.load(Acquire)) > RING as u64 {
            return Err(Corrupt);
        }
        input.header.producer.tail.store(received, SeqCst);
        fence(SeqCst);
        self.received = received;
        Ok(Changed { reader: true, ..Changed::default() })
    }

    /// The other end has told its state.
    pub(crate) fn on_state(&mut self, state: State) -> Result<Changed, Corrupt> {
        let before = std::mem::replace(&mut self.heard, state);
        let (out, input) = (self.slot.ring(self.tx), self.slot.ring(1 - self.tx));
        if self.sent.wrapping_sub(state.head) > self.sent.wrapping_sub(self.peer_head) {
            return Err(Corrupt);
        }
        self.peer_head = state.head;
        out.header.consumer.head.store(state.head, SeqCst);
        if state.has_up && !self.is_open {
            self.is_open = out.header.path.see_move();
        }
        if state.is_frozen != before.is_frozen {
            out.header.path.is_frozen.store(state.is_frozen.into(), SeqCst);
        }
        let path = &input.header.path;
        path.up_at.store(state.up_at, SeqCst);
        // Where the direction goes back to TCP the reader learns from TCP itself, unless it has never left.
        if state.down_at != 0 && state.up_at == 0 {
            path.down_at.store(state.down_at, SeqCst);
        }
        if state.is_final {
            path.is_final.store(1, SeqCst);
        }
        fence(SeqCst);
        // A reader that has seen TCP's end waits for these: only then does the end count.
        let path_of = |state: &State| (state.up_at, state.down_at, state.is_final);
        Ok(Changed {
            reader: path_of(&before) != path_of(&state),
            writer: out.take_wish_for_space(),
            is_frozen: state.is_frozen && !before.is_frozen,
        })
    }
}

/// Bytes that are read before the other end is told.
const QUARTER: u64 = (RING / 4) as u64;

#[cfg(test)]
mod tests;
