//! REQ and REP: the two messages that carry the parameters of a connection (IBA 12.6.5, 12.6.8).

use crate::cm::mad::{self, Bytes, Field, Kind, bits, field};
use arrayvec::ArrayVec;
use rdmesh_verbs::{Gid, Mtu, Psn, Qkey, QpType, Qpn};

/// REQ: a request for a connection, as its sender sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The service wanted.
    pub service_id: u64,
    /// The sender's node GUID.
    pub ca_guid: [u8; 8],
    /// Q_Key of the sender's QP.
    pub qkey: Qkey,
    /// The sender's QP.
    pub qpn: Qpn,
    /// The type of the QP to be connected.
    pub qp_type: QpType,
    /// READs and atomics that the sender answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender asks for at a time.
    pub initiator_depth: u8,
    /// Response time-out of the receiver, as a code.
    pub remote_cm_response_timeout: u8,
    /// Response time-out of the sender, as a code.
    pub local_cm_response_timeout: u8,
    /// Retries of each message.
    pub max_cm_retries: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// The PSN that the receiver is to begin sending with.
    pub starting_psn: Psn,
    /// Retries of the QP.
    pub retry_count: u8,
    /// Retries of the receiver's QP after receiver-not-ready.
    pub rnr_retry_count: u8,
    /// Partition.
    pub pkey: u16,
    /// Path MTU.
    pub mtu: Mtu,
    /// The sender's QP has a shared receive queue.
    pub srq: bool,
    /// The path.
    pub path: PathRecord,
    /// From the owner.
    pub private: ArrayVec<u8, { Self::PRIVATE }>,
}

/// The path that a request names, as its sender sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathRecord {
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's GID.
    pub remote_gid: Gid,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// `enum ibv_rate`.
    pub rate: u8,
    /// IP traffic class.
    pub traffic_class: u8,
    /// TTL.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// Both ends are in one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout, as a code.
    pub ack_timeout: u8,
}

impl Req {
    /// Room for private data.
    pub const PRIVATE: usize = 92;

    pub(in crate::cm) fn encode(&self, tid: u64) -> Bytes {
        let mut bytes = mad::new(Kind::Req, tid);
        let transport = if self.qp_type == QpType::Uc { UC } else { RC };
        for (field, value) in [
            (COMM_ID, self.local_comm_id.into()),
            (SERVICE_ID, self.service_id),
            (QKEY, self.qkey.0.into()),
            (QPN, self.qpn.value().into()),
            (RESPONDER_RESOURCES, self.responder_resources.into()),
            (INITIATOR_DEPTH, self.initiator_depth.into()),
            (REMOTE_CM_TIMEOUT, self.remote_cm_response_timeout.into()),
            (TRANSPORT, transport),
            (FLOW_CONTROL, self.flow_control.into()),
            (PSN, self.starting_psn.value().into()),
            (LOCAL_CM_TIMEOUT, self.local_cm_response_timeout.into()),
            (RETRY_COUNT, self.retry_count.into()),
            (PKEY, self.pkey.into()),
            (MTU, self.mtu as u64),
            (RNR_RETRY_COUNT, self.rnr_retry_count.into()),
            (MAX_CM_RETRIES, self.max_cm_retries.into()),
            (SRQ, self.srq.into()),
            (LOCAL_LID, PERMISSIVE_LID),
            (REMOTE_LID, PERMISSIVE_LID),
        ] {
            field.write(&mut bytes, value);
        }
        mad::put(&mut bytes, CA_GUID, &self.ca_guid);
        mad::put(&mut bytes, REQ_PRIVATE, &self.private);
        self.path.encode(&mut bytes);
        bytes
    }

