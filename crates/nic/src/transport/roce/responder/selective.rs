//! Responder towards an rdmesh router: what comes behind a gap is kept, and acknowledged selectively.

use crate::device::HeldBytes;
use crate::path::Transmits;
use crate::platform::Platform;
use crate::timer::Time;
use crate::transport::native::Reordering;
use crate::transport::roce::{Connection, NATIVE_REPLIES, Responder};
use crate::wire::{Header, Op, SelectiveAck, Syndrome, Telemetry};
use core::time::Duration;
use rdmesh_verbs::{Psn, QpState, QpType, rnr_delay};

/// Packets behind a gap, and what the peer is to know of them.
#[derive(Debug)]
pub(in crate::transport::roce) struct Selective {
    is_on: bool,
    reordering: Reordering,
    /// Room for packets behind gaps, where the peer is an rdmesh router and this one may recover so.
    held: Option<HeldBytes>,
    /// Requests that have arrived again.
    duplicates: u32,
    /// Requests that were marked as sent again.
    repeats: u32,
    /// There was no receive request for the next packet, which is kept.
    parked: Option<Parked>,
    /// Packets kept since the last acknowledgement.
    unreported: u32,
    /// Whether the peer asks for telemetry.
    has_telemetry: bool,
}

/// A wait for a receive request: programs post them without a sign, so they are looked for.
#[derive(Clone, Copy, Debug)]
struct Parked {
    /// When the peer is told next that the receiver is not ready.
    nak_at: Time,
    /// When to look next, and after how long again; never once the peer has been told.
    look_at: Option<Time>,
    interval: Duration,
}

impl Selective {
    /// Off, and within the limits of `held`; for ever off without.
    pub(in crate::transport::roce) fn new(held: Option<HeldBytes>) -> Self {
        Self {
            held,
            is_on: false,
            reordering: Reordering::default(),
            duplicates: 0,
            repeats: 0,
            parked: None,
            unreported: 0,
            has_telemetry: false,
        }
    }

    /// Whether the peer is an rdmesh router, and this one may recover so.
    pub(super) fn is_possible(&self) -> bool {
        self.held.is_some()
    }

    /// Whether the peer takes selective acknowledgements.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// A request has arrived that was here before. Only what was sent again says that too much is: not copies.
    pub(super) fn count_duplicate(&mut self, header: &Header) {
        self.duplicates = self.duplicates.wrapping_add(header.is_repeated.into());
    }

    /// A request has arrived that may have been sent before.
    pub(super) fn count_repeat(&mut self, header: &Header) {
        self.repeats = self.repeats.wrapping_add(header.is_repeated.into());
    }

    /// Whether the next packet waits for a receive request.
    pub(super) fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// The next packet was executed.
    pub(super) fn unpark(&mut self) {
        self.parked = None;
    }

    /// Forgets what is kept. The peer gets ordinary acknowledgements from now on.
    pub(super) fn end(&mut self) {
        self.is_on = false;
        self.parked = None;
        self.reordering.clear();
    }
}

impl Connection {
    /// The peer declares in each request whether it takes selective acknowledgements.
    pub(super) fn follow_peer(&mut self, header: &Header) {
        let selective = &mut self.responder.selective;
        let takes = header.takes_selective && selective.is_possible();
        selective.has_telemetry = header.has_telemetry;
        if takes != selective.is_on {
            selective.end();
            selective.is_on = takes;
            self.responder.replies.keep(if takes { NATIVE_REPLIES } else { 1 });
        }
    }
}

