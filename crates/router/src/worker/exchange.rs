//! Packets between workers, and datagrams from the network.

use super::link::Link;
use super::mads;
use super::shard::Shard;
use super::stats::add;
use super::wait;
use rdmesh_nic::{Datagram, Owners};
use std::sync::Arc;

/// Exchange of packets with the other workers, and delivery of received packets to the worker's engine.
#[derive(Clone)]
pub(super) struct Exchange {
    links: Arc<[Arc<Link>]>,
    number: usize,
}

impl Exchange {
    /// That of worker `number`.
    pub(super) fn new(links: Arc<[Arc<Link>]>, number: usize) -> Self {
        Self { links, number }
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
        let Self { links, number } = self;
        let link = self.link();
        let now = shard.now();
        let (engine, sockets, mads) = shard.receiving();
        let mut worked = false;
        while link.mailbox.take(|datagram| engine.handle_datagram(now, datagram)) {
            worked = true;
        }
        worked
            | sockets.receive(now, &mut |now, datagram| {
                match owners(links.len(), datagram) {
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
        let shards = self.links.len() as u32;
        while let Some(packet) = shard.engine().poll_packet() {
            let target = &self.links[packet.shard(shards) as usize];
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

/// The workers, of `workers`, that a datagram is for.
fn owners(workers: usize, datagram: &Datagram<'_>) -> Owners {
    if workers == 1 { Owners::Any } else { Owners::of(workers as u32, datagram) }
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
