//! Management datagrams between connection managers, from queue pair 1 to queue pair 1 (IBA 3.5.10.2, 13.5).
//!
//! No queue pair of a tenant has this number. The engine checks the form of a received datagram and that it came from the
//! sender's host, and keeps it for the connection manager, which interprets it.

use super::probes::{PathProbes, Probes};
use super::{Engine, WireCounters};
use crate::capture::Captures;
use crate::cm::Mad;
use crate::device::{Context, Outputs, Slab};
use crate::path::{Envelope, Integrity, Opened, flow};
use crate::path::{ExternalId, Network, Origin, Route, Routes, Transmits};
use crate::platform::Platform;
use crate::timer::Time;
use crate::wire::{Header, Op, Probe, Service};
use alloc::collections::VecDeque;
use core::convert::Infallible;
use rdmesh_verbs::{AddressVector, Gid, Psn, Qkey, Qpn, Vni};

/// A management datagram that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedMad {
    /// The sockets that it came in through, if it came by plain RoCEv2. Its sender is not authenticated then: the receiver
    /// decides whether such a sender may speak to `dest`.
    pub external_origin: Option<ExternalId>,
    /// The tenant network, if it came through the tunnel, or from this host. Its sender is where `source` is.
    pub vni: Option<Vni>,
    /// The sender's address.
    pub source: Gid,
    /// The address that it was sent to, which need not be an endpoint's.
    pub dest: Gid,
    /// The datagram.
    pub bytes: [u8; MAD],
}

/// Error of a management datagram that cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MadError {
    /// Too many wait.
    Full,
    /// There is no way to its receiver.
    Unreachable,
}

/// Management datagrams on their way in and out.
#[derive(Default)]
pub(super) struct Management {
    outgoing: VecDeque<(Envelope, [u8; MAD])>,
    received: VecDeque<ReceivedMad>,
    probes: Probes,
    psn: Psn,
}

impl Management {
    /// Whether datagrams wait for [`Engine::poll_transmit`].
    pub(super) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty() || self.probes.has_outgoing()
    }

    /// Whether datagrams wait for [`Engine::poll_mad`].
    pub(super) fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// Appends waiting datagrams, for one turn. Returns how many.
    pub(super) fn transmit(&mut self, now: Time, to: &mut Transmits, captures: &mut Captures) -> u64 {
        let mut sent = 0;
        while sent < MADS_PER_POLL && to.has_room() {
            let Some((peer, bytes)) = self.outgoing.pop_front() else { break };
            let op = Op::Datagram { qkey: GSI_QKEY, source: GSI, imm: None };
            let header = Header::new(Service::Ud, op, GSI, self.psn);
            self.psn = self.psn.add(1);
            let mark = to.mark();
            let Ok(()) = peer.emit(to, &header, MAD, |payload| {
                payload.copy_from_slice(&bytes);
                Ok::<_, Infallible>(())
            });
            captures.sent(now, peer.vni, peer.ip.source_port, to, mark);
            sent += 1;
        }
        sent + self.probes.transmit(now, to, captures)
    }

    fn send(&mut self, mad: &Mad, routes: &Routes) -> Result<(), MadError> {
        let path = &mad.path;
        let av = AddressVector { dgid: path.remote, ..AddressVector::default() };
        let peer = match routes.find(path.vni, path.remote) {
            Route::Local => {
                let (vni, source, dest) = (Some(path.vni), path.local, path.remote);
                return self.keep(ReceivedMad { external_origin: None, vni, source, dest, bytes: mad.bytes });
            }
            Route::Host(host) => Envelope::on_host(host, path.vni, path.local, &av, flow(GSI, GSI)),
            Route::External => {
                let external = path.external.ok_or(MadError::Unreachable)?;
                Envelope::external(external, path.vni, path.local, &av)
            }
        };
        if self.outgoing.len() >= QUEUE {
            return Err(MadError::Full);
        }
        self.outgoing.push_back((peer, mad.bytes));
        Ok(())
    }

    fn keep(&mut self, mad: ReceivedMad) -> Result<(), MadError> {
        if self.received.len() >= QUEUE {
            return Err(MadError::Full);
        }
        self.received.push_back(mad);
        Ok(())
    }
}

