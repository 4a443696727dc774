//! Managed queues.

use super::ring::{Ring, long, read_sges, word};
use super::{ChainSlot, INLINE_COPIES, ManageSend, RingInit};
use crate::packet::Head;
use crate::platform::Memory;
use crate::timer::Time;
use alloc::boxed::Box;
use rdmesh_verbs::chain::{ChainFlags, ChainOp, Control, Request, offset};
use rdmesh_verbs::{RecvWr, SgeList};
use zerocopy::IntoBytes;

/// A managed send queue. Its limit is in [`Chains`](super::Chains), where others can raise it.
pub(crate) struct ManagedSend<M> {
    pub(crate) ring: Ring<M>,
    copies: M,
    inline_max: u32,
    /// Copies of inline data that were made.
    copied: u32,
    /// The request that is fetched or started next, counted from the first.
    next: u64,
    /// Copy of that request, if it is fetched.
    request: Box<Request>,
    is_fetched: bool,
    /// Bytes of it that a LOCAL request has moved.
    pub(crate) moved: u64,
    /// Number of the last request that it started, among those of all queues.
    pub(crate) last: u64,
    /// Time at which its endpoint's budget has steps for it again.
    pub(crate) refill: Option<Time>,
    /// Nothing can be started before the queue is woken.
    pub(crate) is_parked: bool,
    /// The completion queue that will wake it.
    pub(crate) waits_for: Option<u32>,
}

/// A slot that is no request, or none that was proved.
pub(crate) struct Unfit {
    /// The program's identifier.
    pub(crate) wr_id: u64,
}

impl<M: Memory> ManagedSend<M> {
    /// A queue whose requests have at most so many inline bytes, unless its sizes are impossible.
    pub(crate) fn new(init: ManageSend<M>, inline_max: u32) -> Option<Self> {
        let ring = Ring::new(init.ring, offset::SGES + offset::SGE_LEN)?;
        Some(Self {
            ring,
            copies: init.copies,
            inline_max,
            copied: 0,
            next: 0,
            request: Box::new(Request::new(Control::new(ChainOp::Nop))),
            is_fetched: false,
            moved: 0,
            last: 0,
            refill: None,
            is_parked: false,
            waits_for: None,
        })
    }

    /// The request that is fetched or started next.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The lap of that request.
    pub(crate) fn lap(&self) -> u64 {
        self.ring.lap(self.next)
    }

    /// The fetched request.
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// Copies the next request, unless that was done: from now on its slot may change.
    pub(crate) fn fetch(&mut self) -> Result<(), Unfit> {
        if self.is_fetched {
            return Ok(());
        }
        let loaded = self.ring.load(self.next, offset::SGES, used_bytes);
        let slot = self.ring.copied();
        let unfit = Unfit { wr_id: long(slot, offset::WR_ID) };
        let Ok(request) = Request::decode(slot) else { return Err(unfit) };
        if loaded.is_err() || request.inline_len > self.inline_max || !self.ring.allows(self.next, request.control.op) {
            return Err(unfit);
        }
        *self.request = request;
        self.is_fetched = true;
        Ok(())
    }

    /// A slot as it would be fetched now.
    pub(crate) fn slot(&self, slot: u32) -> ChainSlot {
        let copy = self.ring.peek(slot as usize, offset::SGES, used_bytes);
        let request = copy.and_then(|copy| Request::decode(copy.as_bytes()).ok());
        match request.filter(|request| self.ring.allows(slot.into(), request.control.op)) {
            Some(request) => ChainSlot::Send(Box::new(request)),
            None => ChainSlot::Unfit,
        }
    }

    /// The fetched request has started.
    pub(crate) fn advance(&mut self) {
        self.next += 1;
        self.is_fetched = false;
        self.moved = 0;
    }

    /// Inline data of the fetched request.
    pub(crate) fn inline_data(&self) -> &[u8] {
        let end = offset::SGES + self.request.inline_len as usize;
        &self.ring.copied()[offset::SGES..end]
    }

    /// Copies the inline data of the fetched request to where it stays until the request is done.
    pub(crate) fn keep_inline(&mut self) -> Option<(M, u64)> {
        let at = u64::from(self.copied % INLINE_COPIES) * u64::from(self.inline_max);
        self.copies.write(at, self.inline_data()).ok()?;
        self.copied = self.copied.wrapping_add(1);
        Some((self.copies.clone(), at))
    }

    /// Puts it to where it would be after a long time.
    #[cfg(test)]
    pub(crate) fn preset(&mut self, next: u64) {
        self.next = next;
    }

    /// Forgets all requests.
    pub(crate) fn clear(&mut self) {
        self.next = 0;
        self.is_fetched = false;
        self.moved = 0;
        self.is_parked = false;
    }
}

/// Bytes of a slot that are in use.
fn used_bytes(slot: &[u8]) -> usize {
    let is_inline = word(slot, offset::FLAGS) & ChainFlags::INLINE.bits() != 0;
    let rest = match is_inline {
        true => word(slot, offset::LENGTH) as usize,
        false => (word(slot, offset::NUM_SGE) as usize).saturating_mul(offset::SGE_LEN),
    };
    offset::SGES.saturating_add(rest)
}

/// A managed receive queue.
pub(crate) struct ManagedReceive<M> {
    pub(crate) ring: Ring<M>,
    /// The request that is taken next, counted from the first.
    next: u64,
    /// Of this host, the packet that was refused because nothing was enabled.
    pub(crate) refused: Option<Head>,
}

impl<M: Memory> ManagedReceive<M> {
    /// A queue, unless its sizes are impossible.
    pub(crate) fn new(init: RingInit<M>) -> Option<Self> {
        Some(Self { ring: Ring::new(init, offset::RECV_SGES + offset::SGE_LEN)?, next: 0, refused: None })
    }

    /// The request that is taken next.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// A slot as it would be taken now.
    pub(crate) fn slot(&self, slot: u32) -> ChainSlot {
        let mut sges = SgeList::new();
        let count = |slot: &[u8]| word(slot, offset::RECV_NUM_SGE) as usize;
        let used = |slot: &[u8]| count(slot).saturating_mul(offset::SGE_LEN).saturating_add(offset::RECV_SGES);
        let Some(copy) = self.ring.peek(slot as usize, offset::RECV_SGES, used) else { return ChainSlot::Unfit };
        let bytes = copy.as_bytes();
        if used(bytes) > bytes.len() || count(bytes) > sges.capacity() {
            return ChainSlot::Unfit;
        }
        read_sges(bytes, offset::RECV_SGES, count(bytes), &mut sges);
        ChainSlot::Receive(sges.to_vec())
    }

    /// Copies the next request.
    pub(crate) fn take(&mut self, wr: &mut RecvWr) -> Result<(), Unfit> {
        let count = |slot: &[u8]| word(slot, offset::RECV_NUM_SGE) as usize;
        let used = |slot: &[u8]| count(slot).saturating_mul(offset::SGE_LEN).saturating_add(offset::RECV_SGES);
        let loaded = self.ring.load(self.next, offset::RECV_SGES, used);
        self.next += 1;
        let slot = self.ring.copied();
        let (wr_id, count) = (long(slot, offset::WR_ID), count(slot));
        if loaded.is_err() || used(slot) > slot.len() || count > wr.sges.capacity() {
            return Err(Unfit { wr_id });
        }
        wr.wr_id = wr_id;
        read_sges(slot, offset::RECV_SGES, count, &mut wr.sges);
        Ok(())
    }

    /// Forgets all requests.
    pub(crate) fn clear(&mut self) {
        self.next = 0;
        self.refused = None;
    }
}
