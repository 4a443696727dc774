//! Passive side of a connection: takes REQ, sends REP, takes RTU.

use super::connection::{CmConnection, MAX_SERVICE_TIMEOUT, duration};
use super::farewell::CommIds;
use super::messages::{Mra, Rejected, Rep, Req, Rtu, Unfit};
use super::{Cm, CmError, CmState, CommId, Event, Kind, Mad, RejectReason, RepParams, private};
use crate::timer::Time;
use rdmesh_verbs::Qkey;

impl Cm {
    /// Accepts a request. The event is `Established` when the peer confirms, else `Unreachable` or `Rejected`.
    pub fn accept(&mut self, now: Time, id: CommId, rep: &RepParams<'_>) -> Result<(), CmError> {
        let c = self.owned(id)?;
        if !matches!(c.state, CmState::ReqRcvd | CmState::MraReqSent) {
            return Err(CmError::State(c.state));
        }
        let message = Rep {
            local_comm_id: id.0,
            remote_comm_id: c.remote_id,
            qkey: Qkey(0),
            qpn: rep.qpn,
            starting_psn: rep.starting_psn,
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            target_ack_delay: rep.target_ack_delay,
            failover: rep.failover,
            flow_control: rep.flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            ca_guid: rep.ca_guid,
            private: private(rep.private)?,
        };
        let bytes = message.encode(c.tid);
        self.exchange.change(id.0, |c| {
            c.local_guid = rep.ca_guid;
            c.qp.local_qpn = rep.qpn;
            c.qp.rq_psn = rep.starting_psn;
            c.qp.responder_resources = rep.responder_resources;
            c.qp.initiator_depth = rep.initiator_depth;
        });
        self.exchange.send_until_answered(now, id.0, CmState::RepSent, Kind::Rep, bytes);
        Ok(())
    }

    /// Asks the peer to wait for the answer to its REQ or REP, for 4.096 µs × 2^`service_timeout`. With bit 7 set
    /// it is asked only when it repeats itself.
    pub fn prepare(&mut self, _now: Time, id: CommId, service_timeout: u8, data: &[u8]) -> Result<(), CmError> {
        let c = self.owned(id)?;
        let (state, mraed) = match c.state {
            CmState::ReqRcvd => (CmState::MraReqSent, Mra::REQ),
            CmState::RepRcvd => (CmState::MraRepSent, Mra::REP),
            state => return Err(CmError::State(state)),
        };
        let mra = Mra {
            local_comm_id: id.0,
            remote_comm_id: c.remote_id,
            mraed,
            service_timeout: service_timeout & !DELAY,
            private: private(data)?,
        };
        let bytes = mra.encode(c.tid);
        if service_timeout & DELAY == 0 {
            self.exchange.send_and_keep(id.0, state, Kind::Mra, bytes);
        } else {
            self.exchange.keep(id.0, state, Kind::Mra, bytes);
        }
        Ok(())
    }

    /// Data has come before RTU: the connection is established. No event follows.
    pub fn notify_established(&mut self, _now: Time, id: CommId) -> Result<(), CmError> {
        match self.owned(id)?.state {
            CmState::RepSent | CmState::MraRepRcvd => {
                self.exchange.change(id.0, |c| c.rest(CmState::Established));
                Ok(())
            }
            state => Err(CmError::State(state)),
        }
    }

    pub(super) fn on_req(&mut self, now: Time, mad: &Mad) {
        let ids = CommIds { local: 0, remote: Req::comm_id(&mad.bytes) };
        let req = match Req::decode(&mad.bytes) {
            Ok(req) => req,
            Err(Unfit::Transport) => {
                return self.exchange.answer_rej(mad, ids, Rejected::Req, RejectReason::INVALID_TRANSPORT_TYPE);
            }
            Err(Unfit::Mtu) => return self.exchange.answer_rej(mad, ids, Rejected::Req, RejectReason::INVALID_MTU),
        };
        let ends = mad.path.ends();
        if let Some(id) = self.exchange.table().by_remote_id(ends, req.ca_guid, req.local_comm_id) {
            return self.on_duplicate_req(mad, id);
        }
        if let Some(stale) = self.exchange.table().by_remote_qpn(ends, req.ca_guid, req.qpn) {
            self.exchange.answer_rej(mad, ids, Rejected::Req, RejectReason::STALE_CONNECTION);
            return self.exchange.end_stale(now, stale);
        }
        if (req.path.local_gid, req.path.remote_gid) != (ends.remote, ends.local) {
            return self.exchange.answer_rej(mad, ids, Rejected::Req, RejectReason::INVALID_GID);
        }
        match self.exchange.admit(CmConnection::passive(mad.path, &req, super::mad::tid(&mad.bytes))) {
            Ok(id) => self.exchange.tell(id, Event::Request { path: mad.path, req }),
            // The peer will ask again.
            Err(_) => self.counters.overflow += 1,
        }
    }

    fn on_duplicate_req(&mut self, mad: &Mad, id: u32) {
        let Some(c) = self.exchange.table().get(id) else { return };
        let (state, is_active, remote_id) = (c.state, c.is_active, c.remote_id);
        let is_answered = !is_active && matches!(state, CmState::MraReqSent | CmState::RepSent);
        self.on_duplicate(Kind::Req, id, is_answered);
        if !is_active && state == CmState::TimeWait {
            self.exchange.answer_rej(
                mad,
                CommIds { local: 0, remote: remote_id },
                Rejected::Req,
                RejectReason::STALE_CONNECTION,
            );
        }
    }

    pub(super) fn on_rtu(&mut self, mad: &Mad) {
        let rtu = Rtu::decode(&mad.bytes);
        let id = rtu.remote_comm_id;
        match self.exchange.table().find_both(mad.path.ends(), id, rtu.local_comm_id).map(|c| (c.state, c.is_active)) {
            Some((CmState::RepSent | CmState::MraRepRcvd, _)) => {
                self.exchange.change(id, |c| c.rest(CmState::Established));
                self.exchange.tell(id, Event::Established { private: rtu.private });
            }
            Some((CmState::Established, false)) => self.counters.duplicate[Kind::Rtu.index()] += 1,
            _ => self.counters.unexpected += 1,
        }
    }

    /// The peer needs more time. It is given once for each message.
    pub(super) fn on_mra(&mut self, now: Time, mad: &Mad) {
        let mra = Mra::decode(&mad.bytes);
        let (ends, id) = (mad.path.ends(), mra.remote_comm_id);
        let found = match mra.mraed {
            Mra::REQ => self.exchange.table().find(ends, id),
            _ => self.exchange.table().find_both(ends, id, mra.local_comm_id),
        };
        let state = match (found.map(|c| c.state), mra.mraed) {
            (Some(CmState::ReqSent), Mra::REQ) => CmState::MraReqRcvd,
            (Some(CmState::RepSent), Mra::REP) => CmState::MraRepRcvd,
            (Some(CmState::MraReqRcvd), Mra::REQ) | (Some(CmState::MraRepRcvd), Mra::REP) => {
                self.counters.duplicate[Kind::Mra.index()] += 1;
                return;
            }
            _ => {
                self.counters.unexpected += 1;
                return;
            }
        };
        self.exchange.change(id, |c| {
            let timeout = duration(mra.service_timeout.min(MAX_SERVICE_TIMEOUT)) + c.time_wait();
            c.state = state;
            c.deadline = Some(now.after(timeout));
            c.last.iter_mut().for_each(|last| last.timeout = timeout);
        });
    }
}

/// `IB_CM_MRA_FLAG_DELAY`.
const DELAY: u8 = 0x80;
