//! State of one connection, or of one SIDR request.

use super::mad::{Bytes, Kind};
use super::messages::Req;
use super::types::{CmPath, CmState, ConnectionInfo, Ends, ReqParams};
use crate::timer::Time;
use alloc::boxed::Box;
use core::time::Duration;
use rdmesh_verbs::{Mtu, Psn, QpType, Qpn};

pub(super) struct CmConnection {
    pub(super) state: CmState,
    pub(super) path: CmPath,
    pub(super) is_active: bool,
    /// Whether the owner still knows it.
    pub(super) is_owned: bool,
    /// Transaction ID of the messages that belong to the peer's transaction.
    pub(super) tid: u64,
    /// The peer's communication ID; 0 while unknown.
    pub(super) remote_id: u32,
    pub(super) local_guid: [u8; 8],
    pub(super) remote_guid: [u8; 8],
    pub(super) qp: QpParams,
    /// Time-out of an answer.
    pub(super) timeout: Duration,
    pub(super) max_retries: u8,
    /// The last message sent, as long as it may have to be sent again.
    pub(super) last: Option<Repeat>,
    /// The next deadline: retransmission, or the end of time-wait.
    pub(super) deadline: Option<Time>,
}

/// QP attributes that the connection determines.
#[derive(Clone, Copy)]
pub(super) struct QpParams {
    pub(super) qp_type: QpType,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    pub(super) rq_psn: Psn,
    pub(super) sq_psn: Psn,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) ack_timeout: u8,
    pub(super) mtu: Mtu,
    pub(super) pkey: u16,
    pub(super) srq: bool,
    pub(super) flow_label: u32,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) sl: u8,
    pub(super) rate: u8,
}

/// A message that may be sent again.
pub(super) struct Repeat {
    pub(super) kind: Kind,
    pub(super) bytes: Box<Bytes>,
    pub(super) left: u8,
    pub(super) timeout: Duration,
}

impl CmConnection {
    /// A connection that this end requests.
    pub(super) fn active(path: CmPath, req: &ReqParams<'_>, tid: u64) -> Self {
        Self {
            state: CmState::ReqSent,
            path,
            is_active: true,
            is_owned: true,
            tid,
            remote_id: 0,
            local_guid: req.ca_guid,
            remote_guid: [0; 8],
            qp: QpParams {
                qp_type: req.qp_type,
                local_qpn: req.qpn,
                rq_psn: req.starting_psn,
                responder_resources: req.responder_resources,
                initiator_depth: req.initiator_depth,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                ack_timeout: (req.packet_life_time.min(31) + 1).min(31),
                mtu: req.mtu,
                pkey: req.pkey,
                flow_label: req.flow_label,
                traffic_class: req.traffic_class,
                hop_limit: req.hop_limit,
                sl: req.sl,
                rate: req.rate,
                ..QpParams::UNKNOWN
            },
            timeout: 2 * duration(req.packet_life_time.min(MAX_LIFE_TIME))
                + duration(req.remote_cm_response_timeout.min(MAX_TIMEOUT)),
            max_retries: req.max_cm_retries.min(15),
            last: None,
            deadline: None,
        }
    }

    /// A connection that a peer requests. The peer's responder resources become this end's initiator depth, and the other way
    /// round.
    pub(super) fn passive(path: CmPath, req: &Req, tid: u64) -> Self {
        Self {
            state: CmState::ReqRcvd,
            path,
            is_active: false,
            is_owned: true,
            tid,
            remote_id: req.local_comm_id,
            local_guid: [0; 8],
            remote_guid: req.ca_guid,
            qp: QpParams {
                qp_type: req.qp_type,
                remote_qpn: req.qpn,
                sq_psn: req.starting_psn,
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                ack_timeout: req.path.ack_timeout.max(1),
                mtu: req.mtu,
                pkey: req.pkey,
                srq: req.srq,
                flow_label: req.path.flow_label,
                traffic_class: req.path.traffic_class,
                hop_limit: req.path.hop_limit,
                sl: req.path.sl,
                rate: req.path.rate,
                ..QpParams::UNKNOWN
            },
            timeout: duration(req.local_cm_response_timeout.min(MAX_TIMEOUT)),
            max_retries: req.max_cm_retries,
            last: None,
            deadline: None,
        }
    }

