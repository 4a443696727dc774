//! Network side of the engine: received datagrams, transmitted trains, and captures.

use super::active::Active;
use super::management::GSI;
use super::packet::shard_of;
use super::{Engine, parts};
use crate::capture::{Capture, CaptureFilter, Captured};
use crate::net::{Datagram, Origin, Routes, Transmits};
use crate::platform::Platform;
use crate::roce::Opened;
use crate::schedule::{Order, PACKETS_PER_POLL, POLL_COST, TURNS_PER_POLL, cost};
use crate::time::Time;
use crate::wire::Op;
use rdmesh_verbs::Qpn;
use std::sync::Arc;

impl<P: Platform> Engine<P> {
    /// Sets the routes to the addresses of tenant networks. Queue pairs that are connected keep their path.
    pub fn set_routes(&mut self, routes: Arc<Routes>) {
        self.out.routes = routes;
    }

    /// Declares that packets of the tunnel are authenticated by a tag that covers more than the invariant CRC, which they do
    /// not have then. Transmitted packets go to [`Transmits::for_sealing`].
    pub fn set_tunnel_sealed(&mut self, is_sealed: bool) {
        self.integrity.is_tunnel_sealed = is_sealed;
    }

    /// Takes a datagram from the network.
    pub fn handle_datagram(&mut self, now: Time, datagram: &Datagram<'_>) {
        self.out.now = now;
        self.wire.received += 1;
        let Ok(opened) = Opened::new(datagram) else {
            self.wire.malformed += 1;
            return;
        };
        match opened.header.dest {
            GSI => return self.handle_mad(datagram.origin, &opened),
            Qpn::MULTICAST => return self.handle_group(datagram.origin, &opened),
            _ => {}
        }
        let index = self.out.index_of(opened.header.dest);
        let found = index.and_then(|index| {
            let (qp, cx) = parts(&mut self.qps, &mut self.contexts, index)?;
            opened.suits(qp).then_some((index, qp, cx))
        });
        let Some((index, qp, cx)) = found else {
            let is_intact = || opened.is_intact(&mut self.integrity);
            let is_late = index.is_some_and(|at| self.ended.handle(at, &opened, datagram.origin, is_intact));
            self.wire.unknown_qp += u64::from(!is_late);
            return;
        };
        if !opened.is_for(datagram.origin, qp, cx, &self.out.routes) {
            self.wire.wrong_source += 1;
            return;
        }
        if !opened.is_intact(&mut self.integrity) {
            self.wire.bad_icrc += 1;
            return;
        }
        for capture in &mut self.out.captures {
            capture.packet(now, cx.network.vni, &opened.ip, opened.udp);
        }
        Active { index, qp, cx, out: &mut self.out }.handle_wire_packet(&opened);
    }

    /// Takes a datagram to a group, for the members in this engine.
    fn handle_group(&mut self, origin: Origin, opened: &Opened<'_>) {
        let is_datagram = matches!(opened.header.op, Op::Datagram { .. }) && opened.is_in_partition();
        let Some(vni) = opened.vni.filter(|_| is_datagram) else {
            self.wire.unknown_qp += 1;
            return;
        };
        // The sender does not know where members are.
        let Some(members) = self.groups.get(&(vni, opened.ip.dest)) else { return };
        if !opened.is_from_its_host(origin, &self.out.routes) {
            self.wire.wrong_source += 1;
            return;
        }
        if !opened.is_intact(&mut self.integrity) {
            self.wire.bad_icrc += 1;
            return;
        }
        for &index in members {
            if let Some((qp, cx)) = parts(&mut self.qps, &mut self.contexts, index) {
                let mut active = Active { index, qp, cx, out: &mut self.out };
                active.handle_wire_datagram(&opened.header, &opened.ip, vni, opened.payload);
            }
        }
    }

