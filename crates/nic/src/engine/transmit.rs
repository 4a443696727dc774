//! Transmission: trains of packets to other hosts, queue pair by queue pair.

use super::Engine;
use crate::path::Transmits;
use crate::platform::Platform;
use crate::schedule::{Order, PACKETS_PER_POLL, POLL_COST, TURNS_PER_POLL, cost};
use crate::timer::Time;

impl<P: Platform> Engine<P> {
    /// Appends packets to be sent, for a bounded time or until `to` is full. Returns whether there were any, or are more.
    pub fn poll_transmit(&mut self, now: Time, to: &mut Transmits) -> bool {
        self.out.now = now;
        let (before, waiting) = (to.count(), self.out.packets());
        if self.management.has_outgoing() {
            self.wire.mads_sent += self.management.transmit(now, to, &mut self.out.captures);
        }
        self.qps.time_wait().transmit(now, to, &mut self.out.captures);
        let start = self.out.spent();
        // Not every posted request becomes a packet: the number of turns is limited too.
        for _ in 0..TURNS_PER_POLL {
            let is_enough = to.count() - before >= PACKETS_PER_POLL || self.out.spent() - start > POLL_COST;
            if is_enough || !to.has_room() {
                break;
            }
            let Some(index) = self.out.schedule.next(Order::Wire) else { break };
            self.take_turn(index, to);
        }
        let sent = to.count() - before;
        self.wire.sent += sent as u64;
        // Members of a group on other engines of this host.
        let is_delivering = self.out.packets() > waiting;
        sent != 0 || is_delivering || self.has_final_packets() || !self.out.schedule.is_empty(Order::Wire)
    }

    /// Lets a queue pair send for one turn. Returns whether it has more, for which it waits in the list then.
    pub(super) fn take_turn(&mut self, index: u32, to: &mut Transmits) -> bool {
        let Some((qp, env)) = self.qp(index) else { return false };
        let (vni, port) = (env.cx.network.vni, env.cx.network.external.map_or(0, |external| external.source_port));
        let (mark, count) = (to.mark(), to.count());
        let steps = env.out.chains.spent();
        let has_more = qp.poll_transmit(env, to);
        if has_more {
            self.out.make_wire_ready(index);
        }
        self.out.captures.sent(self.out.now, vni, port, to, mark);
        // A turn without a packet is not free, and members of a group on this host get theirs at the sender's expense.
        let packets = (to.count() - count).max(1);
        let sent = cost(packets as u64, (to.mark() - mark) as u64) + self.out.chains.spent() - steps;
        let before = self.out.spent();
        self.drain_inbox();
        self.qps.see_to_chains(&mut self.contexts, &mut self.out);
        self.out.schedule.charge(Order::Wire, index, sent + self.out.spent() - before);
        has_more
    }

    /// Whether management datagrams, probes or final ACKs wait for [`Engine::poll_transmit`], which must be sent even if no work
    /// follows.
    pub fn has_final_packets(&self) -> bool {
        self.management.has_outgoing() || self.qps.has_final_acks()
    }
}