    /// The message, or the reason why it must be rejected.
    pub(in crate::cm) fn decode(bytes: &Bytes) -> Result<Self, Unfit> {
        Ok(Self {
            local_comm_id: COMM_ID.u32(bytes),
            service_id: SERVICE_ID.read(bytes),
            ca_guid: mad::bytes_at(bytes, CA_GUID),
            qkey: Qkey(QKEY.u32(bytes)),
            qpn: Qpn::new(QPN.u32(bytes)),
            qp_type: match TRANSPORT.read(bytes) {
                RC => QpType::Rc,
                UC => QpType::Uc,
                _ => return Err(Unfit::Transport),
            },
            responder_resources: RESPONDER_RESOURCES.u8(bytes),
            initiator_depth: INITIATOR_DEPTH.u8(bytes),
            remote_cm_response_timeout: REMOTE_CM_TIMEOUT.u8(bytes),
            local_cm_response_timeout: LOCAL_CM_TIMEOUT.u8(bytes),
            max_cm_retries: MAX_CM_RETRIES.u8(bytes),
            flow_control: FLOW_CONTROL.flag(bytes),
            starting_psn: Psn::new(PSN.u32(bytes)),
            retry_count: RETRY_COUNT.u8(bytes),
            rnr_retry_count: RNR_RETRY_COUNT.u8(bytes),
            pkey: PKEY.u16(bytes),
            mtu: Mtu::from_number(MTU.u8(bytes)).ok_or(Unfit::Mtu)?,
            srq: SRQ.flag(bytes),
            path: PathRecord::decode(bytes),
            private: mad::vec_at(bytes, REQ_PRIVATE),
        })
    }

    /// The sender's communication ID, in a message that need not be decodable.
    pub(in crate::cm) fn comm_id(bytes: &Bytes) -> u32 {
        COMM_ID.u32(bytes)
    }
}

impl PathRecord {
    fn encode(&self, bytes: &mut Bytes) {
        mad::put(bytes, LOCAL_GID, &self.local_gid.0);
        mad::put(bytes, REMOTE_GID, &self.remote_gid.0);
        for (field, value) in [
            (FLOW_LABEL, self.flow_label.into()),
            (RATE, self.rate.into()),
            (TRAFFIC_CLASS, self.traffic_class.into()),
            (HOP_LIMIT, self.hop_limit.into()),
            (SL, self.sl.into()),
            (SUBNET_LOCAL, self.subnet_local.into()),
            (ACK_TIMEOUT, self.ack_timeout.into()),
        ] {
            field.write(bytes, value);
        }
    }

    fn decode(bytes: &Bytes) -> Self {
        Self {
            local_gid: Gid(mad::bytes_at(bytes, LOCAL_GID)),
            remote_gid: Gid(mad::bytes_at(bytes, REMOTE_GID)),
            flow_label: FLOW_LABEL.u32(bytes),
            rate: RATE.u8(bytes),
            traffic_class: TRAFFIC_CLASS.u8(bytes),
            hop_limit: HOP_LIMIT.u8(bytes),
            sl: SL.u8(bytes),
            subnet_local: SUBNET_LOCAL.flag(bytes),
            ack_timeout: ACK_TIMEOUT.u8(bytes),
        }
    }
}

/// A feature of a request that is not supported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cm) enum Unfit {
    /// Neither RC nor UC.
    Transport,
    /// No path MTU that there is.
    Mtu,
}

/// REP: the answer to a request, as its sender sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rep {
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID.
    pub remote_comm_id: u32,
    /// Q_Key of the sender's QP.
    pub qkey: Qkey,
    /// The sender's QP.
    pub qpn: Qpn,
    /// The PSN that the receiver is to begin sending with.
    pub starting_psn: Psn,
    /// READs and atomics that the sender answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender asks for at a time.
    pub initiator_depth: u8,
    /// ACK delay of the sender's device, as a code.
    pub target_ack_delay: u8,
    /// Whether another path can be used.
    pub failover: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries of the receiver's QP after receiver-not-ready.
    pub rnr_retry_count: u8,
    /// The sender's QP has a shared receive queue.
    pub srq: bool,
    /// The sender's node GUID.
    pub ca_guid: [u8; 8],
    /// From the owner.
    pub private: ArrayVec<u8, { Self::PRIVATE }>,
}

impl Rep {
    /// Room for private data.
    pub const PRIVATE: usize = 196;

    pub(in crate::cm) fn encode(&self, tid: u64) -> Bytes {
        let mut bytes = mad::new(Kind::Rep, tid);
        for (field, value) in [
            (COMM_ID, self.local_comm_id.into()),
            (REMOTE_COMM_ID, self.remote_comm_id.into()),
            (REP_QKEY, self.qkey.0.into()),
            (REP_QPN, self.qpn.value().into()),
            (REP_PSN, self.starting_psn.value().into()),
            (REP_RESPONDER_RESOURCES, self.responder_resources.into()),
            (REP_INITIATOR_DEPTH, self.initiator_depth.into()),
            (TARGET_ACK_DELAY, self.target_ack_delay.into()),
            (FAILOVER, self.failover.into()),
            (REP_FLOW_CONTROL, self.flow_control.into()),
            (REP_RNR_RETRY_COUNT, self.rnr_retry_count.into()),
            (REP_SRQ, self.srq.into()),
        ] {
            field.write(&mut bytes, value);
        }
        mad::put(&mut bytes, REP_CA_GUID, &self.ca_guid);
        mad::put(&mut bytes, REP_PRIVATE, &self.private);
        bytes
    }

