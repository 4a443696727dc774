//! Probes of paths to endpoints of other hosts: engines send and answer them by themselves, so that no other thread is in the
//! round trip.
//!
//! They take the way of management datagrams, from queue pair 1 to queue pair 1, through the tunnel only. An answer may arrive
//! at another engine than the one that sent the probe.

use super::management::{GSI, GSI_QKEY, MadError};
use crate::capture::Captures;
use crate::path::{Envelope, Opened, Origin, Route, Routes, Transmits, flow};
use crate::timer::Time;
use crate::wire::{Header, Op, Probe, ProbeAnswer, RouterVersion, Service};
use alloc::collections::VecDeque;
use core::convert::Infallible;
use core::time::Duration;
use rdmesh_verbs::{AddressVector, Gid, Mtu, Psn, Vni};

/// A probe to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeRequest {
    /// Transaction ID, which tells its answer from those to others of this host.
    pub tid: u64,
    /// Network number of both addresses.
    pub vni: Vni,
    /// The endpoint's own address.
    pub source: Gid,
    /// The address that is probed.
    pub dest: Gid,
    /// Bytes of payload.
    pub len: Mtu,
}

/// State of a probe at the engine that sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProbeState {
    /// When it left.
    pub sent: Option<Time>,
    /// The answer, where it came to this engine, from the host of the address.
    pub answer: Option<ProbeReply>,
}

/// The answer to a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeReply {
    /// When it was handled here.
    pub at: Time,
    /// Time that it had waited in the socket before, where that is known.
    pub waited: Option<Duration>,
    /// Answer of the other router.
    pub answer: ProbeAnswer,
}

/// Error of a probe that cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeError {
    /// Too many wait.
    Full,
    /// No router is at the address: it is no endpoint's that is known.
    External,
}

/// Probes on their way out, and what is known of those that were sent.
#[derive(Default)]
pub(super) struct Probes {
    outgoing: VecDeque<Outgoing>,
    sent: VecDeque<Sent>,
    replies: VecDeque<Reply>,
    psn: Psn,
}

struct Outgoing {
    to: Envelope,
    tid: u64,
    len: usize,
    /// Of an answer: when the probe arrived, and what there is to say.
    answer: Option<(Time, ProbeAnswer)>,
}

struct Sent {
    tid: u64,
    at: Time,
}

struct Reply {
    tid: u64,
    /// Origin: the host that answered, or this one.
    from: Route,
    reply: ProbeReply,
}

impl Probes {
    #[inline]
    pub(super) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Appends waiting probes and answers, for one turn. Returns how many.
    #[cold]
    pub(super) fn transmit(&mut self, now: Time, to: &mut Transmits, captures: &mut Captures) -> u64 {
        let mut sent = 0;
        for _ in 0..PROBES_PER_POLL {
            let Some(outgoing) = self.outgoing.pop_front_if(|_| to.has_room()) else { break };
            let answer = outgoing.answer.map(|(arrived, answer)| ProbeAnswer {
                held: Duration::from_nanos(now.0.saturating_sub(arrived.0)),
                ..answer
            });
            let header =
                Header::new(Service::Ud, Op::Datagram { qkey: GSI_QKEY, source: GSI, imm: None }, GSI, self.psn);
            self.psn = self.psn.add(1);
            let (probe, peer, mark) = (Probe { tid: outgoing.tid, answer }, outgoing.to, to.mark());
            let Ok(()) = peer.emit(to, &header, outgoing.len, |payload| {
                probe.encode(payload);
                Ok::<_, Infallible>(())
            });
            captures.sent(now, peer.vni, peer.ip.source_port, to, mark);
            if answer.is_none() {
                remember(&mut self.sent, Sent { tid: probe.tid, at: now });
            }
            sent += 1;
        }
        sent
    }

    fn send(&mut self, now: Time, request: &ProbeRequest, routes: &Routes) -> Result<(), ProbeError> {
        let ProbeRequest { tid, vni, source, dest, len } = *request;
        let av = AddressVector { dgid: dest, ..AddressVector::default() };
        match routes.find(vni, dest) {
            Route::Host(host) => {
                let to = Envelope::on_host(host, vni, source, &av, flow(GSI, GSI));
                self.push(Outgoing { to, tid, len: len.bytes() as usize, answer: None }).ok_or(ProbeError::Full)
            }
            Route::Local => {
                let reply = ProbeReply { at: now, waited: None, answer: known_of(routes, vni, source, dest) };
                remember(&mut self.sent, Sent { tid, at: now });
                self.keep(Reply { tid, from: Route::Local, reply });
                Ok(())
            }
            Route::External => Err(ProbeError::External),
        }
    }