impl<P: Platform> Engine<P> {
    /// Sends a management datagram, as soon as [`Engine::poll_transmit`] is called. One for this host arrives at once.
    pub fn send_mad(&mut self, now: Time, mad: &Mad) -> Result<(), MadError> {
        self.out.now = now;
        self.management.send(mad, &self.out.routes)
    }

    /// The next management datagram that arrived.
    pub fn poll_mad(&mut self) -> Option<ReceivedMad> {
        self.management.received.pop_front()
    }

    /// Probes of paths, at the present.
    pub fn probes(&mut self, now: Time) -> PathProbes<'_> {
        PathProbes { probes: &mut self.management.probes, routes: &self.out.routes, now }
    }
}

/// Parts of an engine that a management datagram may concern.
pub(super) struct Concerned<'a, P: Platform> {
    pub(super) out: &'a mut Outputs<P::Memory>,
    pub(super) wire: &'a mut WireCounters,
    pub(super) integrity: &'a mut Integrity,
    pub(super) contexts: &'a Slab<Context<P>>,
}

impl Management {
    /// Takes a packet for queue pair 1.
    pub(super) fn handle<P: Platform>(&mut self, opened: &Opened<'_>, concerned: Concerned<'_, P>) {
        let Concerned { out, wire, integrity, contexts } = concerned;
        let arrived = if opened.is_in_partition() { arrived(opened) } else { None };
        let Some(arrived) = arrived else {
            wire.unknown_qp += 1;
            return;
        };
        let external_origin = match opened.origin {
            Origin::Host(_) => None,
            Origin::External { id, .. } => Some(id),
        };
        if opened.ip.dest.is_multicast() || (external_origin.is_none() && !opened.is_from_its_host(&out.routes)) {
            wire.wrong_source += 1;
            return;
        }
        if !opened.is_intact(integrity) {
            wire.bad_icrc += 1;
            return;
        }
        if !out.captures.is_empty()
            && let Some(vni) = network_of(opened, external_origin, contexts)
        {
            out.captures.packet(out.now, vni, &opened.ip, opened.udp);
        }
        let kept = match arrived {
            Arrived::Probe(probe) => self.probes.handle(out.now, opened, probe, &out.routes),
            Arrived::Mad(bytes) => {
                let (vni, source, dest) = (opened.vni, opened.ip.source, opened.ip.dest);
                self.keep(ReceivedMad { external_origin, vni, source, dest, bytes: *bytes })
            }
        };
        match kept {
            Ok(()) => wire.mads_received += 1,
            Err(_) => wire.mads_dropped += 1,
        }
    }
}

/// Network of a datagram: one from an external peer is in that of the endpoint that has the address, as far as that is known here.
fn network_of<P: Platform>(
    opened: &Opened<'_>,
    external: Option<ExternalId>,
    contexts: &Slab<Context<P>>,
) -> Option<Vni> {
    let mut networks = contexts.iter().map(|(_, cx)| &cx.network);
    let is_owner = |n: &&Network| n.external.map(|port| port.id) == external && n.gids.contains(&opened.ip.dest);
    opened.vni.or_else(|| networks.find(is_owner).map(|network| network.vni))
}

/// Content of a packet for queue pair 1.
enum Arrived<'a> {
    Mad(&'a [u8; MAD]),
    Probe(Probe),
}

/// The management datagram in a packet, if that is what it carries. Tenants' queue pairs have other numbers than the
/// sender of one. Only other routers are answered by probes.
fn arrived<'a>(opened: &Opened<'a>) -> Option<Arrived<'a>> {
    if opened.header.op != (Op::Datagram { qkey: GSI_QKEY, source: GSI, imm: None }) {
        return None;
    }
    let probe = Probe::decode(opened.payload).filter(|_| matches!(opened.origin, Origin::Host(_)));
    probe.map(Arrived::Probe).or_else(|| opened.payload.try_into().ok().map(Arrived::Mad))
}

/// The general service interface (IBA 3.5.10.2).
pub(super) const GSI: Qpn = Qpn::new(1);
/// Its well-known Q_Key (IBA 10.2.5).
pub(super) const GSI_QKEY: Qkey = Qkey(0x8001_0000);
/// Bytes of a management datagram (IBA 13.4.2).
const MAD: usize = 256;
/// Management datagrams that wait to be sent, and as many to be taken away.
pub(super) const QUEUE: usize = 256;
/// Management datagrams that are sent before queue pairs have their turn.
const MADS_PER_POLL: u64 = 16;
