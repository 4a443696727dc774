//! Service ID resolution (SIDR, IBA 12.11): requests for the QP of a datagram service.

use super::connection::{CmConnection, MAX_TIMEOUT, duration};
use super::messages::{SidrRep, SidrReq};
use super::{Cm, CmError, CmPath, CmState, CommId, Event, Kind, Mad, SidrAnswer, SidrParams, private};
use crate::timer::Time;
use arrayvec::ArrayVec;

impl Cm {
    /// Requests a datagram service (SIDR_REQ). The result is the event `ServiceResolved` or `Unreachable`.
    pub fn resolve_service(&mut self, now: Time, path: CmPath, sidr: &SidrParams<'_>) -> Result<CommId, CmError> {
        let private = private(sidr.private)?;
        let id = self.exchange.open(|tid| CmConnection {
            timeout: sidr.timeout.clamp(duration(0), duration(MAX_TIMEOUT)),
            max_retries: sidr.max_retries,
            ..CmConnection::service(path, CmState::SidrReqSent, tid, 0)
        });
        let tid = self.exchange.tid(id);
        let message = SidrReq { request_id: id, pkey: sidr.pkey, service_id: sidr.service_id, private };
        self.exchange.send_until_answered(now, id, CmState::SidrReqSent, Kind::SidrReq, message.encode(tid));
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
        self.exchange.send(path, Kind::SidrRep, bytes);
        self.exchange.remove(id.0);
        Ok(())
    }

    pub(super) fn on_sidr_req(&mut self, mad: &Mad) {
        let sidr = SidrReq::decode(&mad.bytes);
        if self.exchange.table().question(mad.path.ends(), sidr.request_id).is_some() {
            self.counters.duplicate[Kind::SidrReq.index()] += 1;
            return;
        }
        let tid = super::mad::tid(&mad.bytes);
        match self.exchange.admit(CmConnection::service(mad.path, CmState::SidrReqRcvd, tid, sidr.request_id)) {
            Ok(id) => self.exchange.tell(id, Event::ServiceRequest { path: mad.path, sidr }),
            // The peer will ask again.
            Err(_) => self.counters.overflow += 1,
        }
    }

    pub(super) fn on_sidr_rep(&mut self, mad: &Mad) {
        let rep = SidrRep::decode(&mad.bytes);
        let id = rep.request_id;
        match self.exchange.table().find(mad.path.ends(), id).map(|c| c.state) {
            Some(CmState::SidrReqSent) => {
                self.exchange.tell(id, Event::ServiceResolved(rep));
                self.exchange.end(id);
            }
            _ => self.counters.unexpected += 1,
        }
    }
}
