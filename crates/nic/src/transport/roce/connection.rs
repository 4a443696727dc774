//! Transport state of a queue pair that is connected to a peer on another host.

use super::responder::Replies;
use super::time_wait::MAX_FINAL_ACKS;
use crate::congestion::{Dcqcn, Rtt, SendWindow};
use crate::path::Envelope;
use crate::qp::Slowness;
use crate::time::Time;
use crate::wire::Syndrome;
use rdmesh_verbs::{Psn, QpType};

/// The wire side of an RC or UC queue pair. The queue pair has one from RTR on, if its peer is on another host.
pub(crate) struct Connection {
    pub(crate) envelope: Envelope,
    pub(super) requester: RequesterState,
    pub(super) responder: ResponderState,
    has_failed: bool,
}

/// The send side. The next PSN and the work requests on their way are the queue pair's own.
pub(super) struct RequesterState {
    /// Oldest PSN that is not acknowledged.
    pub(super) unacked: Psn,
    /// The PSN after the greatest that was ever sent.
    pub(super) highest: Psn,
    /// Packets since an acknowledgement was last asked for.
    pub(super) unrequested: u32,
    pub(super) window: SendWindow,
    pub(super) rtt: Rtt,
    /// A packet whose round trip is measured.
    pub(super) timed: Option<(Psn, Time)>,
    /// Whether a probe is in flight: after silence one packet is sent, and its answer shows how far the peer is.
    pub(super) probing: bool,
    /// Probes since the last progress.
    pub(super) probes: u32,
    pub(super) probe_at: Time,
    /// When the ACK time-out ends, where there is one.
    pub(super) retry_at: Option<Time>,
    /// The receiver was not ready: nothing is sent until then.
    pub(super) rnr_until: Option<Time>,
    /// Memory of a request could not be reached: nothing is sent until then.
    pub(super) slow_until: Option<Time>,
    /// From where, and when, sending last went back.
    pub(super) went_back: Option<(Psn, Time)>,
    pub(super) rate: Option<Dcqcn>,
}

/// The receive side. The next PSN expected is the queue pair's own.
pub(super) struct ResponderState {
    /// Messages completed (IBA 9.7.5.1.2).
    pub(super) msn: u32,
    pub(super) replies: Replies,
    /// Of the memory that replies are read from.
    pub(super) slow: Slowness,
    /// A positive acknowledgement is due.
    pub(super) ack_due: bool,
    /// The last SEND or WRITE packet. A READ or atomic is only acknowledged by its own answer: some take an acknowledgement of
    /// its PSN for that answer.
    pub(super) acknowledgeable: Option<Psn>,
    /// A negative one is due.
    pub(super) nak_due: Option<(Psn, Syndrome)>,
    /// The negative one that put the queue pair in error.
    pub(super) fatal: Option<(Psn, Syndrome)>,
    pub(super) gap: Gap,
    /// When a congestion notification was last sent, and whether one is due.
    pub(super) notified_at: Option<Time>,
    pub(super) notify: bool,
    /// Repeats of the final ACK that are left when the connection has ended.
    pub(super) final_acks_left: u8,
}

/// Last report to the peer about missing packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gap {
    /// Nothing is missing.
    None,
    /// A sequence NAK: its time, and the PSN that last came behind the gap.
    Reported(Time, Psn),
    /// An RNR NAK: the peer waits and then begins with the expected packet, so later packets need no report.
    Waiting,
}

impl Connection {
    /// To the destination of `envelope`, which may have `replies` READs and atomics under way.
    pub(crate) fn new(envelope: Envelope, replies: usize) -> Self {
        Self { envelope, requester: RequesterState::new(), responder: ResponderState::new(replies), has_failed: false }
    }

    /// Begins to send with `psn`.
    pub(crate) fn start(&mut self, psn: Psn) {
        self.requester.unacked = psn;
        self.requester.highest = psn;
    }

    /// Oldest PSN that the peer has not acknowledged.
    pub(crate) fn unacked(&self) -> Psn {
        self.requester.unacked
    }

    /// Whether packets of a queue pair of this type are acknowledged. Those of an unreliable connection through the tunnel are,
    /// now and then, as back-pressure only: its sender has no other limit, and sends no more than arrives.
    pub(super) fn is_acknowledged(&self, qp_type: QpType) -> bool {
        match qp_type {
            QpType::Rc => true,
            QpType::Uc => self.envelope.is_tunnel(),
            QpType::Ud => false,
        }
    }

    /// The queue pair is in error: only the NAK is sent any more.
    pub(crate) fn fail(&mut self) {
        if std::mem::replace(&mut self.has_failed, true) {
            return;
        }
        self.requester.highest = self.requester.unacked;
        self.requester.rnr_until = None;
        self.requester.slow_until = None;
        self.requester.rate = None;
        self.responder.nak_due = self.responder.fatal;
        // Requests before the refused one are still acknowledged.
        if self.responder.fatal.is_none() {
            self.responder.replies.clear();
        }
        self.responder.ack_due = false;
        self.responder.notify = false;
    }
}

impl RequesterState {
    fn new() -> Self {
        Self {
            unacked: Psn::default(),
            highest: Psn::default(),
            unrequested: 0,
            window: SendWindow::new(),
            rtt: Rtt::default(),
            timed: None,
            probing: false,
            probes: 0,
            probe_at: Time::default(),
            retry_at: None,
            rnr_until: None,
            slow_until: None,
            went_back: None,
            rate: None,
        }
    }

    /// Whether anything was sent that is not acknowledged.
    pub(super) fn is_waiting(&self) -> bool {
        self.unacked != self.highest
    }
}

impl ResponderState {
    fn new(replies: usize) -> Self {
        Self {
            msn: 0,
            replies: Replies::new(replies),
            slow: Slowness::default(),
            ack_due: false,
            acknowledgeable: None,
            nak_due: None,
            fatal: None,
            gap: Gap::None,
            notified_at: None,
            notify: false,
            final_acks_left: MAX_FINAL_ACKS,
        }
    }
}
