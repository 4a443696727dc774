//! Queue of packets between two queue pairs of one engine.

use crate::packet::Packet;
use alloc::vec::Vec;
use core::mem::take;

/// Packets in the order in which they are delivered. They are taken all at once; those that they cause go into a second list
/// meanwhile, so that none is moved out of its place.
pub(crate) struct Inbox<M> {
    packets: Vec<Packet<M>>,
    /// An empty list, with the room that it has grown to.
    spare: Vec<Packet<M>>,
}

impl<M> Inbox<M> {
    pub(crate) fn new() -> Self {
        Self { packets: Vec::with_capacity(ROOM), spare: Vec::with_capacity(ROOM) }
    }

    #[inline]
    pub(crate) fn push(&mut self, packet: Packet<M>) {
        self.packets.push(packet);
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// All packets, if there are any; [`Inbox::give_back`] follows.
    pub(crate) fn take(&mut self) -> Option<Vec<Packet<M>>> {
        (!self.packets.is_empty()).then(|| core::mem::replace(&mut self.packets, take(&mut self.spare)))
    }

    /// Gives the list back whose packets have been delivered.
    pub(crate) fn give_back(&mut self, mut packets: Vec<Packet<M>>) {
        packets.clear();
        self.spare = packets;
    }
}

/// Packets for which there is room from the beginning.
const ROOM: usize = 256;