    /// Takes a probe, or an answer. The caller has made sure that it is intact, and that it comes from its sender's host.
    pub(super) fn handle(
        &mut self,
        now: Time,
        opened: &Opened<'_>,
        probe: Probe,
        routes: &Routes,
    ) -> Result<(), MadError> {
        let (Some(vni), Origin::Host(host)) = (opened.vni, opened.origin) else { return Err(MadError::Unreachable) };
        let waited = opened.received.map(|received| Duration::from_nanos(now.0.saturating_sub(received.0)));
        if let Some(answer) = probe.answer {
            let reply = ProbeReply { at: now, waited, answer };
            self.keep(Reply { tid: probe.tid, from: Route::Host(host), reply });
            return Ok(());
        }
        let (source, dest) = (opened.ip.source, opened.ip.dest);
        let answer = ProbeAnswer { waited, ..known_of(routes, vni, source, dest) };
        let av = AddressVector { dgid: source, ..AddressVector::default() };
        let to = Envelope::on_host(host, vni, dest, &av, flow(GSI, GSI));
        let len = opened.payload.len();
        self.push(Outgoing { to, tid: probe.tid, len, answer: Some((now, answer)) }).ok_or(MadError::Full)
    }

    /// Keeps an answer. A host that answers more than it was asked loses its own answers only.
    fn keep(&mut self, reply: Reply) {
        let is_its = |kept: &Reply| kept.from == reply.from;
        if self.replies.iter().filter(|kept| is_its(kept)).count() >= MOST_OF_HOST
            && let Some(oldest) = self.replies.iter().position(is_its)
        {
            self.replies.remove(oldest);
        }
        remember(&mut self.replies, reply);
    }

    fn push(&mut self, outgoing: Outgoing) -> Option<()> {
        (self.outgoing.len() < QUEUE).then(|| self.outgoing.push_back(outgoing))
    }
}

/// An engine's probes.
pub struct PathProbes<'a> {
    pub(super) probes: &'a mut Probes,
    pub(super) routes: &'a Routes,
    pub(super) now: Time,
}

impl PathProbes<'_> {
    /// Sends a probe, as soon as [`Engine::poll_transmit`](super::Engine::poll_transmit) is called. One to an endpoint of this host
    /// is answered at once.
    pub fn send(&mut self, request: &ProbeRequest) -> Result<(), ProbeError> {
        self.probes.send(self.now, request, self.routes)
    }

    /// State of a probe, which is forgotten with it. An answer of another host than the address's is none.
    pub fn take(&mut self, request: &ProbeRequest) -> ProbeState {
        let ProbeRequest { tid, vni, dest, .. } = *request;
        let host = self.routes.find(vni, dest);
        let Probes { sent, replies, .. } = &mut *self.probes;
        let sent_at = sent.iter().position(|sent| sent.tid == tid).and_then(|at| sent.remove(at));
        let reply =
            replies.iter().position(|reply| reply.tid == tid && reply.from == host).and_then(|at| replies.remove(at));
        ProbeState { sent: sent_at.map(|sent| sent.at), answer: reply.map(|reply| reply.reply) }
    }
}

/// Answer to a probe of an address, by what this router knows.
fn known_of(routes: &Routes, vni: Vni, source: Gid, dest: Gid) -> ProbeAnswer {
    let is_here = routes.find(vni, dest) == Route::Local;
    let is_allowed = is_here && routes.access().may_begin(vni, source, dest);
    ProbeAnswer { is_here, is_allowed, version: RouterVersion::OWN, ..ProbeAnswer::default() }
}

/// Adds what may never be asked for: the oldest goes.
fn remember<T>(list: &mut VecDeque<T>, new: T) {
    if list.len() >= QUEUE {
        list.pop_front();
    }
    list.push_back(new);
}

/// Probes that wait, or are remembered.
const QUEUE: usize = 64;
/// Answers of one host that are remembered.
const MOST_OF_HOST: usize = 8;
/// Probes that are sent before queue pairs have their turn.
const PROBES_PER_POLL: usize = 4;
