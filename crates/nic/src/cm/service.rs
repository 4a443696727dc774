//! Service ID resolution (SIDR, IBA 12.11): requests for the QP of a datagram service.

use super::connection::{CmConnection, MAX_TIMEOUT, duration};
use super::messages::{SidrRep, SidrReq};
use super::{Cm, CmError, CmPath, CmState, CommId, Event, Kind, Mad, SidrAnswer, SidrParams, private};
use crate::time::Time;
use arrayvec::ArrayVec;
use rdmesh_verbs::{Qkey, Qpn};

impl Cm {
    /// Requests a datagram service (SIDR_REQ). The result is the event `ServiceResolved` or `Unreachable`.
    pub fn resolve_service(&mut self, now: Time, path: CmPath, sidr: &SidrParams<'_>) -> Result<CommId, CmError> {
        let private = private(sidr.private)?;
        let id = self.table.fresh_id();
        let tid = self.tid(id);
        let mut connection = CmConnection::service(path, CmState::SidrReqSent, tid, 0);
        connection.timeout = sidr.timeout.clamp(duration(0), duration(MAX_TIMEOUT));
        connection.max_retries = sidr.max_retries;
        let added = self.table.insert(id, connection);
        debug_assert!(added.is_ok(), "only what peers ask for is limited");
        let message = SidrReq { request_id: id, pkey: sidr.pkey, service_id: sidr.service_id, private };
        self.send_until_answered(now, id, CmState::SidrReqSent, Kind::SidrReq, message.encode(tid));
        Ok(CommId(id))
    }

    /// Answers a SIDR request, and ends its id.
    pub fn answer_service(&mut self, _now: Time, id: CommId, answer: &SidrAnswer<'_>) -> Result<(), CmError> {
        let c = self.owned(id)?;
        if c.state != CmState::SidrReqRcvd {
            return Err(CmError::State(c.state));
        }
        let message = SidrRep {
            request_id: c.remote_id,
            status: answer.status,
            qpn: answer.qpn,
            service_id: answer.service_id,
            qkey: answer.qkey,
            info: ArrayVec::new(),
            private: private(answer.private)?,
        };
        let (path, bytes) = (c.path, message.encode(c.tid));
        self.send(path, Kind::SidrRep, bytes);
        self.table.remove(id.0);
        Ok(())
    }

    /// Rejects a SIDR request that the owner gives up.
    pub(super) fn refuse_service(&mut self, id: u32) {
        let Some(c) = self.table.get(id) else { return };
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

    pub(super) fn on_sidr_req(&mut self, mad: &Mad) {
        let sidr = SidrReq::decode(&mad.bytes);
        if self.table.question(mad.path.ends(), sidr.request_id).is_some() {
            self.counters.duplicate[Kind::SidrReq.index()] += 1;
            return;
        }
        let id = self.table.fresh_id();
        let tid = super::mad::tid(&mad.bytes);
        match self.table.insert(id, CmConnection::service(mad.path, CmState::SidrReqRcvd, tid, sidr.request_id)) {
            Ok(()) => self.tell(id, Event::ServiceRequest { path: mad.path, sidr }),
            // The peer will ask again.
            Err(_) => self.counters.overflow += 1,
        }
    }

    pub(super) fn on_sidr_rep(&mut self, mad: &Mad) {
        let rep = SidrRep::decode(&mad.bytes);
        let id = rep.request_id;
        match self.table.find(mad.path.ends(), id).map(|c| c.state) {
            Some(CmState::SidrReqSent) => {
                self.tell(id, Event::ServiceResolved(rep));
                self.end(id);
            }
            _ => self.counters.unexpected += 1,
        }
    }
}

/// `IB_SIDR_REJECT`.
const REJECTED: u8 = 2;