    pub(in crate::cm) fn decode(bytes: &Bytes) -> Self {
        Self {
            local_comm_id: COMM_ID.u32(bytes),
            remote_comm_id: REMOTE_COMM_ID.u32(bytes),
            qkey: Qkey(REP_QKEY.u32(bytes)),
            qpn: Qpn::new(REP_QPN.u32(bytes)),
            starting_psn: Psn::new(REP_PSN.u32(bytes)),
            responder_resources: REP_RESPONDER_RESOURCES.u8(bytes),
            initiator_depth: REP_INITIATOR_DEPTH.u8(bytes),
            target_ack_delay: TARGET_ACK_DELAY.u8(bytes),
            failover: FAILOVER.u8(bytes),
            flow_control: REP_FLOW_CONTROL.flag(bytes),
            rnr_retry_count: REP_RNR_RETRY_COUNT.u8(bytes),
            srq: REP_SRQ.flag(bytes),
            ca_guid: mad::bytes_at(bytes, REP_CA_GUID),
            private: mad::vec_at(bytes, REP_PRIVATE),
        }
    }
}

/// The permissive LID, in place of a LID where there is none.
const PERMISSIVE_LID: u64 = 0xffff;
const RC: u64 = 0;
const UC: u64 = 1;

const COMM_ID: Field = field(0, 32);
const SERVICE_ID: Field = field(8, 64);
const CA_GUID: usize = 16;
const QKEY: Field = field(28, 32);
const QPN: Field = field(32, 24);
const RESPONDER_RESOURCES: Field = field(35, 8);
const INITIATOR_DEPTH: Field = field(39, 8);
const REMOTE_CM_TIMEOUT: Field = bits(43, 0, 5);
const TRANSPORT: Field = bits(43, 5, 2);
const FLOW_CONTROL: Field = bits(43, 7, 1);
const PSN: Field = field(44, 24);
const LOCAL_CM_TIMEOUT: Field = bits(47, 0, 5);
const RETRY_COUNT: Field = bits(47, 5, 3);
const PKEY: Field = field(48, 16);
const MTU: Field = bits(50, 0, 4);
const RNR_RETRY_COUNT: Field = bits(50, 5, 3);
const MAX_CM_RETRIES: Field = bits(51, 0, 4);
const SRQ: Field = bits(51, 4, 1);
const LOCAL_LID: Field = field(52, 16);
const REMOTE_LID: Field = field(54, 16);
const LOCAL_GID: usize = 56;
const REMOTE_GID: usize = 72;
const FLOW_LABEL: Field = field(88, 20);
const RATE: Field = bits(91, 2, 6);
const TRAFFIC_CLASS: Field = field(92, 8);
const HOP_LIMIT: Field = field(93, 8);
const SL: Field = bits(94, 0, 4);
const SUBNET_LOCAL: Field = bits(94, 4, 1);
const ACK_TIMEOUT: Field = bits(95, 0, 5);
const REQ_PRIVATE: usize = 140;

const REMOTE_COMM_ID: Field = field(4, 32);
const REP_QKEY: Field = field(8, 32);
const REP_QPN: Field = field(12, 24);
const REP_PSN: Field = field(20, 24);
const REP_RESPONDER_RESOURCES: Field = field(24, 8);
const REP_INITIATOR_DEPTH: Field = field(25, 8);
const TARGET_ACK_DELAY: Field = bits(26, 0, 5);
const FAILOVER: Field = bits(26, 5, 2);
const REP_FLOW_CONTROL: Field = bits(26, 7, 1);
const REP_RNR_RETRY_COUNT: Field = bits(27, 0, 3);
const REP_SRQ: Field = bits(27, 3, 1);
const REP_CA_GUID: usize = 28;
const REP_PRIVATE: usize = 36;
