//! Listing of chains: the managed queues of a queue pair, what they wait for, and their slots.

use super::Device;
use crate::chain::{ChainQueue, ChainSlot, ChainWait, ManagedReceive, ManagedSend, Side, Target};
use crate::platform::Platform;
use crate::qp::Core;
use alloc::vec::Vec;

impl<P: Platform> Device<'_, P> {
    /// The managed queues of a queue pair.
    pub fn list_queues(&self, qp: u32) -> Vec<ChainQueue> {
        let Some(core) = core(self, qp) else { return Vec::new() };
        let send = core.send.chain.as_ref().and_then(|queue| self.send_queue(qp, queue));
        let receive = core.recv.chain.as_ref().and_then(|queue| self.receive_queue(qp, queue));
        send.into_iter().chain(receive).collect()
    }

    /// Slots of a managed queue as they would be fetched now: at most `limit`, from slot `from` on.
    pub fn list_slots(&self, qp: u32, is_receive: bool, from: u32, limit: u32) -> Vec<ChainSlot> {
        let Some(core) = core(self, qp) else { return Vec::new() };
        let range = |cycle: u64| from..from.saturating_add(limit).min(u32::try_from(cycle).unwrap_or(u32::MAX));
        if is_receive {
            let queue = core.recv.chain.as_ref();
            queue.map_or(Vec::new(), |queue| range(queue.ring.cycle()).map(|slot| queue.slot(slot)).collect())
        } else {
            let queue = core.send.chain.as_ref();
            queue.map_or(Vec::new(), |queue| range(queue.ring.cycle()).map(|slot| queue.slot(slot)).collect())
        }
    }

    fn send_queue(&self, qp: u32, queue: &ManagedSend<P::Memory>) -> Option<ChainQueue> {
        let (limit, is_starved) = self.cx.chains.outlook(Target { qp, side: Side::Send })?;
        let (next, cycle) = (queue.next(), queue.ring.cycle());
        let waits_for = match queue.waits_for.zip(queue.request().ordering()) {
            Some((cq, order)) => {
                let produced = self.cx.list_cqs(cq, 1).first().map_or(0, |entry| entry.produced);
                ChainWait::Completions { cq, count: order.at(queue.lap()), produced }
            }
            None if next >= limit => ChainWait::Enable,
            None if is_starved => ChainWait::Steps,
            None => ChainWait::Nothing,
        };
        Some(ChainQueue { qp, is_receive: false, next, limit, cycle, waits_for })
    }

    fn receive_queue(&self, qp: u32, queue: &ManagedReceive<P::Memory>) -> Option<ChainQueue> {
        let (limit, _) = self.cx.chains.outlook(Target { qp, side: Side::Receive })?;
        let (next, cycle) = (queue.next(), queue.ring.cycle());
        let waits_for = if next >= limit { ChainWait::Enable } else { ChainWait::Message };
        Some(ChainQueue { qp, is_receive: true, next, limit, cycle, waits_for })
    }
}

fn core<'a, P: Platform>(device: &'a Device<'_, P>, qp: u32) -> Option<&'a Core<P>> {
    device.qps.get(device.cx.qp(qp)?).map(|qp| qp.core())
}