    /// A SIDR request, of this end or of a peer.
    pub(super) fn service(path: CmPath, state: CmState, tid: u64, remote_id: u32) -> Self {
        Self {
            state,
            path,
            is_active: state == CmState::SidrReqSent,
            is_owned: true,
            tid,
            remote_id,
            local_guid: [0; 8],
            remote_guid: [0; 8],
            qp: QpParams { qp_type: QpType::Ud, ..QpParams::UNKNOWN },
            timeout: Duration::ZERO,
            max_retries: 0,
            last: None,
            deadline: None,
        }
    }

    pub(super) fn ends(&self) -> Ends {
        self.path.ends()
    }

    /// Whether the peer waits for this end's owner, so that there may only be so many of them.
    pub(super) fn is_pending(&self) -> bool {
        use CmState::*;
        !self.is_active && matches!(self.state, ReqRcvd | MraReqSent | RepSent | MraRepRcvd | SidrReqRcvd)
    }

    /// Whether only the peer's answer to the DREQ is waited for, and the owner waits for nothing.
    pub(super) fn is_orphan(&self) -> bool {
        !self.is_owned && self.state == CmState::DreqSent
    }

    /// Duration of TIME-WAIT: packets may still be in flight.
    pub(super) fn time_wait(&self) -> Duration {
        duration(self.qp.ack_timeout.min(MAX_TIME_WAIT))
    }

    pub(super) fn info(&self) -> ConnectionInfo {
        let qp = self.qp;
        ConnectionInfo {
            state: self.state,
            path: self.path,
            is_active: self.is_active,
            qp_type: qp.qp_type,
            local_qpn: qp.local_qpn,
            remote_qpn: qp.remote_qpn,
            rq_psn: qp.rq_psn,
            sq_psn: qp.sq_psn,
            responder_resources: qp.responder_resources,
            initiator_depth: qp.initiator_depth,
            retry_count: qp.retry_count,
            rnr_retry_count: qp.rnr_retry_count,
            ack_timeout: qp.ack_timeout,
            mtu: qp.mtu,
            pkey: qp.pkey,
            srq: qp.srq,
            flow_label: qp.flow_label,
            traffic_class: qp.traffic_class,
            hop_limit: qp.hop_limit,
            sl: qp.sl,
            rate: qp.rate,
        }
    }
}

impl QpParams {
    const UNKNOWN: Self = Self {
        qp_type: QpType::Rc,
        local_qpn: Qpn::new(0),
        remote_qpn: Qpn::new(0),
        rq_psn: Psn::new(0),
        sq_psn: Psn::new(0),
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        ack_timeout: 0,
        mtu: Mtu::B256,
        pkey: 0,
        srq: false,
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 0,
        sl: 0,
        rate: 0,
    };
}

/// The time that a code stands for (IBA 9.7.6.1.3); not below a millisecond, so that no peer can make this end busy.
pub(super) fn duration(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.clamp(MIN_TIMEOUT, 31))
}

/// The local ACK timeout: twice the packet life time and the device's delay, in powers of two (IBA 12.7.34).
pub(super) fn ack_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    let (ack_delay, twice) = (ack_delay.min(31), packet_life_time.min(31) + 1);
    // The sum of two powers of two is rounded up to the next where the smaller one is at least half the larger one.
    let code = if twice >= ack_delay {
        twice + u8::from(ack_delay + 1 >= twice)
    } else {
        ack_delay + u8::from(twice + 1 >= ack_delay)
    };
    code.min(31)
}

/// Codes of times that a peer may ask for: at most 17 s for an answer, 69 s more where it says so, 8.6 s of time-wait.
pub(super) const MAX_TIMEOUT: u8 = 22;
/// The longest packet life time that an owner can make this end wait for, there and back: 4.3 s each.
const MAX_LIFE_TIME: u8 = 20;
pub(super) const MAX_SERVICE_TIMEOUT: u8 = 24;
const MAX_TIME_WAIT: u8 = 21;
const MIN_TIMEOUT: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ack_timeout_is_what_linux_computes() {
        // The capture: life time 18, delay 15, 19 in the REQ.
        assert_eq!(ack_timeout(15, 18), 19);
        assert_eq!(
            [(0, 0), (15, 14), (15, 13), (15, 12), (16, 14), (5, 30)].map(|(d, p)| ack_timeout(d, p)),
            [2, 16, 16, 15, 17, 31]
        );
    }

    #[test]
    fn a_time_is_never_too_short_to_wait_for() {
        assert_eq!(duration(0), Duration::from_nanos(4096 << 8));
        assert_eq!(duration(20), Duration::from_nanos(4096 << 20));
    }
}