impl<P: Platform> Responder<'_, P> {
    /// Keeps a packet that came behind a gap. The peer is told of each new gap, and now and then of what came behind it.
    pub(super) fn hold(&mut self, header: &Header, payload: &[u8]) {
        self.qp.counters.out_of_order += 1;
        let expected = self.qp.recv.expected_psn;
        let responder = &mut self.connection.responder;
        let selective = &mut responder.selective;
        let begins_gap = selective.reordering.begins_gap(header.psn);
        let room = selective.held.as_ref();
        let is_kept = room.is_some_and(|held| selective.reordering.hold(expected, header, payload, held));
        if !is_kept {
            selective.count_duplicate(header);
        }
        selective.unreported += 1;
        if begins_gap || !is_kept || header.ack_request || selective.unreported >= REPORT_AFTER {
            responder.ack_due = true;
        }
    }

    /// There is no receive request for the packet with `psn`. It waits here for some time before the peer is told, which then
    /// sends nothing for much longer: what was kept behind a gap often comes faster than a program can post.
    pub(super) fn park(&mut self, psn: Psn) {
        let (now, timer) = (self.out.now, self.qp.attr.min_rnr_timer);
        let delay = rnr_delay(timer);
        let responder = &mut self.connection.responder;
        let new = Parked { nak_at: now.after(delay.min(GRACE)), look_at: Some(now), interval: FIRST_LOOK };
        let parked = responder.selective.parked.get_or_insert(new);
        if parked.nak_at <= now {
            // The packet comes again after the peer's wait, whose length is the same.
            (parked.nak_at, parked.look_at) = (now.after(delay), None);
            self.qp.counters.rnr_naks += 1;
            responder.nak_due = Some((psn, Syndrome::Rnr { timer }));
        } else if parked.look_at.is_some_and(|at| at <= now) {
            parked.look_at = Some(now.after(parked.interval).min(parked.nak_at));
            parked.interval *= 2;
        }
        if let Some(at) = parked.look_at {
            self.out.timers.set_by(self.index, at);
        }
    }

    /// A deadline has passed that may be this side's.
    pub(in crate::transport::roce) fn handle_timeout(&mut self) {
        let Some(at) = self.connection.responder.selective.parked.and_then(|parked| parked.look_at) else { return };
        if at > self.out.now {
            return self.out.timers.set_by(self.index, at);
        }
        self.receive_held();
        self.out.make_wire_ready(self.index);
    }

    /// Executes what was kept, as far as nothing is missing before it.
    pub(super) fn receive_held(&mut self) {
        while self.qp.state() != QpState::Error
            && self.qp.made().qp_type == QpType::Rc
            && let Some(held) = self.connection.responder.selective.reordering.take(self.qp.recv.expected_psn)
        {
            P::serve(Some(self.qp.packet_id(false, held.header.psn)));
            self.receive_next(&held.header, &held.payload);
            let responder = &mut self.connection.responder;
            responder.ack_due |= self.qp.recv.expected_psn != held.header.psn;
            if self.qp.recv.expected_psn == held.header.psn {
                // Refused for good, or only for now: then the peer sends it again when it may be executed.
                return if self.qp.state() != QpState::Error {
                    responder.selective.reordering.put_back(held);
                };
            }
        }
    }

    /// Tells the peer what has arrived.
    pub(super) fn send_selective_ack(&mut self, to: &mut Transmits) {
        let expected = self.qp.recv.expected_psn;
        let selective = &mut self.connection.responder.selective;
        selective.unreported = 0;
        let mut ack = SelectiveAck::new(selective.duplicates, selective.repeats);
        selective.reordering.report(expected, &mut ack);
        let telemetry = selective.has_telemetry.then(|| self.out.telemetry());
        let before = telemetry.map_or(0, |_| Telemetry::LEN);
        let header = crate::transport::roce::header(self.qp, Op::SelectiveAcknowledge, expected);
        let header = Header { takes_selective: true, has_telemetry: telemetry.is_some(), ..header };
        let Ok(()) = self.connection.envelope.emit(to, &header, before + ack.len(), |bytes| {
            let (first, rest) = bytes.split_at_mut(before);
            if let Some(telemetry) = telemetry {
                telemetry.encode(first);
            }
            ack.encode(rest);
            Ok::<_, core::convert::Infallible>(())
        });
    }
}

/// Packets behind a known gap after which the peer is told of them.
const REPORT_AFTER: u32 = 8;
/// Time that a packet waits for a receive request before the peer is told; less than any ACK time-out.
const GRACE: Duration = Duration::from_micros(500);
/// First interval at which receive requests are looked for in that time; each is twice as long as the one before.
const FIRST_LOOK: Duration = Duration::from_micros(10);