    /// Appends packets to be sent, for a bounded time or until `to` is full. Returns whether there were any, or are more.
    pub fn poll_transmit(&mut self, now: Time, to: &mut Transmits) -> bool {
        self.out.now = now;
        let (before, waiting) = (to.count(), self.out.inbox.len() + self.out.outbox.len());
        let has_mads = self.transmit_mads(to);
        self.ended.transmit(now, to, &mut self.out.captures);
        let start = self.out.spent;
        // Not every posted request becomes a packet: the number of turns is limited too.
        for _ in 0..TURNS_PER_POLL {
            let is_enough = to.count() - before >= PACKETS_PER_POLL || self.out.spent - start > POLL_COST;
            if is_enough || !to.has_room() {
                break;
            }
            let Some(index) = self.out.schedule.next(Order::Wire) else { break };
            self.take_turn(index, to);
        }
        let sent = to.count() - before;
        self.wire.sent += sent as u64;
        // Members of a group on other engines of this host.
        let is_delivering = self.out.inbox.len() + self.out.outbox.len() > waiting;
        sent != 0 || has_mads || is_delivering || self.ended.is_due() || !self.out.schedule.is_empty(Order::Wire)
    }

    /// Lets a queue pair send for one turn. Returns whether it has more, for which it waits in the list then.
    pub(super) fn take_turn(&mut self, index: u32, to: &mut Transmits) -> bool {
        let Some((qp, cx)) = parts(&mut self.qps, &mut self.contexts, index) else { return false };
        let (mark, count) = (to.mark(), to.count());
        let has_more = Active { index, qp: &mut *qp, cx: &mut *cx, out: &mut self.out }.take_turn(to);
        if has_more {
            self.out.make_wire_ready(index);
        }
        for capture in &mut self.out.captures {
            let port = cx.network.plain.map_or(0, |plain| plain.source_port);
            capture.sent(self.out.now, cx.network.vni, port, to, mark);
        }
        // A turn without a packet is not free, and members of a group on this host get theirs at the sender's expense.
        let packets = (to.count() - count).max(1);
        let sent = cost(packets as u64, (to.mark() - mark) as u64);
        let before = self.out.spent;
        self.drain_inbox();
        self.out.schedule.charge(Order::Wire, index, sent + self.out.spent - before);
        has_more
    }

    /// Whether management datagrams or final ACKs wait for [`Engine::poll_transmit`], which must be sent even if no work
    /// follows.
    pub fn has_last_words(&self) -> bool {
        self.has_mads_to_send() || self.ended.is_due()
    }

    /// Begins to copy the packets that `filter` describes. Returns a number for [`Engine::poll_capture`].
    pub fn start_capture(&mut self, filter: CaptureFilter) -> u32 {
        let id = self.out.captures.iter().map(|capture| capture.id + 1).max().unwrap_or(0);
        self.out.captures.push(Capture::new(id, filter));
        id
    }

    /// The next copy of a packet.
    pub fn poll_capture(&mut self, id: u32) -> Option<Captured> {
        self.out.captures.iter_mut().find(|capture| capture.id == id)?.next()
    }

    /// Ends a capture. Returns how many packets were not copied because the copies were not read in time.
    pub fn stop_capture(&mut self, id: u32) -> u64 {
        let Some(at) = self.out.captures.iter().position(|capture| capture.id == id) else { return 0 };
        self.out.captures.swap_remove(at).lost()
    }

    /// Counters of packets from and to the network.
    pub fn wire_counters(&self) -> WireCounters {
        self.wire
    }

    /// Which of `shards` engines a datagram is for.
    pub fn owners_of_datagram(shards: u32, datagram: &Datagram<'_>) -> Owners {
        match Opened::dest(datagram) {
            None | Some(GSI) => Owners::Any,
            Some(Qpn::MULTICAST) => Owners::All,
            Some(dest) => Owners::One(shard_of(dest, shards)),
        }
    }
}

/// Which of a host's engines have to see a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owners {
    /// Any engine.
    Any,
    /// This one.
    One(u32),
    /// Every one: it is for a group, which may have members anywhere.
    All,
}

/// Datagrams of one engine, and counts of drops by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WireCounters {
    /// Sent.
    pub sent: u64,
    /// Received.
    pub received: u64,
    /// Not a RoCEv2 packet, or one with an impossible header.
    pub malformed: u64,
    /// The invariant CRC is wrong.
    pub bad_icrc: u64,
    /// For a queue pair that does not exist or does not receive.
    pub unknown_qp: u64,
    /// Not from the peer of the queue pair that it is for.
    pub wrong_source: u64,
    /// Management datagrams sent.
    pub mads_sent: u64,
    /// Management datagrams received.
    pub mads_received: u64,
    /// Management datagrams for which the queue had no room.
    pub mads_dropped: u64,
}
