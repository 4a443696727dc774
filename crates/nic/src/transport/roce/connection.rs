//! Transport state of a queue pair that is connected to a peer on another host.

use super::requester::RequesterState;
use super::responder::{ResponderState, Selective};
use crate::device::HeldBytes;
use crate::path::{Envelope, LossRecovery};
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
    pub(crate) fn new(envelope: Envelope, replies: usize, held: HeldBytes, recovery: LossRecovery) -> Self {
        let is_possible = recovery == LossRecovery::Selective && envelope.is_tunnel();
        let selective = Selective::new(held, is_possible);
        let (requester, responder) = (RequesterState::default(), ResponderState::new(replies, selective));
        Self { envelope, requester, responder, has_failed: false }
    }

    /// Begins to send with `psn`, where the peer takes it selectively.
    pub(crate) fn start(&mut self, psn: Psn, qp_type: QpType, recovery: LossRecovery) {
        let may = recovery == LossRecovery::Selective && qp_type == QpType::Rc && self.envelope.is_tunnel();
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
