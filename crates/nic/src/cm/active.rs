//! Active side of a connection: sends REQ, takes REP, sends RTU.

use super::connection::{CmConnection, ack_timeout};
use super::farewell::CommIds;
use super::messages::{PathRecord, Rejected, Rep, Req, Rtu};
use super::{Cm, CmError, CmPath, CmState, CommId, Event, Kind, Mad, RejectReason, ReqParams, private};
use crate::timer::Time;
use rdmesh_verbs::{Qkey, QpType};

impl Cm {
    /// Requests a connection. The result is the event `Reply`, `Rejected` or `Unreachable`.
    pub fn connect(&mut self, now: Time, path: CmPath, req: &ReqParams<'_>) -> Result<CommId, CmError> {
        if req.qp_type == QpType::Ud {
            return Err(CmError::QpType);
        }
        let private = private(req.private)?;
        let id = self.exchange.open(|tid| CmConnection::active(path, req, tid));
        let tid = self.exchange.tid(id);
        let message = Req { private, ..request(path, req, id) };
        self.exchange.send_until_answered(now, id, CmState::ReqSent, Kind::Req, message.encode(tid));
        Ok(CommId(id))
    }

    /// Completes the connection (sends RTU), after `Reply`.
    pub fn ready(&mut self, _now: Time, id: CommId, data: &[u8]) -> Result<(), CmError> {
        let c = self.owned(id)?;
        if !matches!(c.state, CmState::RepRcvd | CmState::MraRepSent) {
            return Err(CmError::State(c.state));
        }
        let rtu = Rtu { local_comm_id: id.0, remote_comm_id: c.remote_id, private: private(data)? };
        let bytes = rtu.encode(c.tid);
        self.exchange.send_and_keep(id.0, CmState::Established, Kind::Rtu, bytes);
        Ok(())
    }

    pub(super) fn on_rep(&mut self, now: Time, mad: &Mad) {
        use CmState::*;
        let rep = Rep::decode(&mad.bytes);
        let id = rep.remote_comm_id;
        match self.exchange.table().find(mad.path.ends(), id) {
            Some(c) if matches!(c.state, ReqSent | MraReqRcvd) => self.on_first_rep(now, mad, rep),
            Some(c) if c.is_active && c.state != Idle && c.remote_id == rep.local_comm_id => {
                let is_answered = matches!(c.state, Established | MraRepSent);
                self.on_duplicate(Kind::Rep, id, is_answered);
            }
            // Its sender assumes a connection that does not exist, and would repeat the message many times.
            _ => {
                self.counters.unexpected += 1;
                self.exchange.answer_rej(
                    mad,
                    CommIds { local: id, remote: rep.local_comm_id },
                    Rejected::Rep,
                    RejectReason::INVALID_COMM_ID,
                );
            }
        }
    }

    fn on_first_rep(&mut self, now: Time, mad: &Mad, rep: Rep) {
        let (ends, id) = (mad.path.ends(), rep.remote_comm_id);
        if self.exchange.table().by_remote_id(ends, rep.ca_guid, rep.local_comm_id).is_some() {
            self.counters.unexpected += 1;
            return;
        }
        if let Some(stale) = self.exchange.table().by_remote_qpn(ends, rep.ca_guid, rep.qpn) {
            self.exchange.answer_rej(
                mad,
                CommIds { local: id, remote: rep.local_comm_id },
                Rejected::Rep,
                RejectReason::STALE_CONNECTION,
            );
            self.exchange.end_stale(now, stale);
            return;
        }
        self.exchange.change(id, |c| {
            c.state = CmState::RepRcvd;
            c.remote_id = rep.local_comm_id;
            c.remote_guid = rep.ca_guid;
            c.qp.remote_qpn = rep.qpn;
            c.qp.sq_psn = rep.starting_psn;
            c.qp.initiator_depth = rep.responder_resources;
            c.qp.responder_resources = rep.initiator_depth;
            c.qp.rnr_retry_count = rep.rnr_retry_count;
            c.qp.srq = rep.srq;
            c.qp.ack_timeout = ack_timeout(rep.target_ack_delay, c.qp.ack_timeout - 1);
            c.deadline = None;
            c.last = None;
        });
        self.exchange.tell(id, Event::Reply(rep));
    }
}

fn request(path: CmPath, req: &ReqParams<'_>, id: u32) -> Req {
    Req {
        local_comm_id: id,
        service_id: req.service_id,
        ca_guid: req.ca_guid,
        qkey: Qkey(0),
        qpn: req.qpn,
        qp_type: req.qp_type,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        remote_cm_response_timeout: req.remote_cm_response_timeout,
        local_cm_response_timeout: req.local_cm_response_timeout,
        max_cm_retries: req.max_cm_retries,
        flow_control: req.flow_control,
        starting_psn: req.starting_psn,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        pkey: req.pkey,
        mtu: req.mtu,
        srq: req.srq,
        path: PathRecord {
            local_gid: path.local,
            remote_gid: path.remote,
            flow_label: req.flow_label,
            rate: req.rate,
            traffic_class: req.traffic_class,
            hop_limit: req.hop_limit,
            sl: req.sl,
            subnet_local: req.hop_limit <= 1,
            ack_timeout: ack_timeout(req.ca_ack_delay, req.packet_life_time),
        },
        private: Default::default(),
    }
}
