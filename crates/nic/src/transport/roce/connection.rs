//! Transport state of a queue pair that is connected to a peer on another host.

use super::requester::RequesterState;
use super::responder::{ResponderState, Selective};
use crate::device::HeldBytes;
use crate::path::Envelope;
use rdmesh_verbs::{Psn, QpType};

/// The wire side of an RC or UC queue pair. The queue pair has one from RTR on, if its peer is on another host.
pub(crate) struct Connection {
    pub(crate) envelope: Envelope,
    pub(super) requester: RequesterState,
    pub(super) responder: ResponderState,
    has_failed: bool,
}

impl Connection {
    /// To the destination of `envelope`, which may have `replies` READs and atomics under way.
    pub(crate) fn new(envelope: Envelope, replies: usize, held: Option<HeldBytes>) -> Self {
        let selective = Selective::new(held.filter(|_| envelope.is_tunnel()));
        let (requester, responder) = (RequesterState::default(), ResponderState::new(replies, selective));
        Self { envelope, requester, responder, has_failed: false }
    }

    /// Begins to send with `psn`; a reliable connection with selective retransmission, where both ends may have it.
    pub(crate) fn start(&mut self, psn: Psn, qp_type: QpType) {
        let may = qp_type == QpType::Rc && self.responder.may_be_selective();
        self.requester.start(psn, may);
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
