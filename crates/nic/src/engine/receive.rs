//! Dispatch of received datagrams: to queue pairs, groups, the connection manager, or nowhere.

use super::Engine;
use super::management::{Concerned, GSI};
use crate::numbers::Numbers;
use crate::path::{Datagram, NetworkGid, Opened, Routes};
use crate::platform::Platform;
use crate::timer::Time;
use crate::wire::Op;
use alloc::sync::Arc;
use rdmesh_verbs::Qpn;

impl<P: Platform> Engine<P> {
    /// Sets the routes to the addresses of tenant networks. Queue pairs that are connected keep their path, as long as they may
    /// exchange packets with their peer.
    pub fn set_routes(&mut self, routes: Arc<Routes>) {
        if self.out.set_routes(routes) {
            self.enforcement.begin();
        }
    }

    /// Declares that packets of the tunnel are authenticated by a tag that covers more than the invariant CRC, which they do
    /// not have then. Transmitted packets go to [`crate::Transmits::for_sealing`].
    pub fn set_tunnel_sealed(&mut self, is_sealed: bool) {
        self.integrity.is_tunnel_sealed = is_sealed;
    }

    /// Parses a datagram from the network; none where that is no RoCEv2 packet. [`Owners::of`] says which engines it is for, all
    /// of which take it by [`Engine::handle_opened`].
    pub fn open_datagram<'a>(&mut self, datagram: &Datagram<'a>) -> Option<Opened<'a>> {
        let opened = Opened::new(datagram).ok();
        if opened.is_none() {
            self.wire.received += 1;
            self.wire.malformed += 1;
        }
        opened
    }

    /// Takes a packet from the network.
    pub fn handle_opened(&mut self, now: Time, opened: &Opened<'_>) {
        self.out.now = now;
        self.wire.received += 1;
        match opened.header.dest {
            GSI => {
                let Self { out, wire, integrity, contexts, .. } = self;
                return self.management.handle(opened, Concerned { out, wire, integrity, contexts });
            }
            Qpn::MULTICAST => return self.handle_group(opened),
            _ => {}
        }
        let found = self.out.index_of(opened.header.dest).and_then(|index| {
            let (qp, env) = self.qps.with(index, &mut self.contexts, &mut self.out)?;
            qp.takes(opened).then_some((qp, env))
        });
        let Some((qp, env)) = found else {
            let is_intact = || opened.is_intact(&mut self.integrity);
            let is_late = self.qps.time_wait().handle(opened, is_intact);
            self.wire.unknown_qp += u64::from(!is_late);
            return;
        };
        if !qp.is_from_peer(opened, &env.cx.network, &env.out.routes) {
            self.wire.wrong_source += 1;
            return;
        }
        if !opened.is_intact(&mut self.integrity) {
            self.wire.bad_icrc += 1;
            return;
        }
        env.out.on_arrival(opened.received, opened.datagram);
        env.out.captures.packet(now, env.cx.network.vni, &opened.ip, opened.udp);
        qp.handle_packet(env, opened);
    }

    /// Takes a datagram to a group, for the members in this engine.
    fn handle_group(&mut self, opened: &Opened<'_>) {
        let is_datagram = matches!(opened.header.op, Op::Datagram { .. }) && opened.is_in_partition();
        let Some(vni) = opened.vni.filter(|_| is_datagram) else {
            self.wire.unknown_qp += 1;
            return;
        };
        // The sender does not know where members are.
        let group = NetworkGid::new(vni, opened.ip.dest);
        if !self.qps.has_members(group) {
            return;
        }
        if !opened.is_from_its_host(&self.out.routes) {
            self.wire.wrong_source += 1;
            return;
        }
        if !opened.is_intact(&mut self.integrity) {
            self.wire.bad_icrc += 1;
            return;
        }
        self.qps.for_members(group, &mut self.contexts, &mut self.out, |qp, mut env| {
            qp.handle_datagram(&mut env, opened);
        });
    }

    /// Counters of packets from and to the network.
    pub fn wire_counters(&self) -> WireCounters {
        self.wire
    }
}

/// Engines of a host that have to see a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owners {
    /// Any engine: no queue pair is meant, or none that there is.
    Any,
    /// This one.
    One(u32),
    /// Every one: it is for a group, which may have members anywhere.
    All,
}

impl Owners {
    /// Those of the engines that share `numbers`.
    #[inline]
    pub fn of(numbers: &Numbers, opened: &Opened<'_>) -> Self {
        match opened.header.dest {
            GSI => Self::Any,
            Qpn::MULTICAST => Self::All,
            dest => numbers.owner(dest).map_or(Self::Any, Self::One),
        }
    }
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
