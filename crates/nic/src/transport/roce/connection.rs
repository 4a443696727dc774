//! Transport state of a queue pair that is connected to a peer on another host.

use super::requester::RequesterState;
use super::responder::{ResponderState, Selective};
use crate::command::{CongestionState, LaneCounts};
use crate::congestion::{Congestion, CongestionControl};
use crate::device::Recovery;
use crate::path::{Envelope, Lane};
use crate::timer::Time;
use crate::transport::native::Lanes;
use core::time::Duration;
use rdmesh_verbs::{Psn, QpType};

/// The wire side of an RC or UC queue pair. The queue pair has one from RTR on, if its peer is on another host.
pub(crate) struct Connection {
    pub(crate) envelope: Envelope,
    pub(super) requester: RequesterState,
    pub(super) responder: ResponderState,
    has_failed: bool,
    /// Lanes that packets may leave by. Answers leave by that of the envelope.
    lanes: u8,
    congestion: CongestionControl,
    /// When answers went to another lane last.
    changed_lane: Time,
}

impl Connection {
    /// To the destination of `envelope`, which may have `replies` READs and atomics under way.
    pub(crate) fn new(envelope: Envelope, replies: usize, Recovery { held, lanes, congestion }: Recovery) -> Self {
        let selective = Selective::new(held.filter(|_| envelope.is_tunnel()));
        let (requester, responder) = (RequesterState::default(), ResponderState::new(replies, selective));
        let mut connection = Self {
            envelope,
            requester,
            responder,
            has_failed: false,
            lanes,
            congestion,
            changed_lane: Time::default(),
        };
        connection.envelope.lane = connection.first_lane();
        connection
    }

    /// Begins to send with `psn`; a reliable connection with selective retransmission, where both ends may have it.
    pub(crate) fn start(&mut self, psn: Psn, qp_type: QpType) {
        let may = qp_type == QpType::Rc && self.responder.may_be_selective();
        let (lanes, first) = (self.lanes, self.first_lane());
        let native = may.then(|| (Lanes::new(lanes, first.0.into()), Congestion::new(self.congestion)));
        self.requester.start(psn, native);
    }

    /// The peer has another address.
    pub(crate) fn move_peer(&mut self, envelope: Envelope) {
        self.envelope = Envelope { lane: self.envelope.lane, ..envelope };
    }

    /// Lanes that requests leave by.
    pub(crate) fn lanes(&self) -> LaneCounts {
        self.requester.lanes()
    }

    /// Congestion control of requests.
    pub(crate) fn congestion(&self) -> CongestionState {
        self.requester.congestion()
    }

    /// The lane for the next request packet.
    pub(super) fn choose_lane(&mut self, now: Time) -> Lane {
        self.requester.choose_lane(now).unwrap_or(self.envelope.lane)
    }

    /// A request has come again: the answer may have been lost where its lane leads.
    pub(super) fn on_repeated_request(&mut self, now: Time) {
        if self.lanes > 1 && self.envelope.is_tunnel() && now >= self.changed_lane.after(LANE_TIME) {
            self.changed_lane = now;
            self.envelope.lane = Lane((self.envelope.lane.0 + 1) % self.lanes);
        }
    }

    /// Connections begin on different lanes.
    fn first_lane(&self) -> Lane {
        if self.envelope.is_tunnel() {
            Lane((self.envelope.ip.source_port % u16::from(self.lanes.max(1))) as u8)
        } else {
            Lane::default()
        }
    }

    /// Oldest PSN that the peer has not acknowledged.
    pub(crate) fn unacked(&self) -> Psn {
        self.requester.unacked()
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
        if !core::mem::replace(&mut self.has_failed, true) {
            self.requester.fail();
            self.responder.fail();
        }
    }
}

/// Least time for which answers keep their lane.
const LANE_TIME: Duration = Duration::from_millis(10);
