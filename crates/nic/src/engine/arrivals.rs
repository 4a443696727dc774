//! Packets from other engines of this host, which wait for the turn of the queue pair that they are for.

use super::{Budget, Engine};
use crate::packet::Packet;
use crate::platform::Platform;
use crate::schedule::{Order, TURN_COST, TURN_PACKETS};
use crate::time::Time;
use rdmesh_verbs::Qpn;
use std::collections::VecDeque;

/// Queues of packets, by the engine's index of the queue pair.
pub(super) struct Arrivals<M>(Vec<VecDeque<Packet<M>>>);

impl<M> Arrivals<M> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    fn push(&mut self, index: u32, packet: Packet<M>) {
        let at = index as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, VecDeque::new);
        }
        self.0[at].push_back(packet);
    }

    fn pop(&mut self, index: u32) -> Option<Packet<M>> {
        self.0.get_mut(index as usize)?.pop_front()
    }

    fn has_any(&self, index: u32) -> bool {
        self.0.get(index as usize).is_some_and(|queue| !queue.is_empty())
    }

    fn take(&mut self, index: u32) -> VecDeque<Packet<M>> {
        self.0.get_mut(index as usize).map(std::mem::take).unwrap_or_default()
    }
}

impl<P: Platform> Engine<P> {
    /// Takes a packet from another engine of this host.
    pub fn handle_packet(&mut self, packet: Packet<P::Memory>) {
        match self.recipient(&packet) {
            Some(index) => {
                self.arrivals.push(index, packet);
                self.out.schedule.add(Order::Arrived, index);
            }
            None => self.out.inbox.push(packet),
        }
    }

    /// The queue pair in whose turn the packet is executed: of a datagram to a group, its first member here.
    fn recipient(&self, packet: &Packet<P::Memory>) -> Option<u32> {
        let head = &packet.head;
        let is_group = head.header.dest == Qpn::MULTICAST && !head.is_reply();
        let index = match is_group {
            true => self.groups.get(&(head.vni, head.ip.dest)).and_then(|members| members.first().copied()),
            false => self.out.index_of(head.header.dest),
        };
        index.filter(|index| self.qps.get(*index as usize).is_some_and(Option::is_some))
    }

    /// Lets the queue pair whose turn it is take its packets. Returns whether there was one.
    pub(super) fn take_arrived(&mut self) -> bool {
        let Some(index) = self.out.schedule.next(Order::Arrived) else { return false };
        let before = self.out.spent;
        self.take_arrived_of(index);
        self.out.schedule.charge(Order::Arrived, index, self.out.spent - before);
        true
    }

    /// Lets queue pairs take packets from other engines, in their turns, as far as `budget` goes: a command waits for some of them.
    pub fn settle_arrivals(&mut self, now: Time, budget: &mut Budget) {
        self.out.now = now;
        while !budget.is_spent() {
            let before = self.out.moved;
            if !self.take_arrived() {
                break;
            }
            budget.take(self.out.moved - before);
        }
    }

    /// Lets a queue pair take its packets, for one turn.
    pub(super) fn take_arrived_of(&mut self, index: u32) {
        let end = self.out.spent + TURN_COST;
        for _ in 0..TURN_PACKETS {
            if self.out.spent >= end {
                break;
            }
            let Some(packet) = self.arrivals.pop(index) else { break };
            self.out.spend(u64::from(packet.head.len));
            self.out.inbox.push(packet);
            self.drain_inbox();
        }
        if self.arrivals.has_any(index) {
            self.out.schedule.add(Order::Arrived, index);
        }
    }

    /// The queue pair has gone: its packets are dropped.
    pub(super) fn drop_arrived(&mut self, index: u32) {
        for packet in self.arrivals.take(index) {
            self.handle_packet(packet);
        }
    }
}
