//! The engine's side that faces the network.

use super::active::Active;
use super::packet::shard_of;
use super::{Engine, QPS_PER_POLL, parts};
use crate::capture::{Capture, CaptureFilter, Captured};
use crate::net::{Datagram, Routes, Transmits};
use crate::platform::Platform;
use crate::roce::Opened;
use crate::time::Time;
use std::sync::Arc;

impl<P: Platform> Engine<P> {
    /// Says where the addresses of tenant networks are. Queue pairs that are connected keep their path.
    pub fn set_routes(&mut self, routes: Arc<Routes>) {
        self.out.routes = routes;
    }

    /// Takes a datagram from the network.
    pub fn handle_datagram(&mut self, now: Time, datagram: &Datagram<'_>) {
        self.out.now = now;
        self.wire.received += 1;
        let Ok(opened) = Opened::new(datagram) else {
            self.wire.malformed += 1;
            return;
        };
        let found = self.out.index_of(opened.header.dest).and_then(|index| {
            let (qp, cx) = parts(&mut self.qps, &mut self.contexts, index)?;
            opened.suits(qp).then_some((index, qp, cx))
        });
        let Some((index, qp, cx)) = found else {
            self.wire.unknown_qp += 1;
            return;
        };
        if !opened.is_for(datagram.origin, qp, cx, &self.out.routes) {
            self.wire.wrong_source += 1;
            return;
        }
        if !opened.is_intact(&mut self.solver) {
            self.wire.bad_icrc += 1;
            return;
        }
        for capture in &mut self.out.captures {
            capture.packet(now, cx.network.vni, &opened.ip, opened.udp);
        }
        Active { index, qp, cx, out: &mut self.out }.handle_wire_packet(&opened);
    }

    /// Appends what is to be sent, for a bounded time or until `to` is full. Returns whether there was anything, or is more.
    pub fn poll_transmit(&mut self, now: Time, to: &mut Transmits) -> bool {
        self.out.now = now;
        let before = to.count();
        // Not all that a program posts becomes a packet: whoever posts without end has a turn like everybody.
        for _ in 0..self.out.wire_ready.len().min(QPS_PER_POLL) {
            if !to.has_room() {
                break;
            }
            let Some(index) = self.out.wire_ready.pop_front() else { break };
            let Some((qp, cx)) = parts(&mut self.qps, &mut self.contexts, index) else { continue };
            qp.wire_queued = false;
            let mark = to.mark();
            if (Active { index, qp: &mut *qp, cx: &mut *cx, out: &mut self.out }).take_turn(to) {
                self.out.make_wire_ready(index, qp);
            }
            for capture in &mut self.out.captures {
                capture.sent(now, &cx.network, to, mark);
            }
        }
        let sent = to.count() - before;
        self.wire.sent += sent as u64;
        sent != 0 || !self.out.wire_ready.is_empty()
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

    /// Ends a capture. Returns how many packets were not copied because nobody took the copies away.
    pub fn stop_capture(&mut self, id: u32) -> u64 {
        let Some(at) = self.out.captures.iter().position(|capture| capture.id == id) else { return 0 };
        self.out.captures.swap_remove(at).lost()
    }

    /// Counters of what came from and went to the network.
    pub fn wire_counters(&self) -> WireCounters {
        self.wire
    }

    /// Which of `shards` engines a datagram is for; 0 where it does not say.
    pub fn shard_of_datagram(shards: u32, datagram: &Datagram<'_>) -> u32 {
        Opened::dest(datagram).map_or(0, |dest| shard_of(dest, shards))
    }
}

/// Datagrams of one engine, and why some were dropped.
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
}
