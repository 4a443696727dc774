//! Packets between workers, and datagrams from the network.

use super::link::Link;
use super::mads;
use super::shard::Shard;
use super::stats::add;
use super::wait;
use crate::memory::HostPlatform;
use rdmesh_nic::{Datagram, Engine, Numbers, Owners};
use std::sync::Arc;

/// Exchange of packets with the other workers, and delivery of received packets to the worker's engine.
#[derive(Clone)]
pub(super) struct Exchange {
    links: Arc<[Arc<Link>]>,
    number: usize,
    /// Where queue pairs are.
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
        while link.mailbox.take(|datagram| engine.handle_datagram(now, datagram)) {
            worked = true;
        }
        worked
            | sockets.receive(now, &mut |now, datagram| {
                match owners(numbers, datagram) {
                    Owners::One(at) if at as usize != *number => {
                        return forward(link, &links[at as usize], datagram);
                    }
                    // A datagram from another worker is not forwarded again.
                    Owners::All => {
                        let others = links.iter().enumerate().filter(|(at, _)| at != number);
                        others.for_each(|(_, other)| forward(link, other, datagram));
                    }
                    Owners::One(_) | Owners::Any => {}
                }
                engine.handle_datagram(now, datagram);
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
            if target.page.is_sleeping() {
                wait::notify(&target.inbox);
            }
            sent = true;
        }
        sent
    }
}

/// The workers that a datagram is for.
fn owners(numbers: &Numbers, datagram: &Datagram<'_>) -> Owners {
    if numbers.shards() == 1 { Owners::Any } else { Engine::<HostPlatform>::owners_of_datagram(numbers, datagram) }
}

/// Hands a datagram to the worker that it is for.
pub(super) fn forward(from: &Link, to: &Link, datagram: &Datagram<'_>) {
    if !to.mailbox.post(datagram) {
        return from.io.forward_drops.add(1);
    }
    from.io.forwarded.add(1);
    if to.page.is_sleeping() {
        wait::notify(&to.inbox);
    }
}
