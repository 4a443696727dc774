//! Send window: the work requests of a send queue that are in flight.

use alloc::vec;
use alloc::vec::Vec;
use rdmesh_verbs::{Psn, SendWr};

/// A ring of work requests, oldest first. Slots are used again and again in place: a request is large, and moving it
/// would cost more than executing a short one. Most queue pairs never have many on their way, so that slots are only made
/// when they are needed.
pub(crate) struct Window<M> {
    slots: Vec<Inflight<M>>,
    size: usize,
    head: usize,
    len: usize,
}

/// A work request on its way.
pub(crate) struct Inflight<M> {
    pub(crate) wr: SendWr,
    pub(crate) inline: Option<(M, u64)>,
    pub(crate) total: u64,
    /// Bytes sent, and bytes whose packet was answered.
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    /// Packets sent and not answered.
    pub(crate) outstanding: u32,
    pub(crate) first_psn: Psn,
    /// Whether the last packet was sent.
    pub(crate) complete: bool,
    /// Whether any packet was sent.
    pub(crate) started: bool,
    /// A READ that delivers zeros where its key or range is wrong.
    pub(crate) soft: bool,
    /// Of a managed queue: the request, counted from the first.
    pub(crate) index: u64,
    /// Whether the entry in the ring could not be understood.
    pub(crate) bad: bool,
}

impl<M> Window<M> {
    /// A window for `size` requests.
    pub(crate) fn new(size: usize) -> Self {
        Self { slots: vec![Inflight::empty()], size: size.max(1).next_power_of_two(), head: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == self.size
    }

    /// The free slot behind the youngest request, to be filled in; it counts only after [`Window::push`]. The window must
    /// not be full.
    pub(crate) fn next(&mut self) -> &mut Inflight<M> {
        debug_assert!(!self.is_full());
        if self.len == self.slots.len() {
            self.grow();
        }
        let slot = self.slot(self.len);
        &mut self.slots[slot]
    }

    /// Adds the request in the slot of [`Window::next`].
    pub(crate) fn push(&mut self) {
        self.len += 1;
    }

    /// Removes the oldest request.
    pub(crate) fn pop(&mut self) {
        if self.len != 0 {
            self.slots[self.head].inline = None;
            self.head = self.slot(1);
            self.len -= 1;
        }
    }

    pub(crate) fn clear(&mut self) {
        while !self.is_empty() {
            self.pop();
        }
    }

    pub(crate) fn oldest(&self) -> Option<&Inflight<M>> {
        (self.len != 0).then(|| &self.slots[self.head])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Inflight<M>> {
        (0..self.len).map(|i| &self.slots[self.slot(i)])
    }

    /// Makes it twice as many slots.
    #[cold]
    fn grow(&mut self) {
        self.slots.rotate_left(self.head);
        self.head = 0;
        self.slots.resize_with(2 * self.slots.len(), Inflight::empty);
    }

    fn slot(&self, i: usize) -> usize {
        (self.head + i) & (self.slots.len() - 1)
    }
}

impl<M> core::ops::Index<usize> for Window<M> {
    type Output = Inflight<M>;

    fn index(&self, i: usize) -> &Inflight<M> {
        debug_assert!(i < self.len);
        &self.slots[self.slot(i)]
    }
}

impl<M> core::ops::IndexMut<usize> for Window<M> {
    fn index_mut(&mut self, i: usize) -> &mut Inflight<M> {
        debug_assert!(i < self.len);
        let slot = self.slot(i);
        &mut self.slots[slot]
    }
}

impl<M> Inflight<M> {
    fn empty() -> Self {
        Self {
            wr: SendWr::empty(),
            inline: None,
            total: 0,
            sent: 0,
            answered: 0,
            outstanding: 0,
            first_psn: Psn::default(),
            complete: false,
            started: false,
            soft: false,
            index: 0,
            bad: false,
        }
    }

    /// PSNs that it takes on a path with this MTU (IBA 9.7.2).
    pub(crate) fn packets(&self, mtu: u32) -> u32 {
        self.total.div_ceil(u64::from(mtu)).max(1) as u32
    }

    /// Starts afresh with the request that `wr` now holds, of `total` bytes.
    pub(crate) fn begin(&mut self, total: u64, inline: Option<(M, u64)>) {
        self.inline = inline;
        self.total = total;
        (self.sent, self.answered, self.outstanding) = (0, 0, 0);
        (self.complete, self.started, self.bad) = (false, false, false);
        self.soft = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_keep_their_order_while_slots_are_made() {
        let mut window = Window::<()>::new(5);
        let (mut pushed, mut popped) = (0, 0);
        for round in 1..=8 {
            for _ in 0..round {
                window.next().wr.wr_id = pushed;
                window.push();
                pushed += 1;
            }
            assert_eq!(window.is_full(), round == 8);
            assert!(window.iter().map(|entry| entry.wr.wr_id).eq(popped..pushed));
            for _ in 0..window.len().min(round) {
                assert_eq!(window.oldest().map(|entry| entry.wr.wr_id), Some(popped));
                window.pop();
                popped += 1;
            }
        }
    }
}
