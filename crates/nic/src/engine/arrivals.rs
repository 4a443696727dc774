//! Packets from other engines of this host, which wait for the turn of the queue pair that they are for.

use super::{Budget, Engine};
use crate::packet::Packet;
use crate::platform::Platform;
use crate::schedule::{Order, TURN_COST, TURN_PACKETS};
use crate::timer::Time;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Queues of packets, by the engine's index of the queue pair.
pub(super) struct Arrivals<M>(Vec<VecDeque<Packet<M>>>);

impl<M> Arrivals<M> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn push(&mut self, index: u32, packet: Packet<M>) {
        let at = index as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, VecDeque::new);
        }
        self.0[at].push_back(packet);
    }

    pub(super) fn pop(&mut self, index: u32) -> Option<Packet<M>> {
        self.0.get_mut(index as usize)?.pop_front()
    }

    pub(super) fn has_any(&self, index: u32) -> bool {
        self.0.get(index as usize).is_some_and(|queue| !queue.is_empty())
    }

    pub(super) fn take(&mut self, index: u32) -> VecDeque<Packet<M>> {
        self.0.get_mut(index as usize).map(core::mem::take).unwrap_or_default()
    }
}

impl<P: Platform> Engine<P> {
    /// Takes a packet from another engine of this host.
    pub fn handle_packet(&mut self, packet: Packet<P::Memory>) {
        self.qps.arrive(packet, &mut self.out);
    }

    /// Lets the queue pair whose turn it is take its packets. Returns whether there was one.
    pub(super) fn take_arrived(&mut self) -> bool {
        let Some(index) = self.out.schedule.next(Order::Arrived) else { return false };
        let before = self.out.spent();
        self.take_arrived_of(index);
        self.out.schedule.charge(Order::Arrived, index, self.out.spent() - before);
        true
    }

    /// Lets queue pairs take packets from other engines, in their turns, as far as `budget` goes: a command waits for some of them.
    pub fn settle_arrivals(&mut self, now: Time, budget: &mut Budget) {
        self.out.now = now;
        while !budget.is_spent() {
            let before = self.out.moved();
            if !self.take_arrived() {
                break;
            }
            budget.take(self.out.moved() - before);
        }
    }

    /// Lets a queue pair take its packets, for one turn.
    pub(super) fn take_arrived_of(&mut self, index: u32) {
        let end = self.out.spent() + TURN_COST;
        for _ in 0..TURN_PACKETS {
            if self.out.spent() >= end {
                break;
            }
            let Some(packet) = self.qps.arrivals().pop(index) else { break };
            self.out.spend(u64::from(packet.head.len));
            self.out.keep(packet);
            self.drain_inbox();
        }
        if self.qps.arrivals().has_any(index) {
            self.out.schedule.add(Order::Arrived, index);
        }
    }
}
