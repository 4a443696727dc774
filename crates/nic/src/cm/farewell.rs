//! The messages that end a connection or refuse one: REJ, DREQ, DREP, and the SIDR_REP of a refusal.

use super::exchange::Exchange;
use super::messages::{Drep, Dreq, Rej, Rejected, SidrRep};
use super::{CmState, Kind, Mad, RejectReason};
use crate::timer::Time;
use arrayvec::ArrayVec;
use rdmesh_verbs::{Qkey, Qpn};

/// The communication IDs of a connection at this end and at the peer (IBA 12.6); 0 is none.
#[derive(Clone, Copy)]
pub(super) struct CommIds {
    pub(super) local: u32,
    pub(super) remote: u32,
}

impl Exchange {
    /// Ends a stale connection, whose peer's QP has appeared in another one (IBA 12.9.8.3.1): the peer does not know it any
    /// more, or is sent a DREQ.
    pub(super) fn end_stale(&mut self, now: Time, id: u32) {
        if self.table().get(id).is_some_and(|c| c.state == CmState::Established) {
            self.send_dreq(now, id, ArrayVec::new());
        }
    }

    /// Rejects after a time-out, to tell the peer. The peer finds its end by the GUID.
    pub(super) fn send_timeout_rej(&mut self, id: u32, guid: [u8; 8]) {
        self.send_rej(id, RejectReason::TIMEOUT, guid.into_iter().collect(), ArrayVec::new());
    }

    /// Rejects what a connection's peer has sent last, or aborts the connection.
    pub(super) fn send_rej(
        &mut self,
        id: u32,
        reason: RejectReason,
        ari: ArrayVec<u8, { Rej::ARI }>,
        private: ArrayVec<u8, { Rej::PRIVATE }>,
    ) {
        use CmState::*;
        let Some(c) = self.table().get(id) else { return };
        let (local_comm_id, rejected) = match c.state {
            // The peer does not know this end's communication ID.
            ReqRcvd => (0, Rejected::Req),
            MraReqSent => (id, Rejected::Req),
            RepRcvd | MraRepSent => (id, Rejected::Rep),
            _ => (id, Rejected::Other),
        };
        let rej = Rej { local_comm_id, remote_comm_id: c.remote_id, rejected, reason, ari, private };
        let (path, bytes) = (c.path, rej.encode(c.tid));
        self.send(path, Kind::Rej, bytes);
    }

    /// Rejects a message for which there is no connection.
    pub(super) fn answer_rej(&mut self, mad: &Mad, ids: CommIds, rejected: Rejected, reason: RejectReason) {
        let rej = Rej {
            local_comm_id: ids.local,
            remote_comm_id: ids.remote,
            rejected,
            reason,
            ari: ArrayVec::new(),
            private: ArrayVec::new(),
        };
        self.send(mad.path, Kind::Rej, rej.encode(super::mad::tid(&mad.bytes)));
    }

    /// Ends an established connection.
    pub(super) fn send_dreq(&mut self, now: Time, id: u32, private: ArrayVec<u8, { Dreq::PRIVATE }>) {
        let tid = self.tid(id);
        let Some(c) = self.table().get(id) else { return };
        let remote_qpn = c.qp.remote_qpn.value();
        let dreq = Dreq { local_comm_id: id, remote_comm_id: c.remote_id, remote_qpn, private };
        self.send_until_answered(now, id, CmState::DreqSent, Kind::Dreq, dreq.encode(tid));
    }

    /// Confirms the peer's end.
    pub(super) fn send_drep(&mut self, now: Time, id: u32, private: ArrayVec<u8, { Drep::PRIVATE }>) {
        let Some(c) = self.table().get(id) else { return };
        let drep = Drep { local_comm_id: id, remote_comm_id: c.remote_id, private };
        let bytes = drep.encode(c.tid);
        self.send_and_keep(id, CmState::TimeWait, Kind::Drep, bytes);
        self.enter_time_wait(now, id);
    }

    /// Answers a DREQ for a connection that does not exist here: it has ended.
    pub(super) fn answer_drep(&mut self, mad: &Mad, dreq: &Dreq) {
        let (local_comm_id, remote_comm_id) = (dreq.remote_comm_id, dreq.local_comm_id);
        let drep = Drep { local_comm_id, remote_comm_id, private: ArrayVec::new() };
        self.send(mad.path, Kind::Drep, drep.encode(super::mad::tid(&mad.bytes)));
    }

    /// Rejects a SIDR request that the owner gives up.
    pub(super) fn refuse_service(&mut self, id: u32) {
        let Some(c) = self.table().get(id) else { return };
        let message = SidrRep {
            request_id: c.remote_id,
            status: REJECTED,
            qpn: Qpn::new(0),
            service_id: 0,
            qkey: Qkey(0),
            info: ArrayVec::new(),
            private: ArrayVec::new(),
        };
        let (path, bytes) = (c.path, message.encode(c.tid));
        self.send(path, Kind::SidrRep, bytes);
    }
}

/// `IB_SIDR_REJECT`.
const REJECTED: u8 = 2;
