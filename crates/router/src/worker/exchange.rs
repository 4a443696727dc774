//! Packets between workers, and datagrams from the network.

use super::link::Link;
use super::mads;
use super::shard::Shard;
use super::stats::add;
use super::wait;
use rdmesh_nic::{Numbers, Opened, Owners};
use std::sync::Arc;

/// Exchange of packets with the other workers, and delivery of received packets to the worker's engine.
#[derive(Clone)]
pub(super) struct Exchange {
    links: Arc<[Arc<Link>]>,
    number: usize,
    /// Table of the host's queue pair numbers.
    numbers: Numbers,
}

impl Exchange {
    /// That of worker `number`.
    pub(super) fn new(links: Arc<[Arc<Link>]>, number: usize, numbers: Numbers) -> Self {
        Self { links, number, numbers }
    }

    /// The worker's own link.
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.links[self.number]
    }

    /// The numbers of all other workers, and of this one.
    pub(super) fn round(&self) -> Vec<usize> {
        (0..self.links.len()).filter(|at| *at != self.number).chain([self.number]).collect()
    }

    /// Gives the engine the packets of other workers.
    pub(super) fn take_packets(&self, shard: &mut Shard) -> bool {
        let mut worked = false;
        while let Some(packet) = self.link().packets.pop() {
            shard.engine().handle_packet(packet);
            worked = true;
        }
        worked
    }

    /// Gives the engine the datagrams from the network, and forwards those for other workers.
    pub(super) fn receive(&self, shard: &mut Shard) -> bool {
        let Self { links, number, numbers } = self;
        let link = self.link();
        let now = shard.now();
        let (engine, sockets, mads) = shard.receiving();
        let mut worked = false;
        while link.mailbox.take(|opened| engine.handle_opened(now, opened)) {
            worked = true;
        }
        worked
            | sockets.receive(now, &mut |now, datagram| {
                let Some(opened) = engine.open_datagram(datagram) else { return };
                match Owners::of(numbers, &opened) {
                    Owners::One(at) if at as usize != *number => {
                        return forward(link, &links[at as usize], &opened);
                    }
                    // A packet from another worker is not forwarded again.
                    Owners::All => {
                        let others = links.iter().enumerate().filter(|(at, _)| at != number);
                        others.for_each(|(_, other)| forward(link, other, &opened));
                    }
                    Owners::One(_) | Owners::Any => {}
                }
                engine.handle_opened(now, &opened);
                // At once: the engine's own queue is short, and shared by all origins.
                mads::pass(engine, mads, &link.counters.mads);
            })
    }

    /// Hands packets to the other workers.
    pub(super) fn send_packets(&self, shard: &mut Shard) -> bool {
        let link = self.link();
        let mut sent = false;
        while let Some((to, packet)) = shard.engine().poll_packet() {
            let target = &self.links[to as usize];
            let mut next = packet;
            // A full queue empties as fast as the other worker runs; it never waits for this one.
            while let Err(back) = target.packets.push(next) {
                next = back;
                self.take_packets(shard);
                rustix::thread::sched_yield();
            }
            add(&link.counters.packets, 1);
            if target.is_sleeping() {
                wait::notify(&target.inbox);
            }
            sent = true;
        }
        sent
    }
}

/// Hands a packet to the worker that it is for.
pub(super) fn forward(from: &Link, to: &Link, opened: &Opened<'_>) {
    if !to.mailbox.post(opened) {
        return from.io.forward_drops.add(1);
    }
    from.io.forwarded.add(1);
    if to.is_sleeping() {
        wait::notify(&to.inbox);
    }
}
