//! Types in the interface of a [`Cm`](super::Cm): parameters, requests and events.

use super::mad::Kind;
use super::messages::{Rep, Req, SidrRep, SidrReq};
use crate::path::ExternalPort;
use arrayvec::ArrayVec;
use core::fmt;
use core::time::Duration;
use rdmesh_verbs::{Gid, Mtu, Psn, Qkey, QpType, Qpn, Vni};

/// Path of a datagram: two GIDs on a tenant network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmPath {
    /// The tenant network.
    pub vni: Vni,
    /// The GID at this end: the source of what is sent, the destination of what was received.
    pub local: Gid,
    /// The GID at the other end.
    pub remote: Gid,
    /// The external (plain RoCEv2) path, where the local endpoint has one. Connections are found without it.
    pub external: Option<ExternalPort>,
}

impl CmPath {
    pub(super) fn ends(&self) -> Ends {
        Ends { vni: self.vni, local: self.local, remote: self.remote }
    }
}

/// Identity of a path: paths with equal ends are the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Ends {
    pub(super) vni: Vni,
    pub(super) local: Gid,
    pub(super) remote: Gid,
}

/// A management datagram on its way to or from the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad {
    /// The path, always as seen from this end: delivery within the host swaps the two GIDs.
    pub path: CmPath,
    /// The datagram.
    pub bytes: [u8; MAD_LEN],
}

/// Bytes of a management datagram (IBA 13.4.2).
pub const MAD_LEN: usize = 256;

/// Local communication ID of a connection, or of a SIDR request. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommId(pub u32);

/// Parameters of [`Cm::connect`](super::Cm::connect). Times are codes: 4.096 µs × 2^code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReqParams<'a> {
    /// The service wanted.
    pub service_id: u64,
    /// The device's node GUID.
    pub ca_guid: [u8; 8],
    /// The own QP.
    pub qpn: Qpn,
    /// Its type: RC or UC.
    pub qp_type: QpType,
    /// The PSN that the peer is to begin sending with: the own `rq_psn`.
    pub starting_psn: Psn,
    /// Partition.
    pub pkey: u16,
    /// Path MTU.
    pub mtu: Mtu,
    /// READs and atomics that the own QP answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that the own QP asks for at a time.
    pub initiator_depth: u8,
    /// Retries of both QPs, 0 to 7.
    pub retry_count: u8,
    /// Retries of the *peer's* QP after receiver-not-ready, 0 to 7.
    pub rnr_retry_count: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// The own QP has a shared receive queue.
    pub srq: bool,
    /// Response time-out of the peer (rdma_cm: 20).
    pub remote_cm_response_timeout: u8,
    /// Response time-out of this end (rdma_cm: 20).
    pub local_cm_response_timeout: u8,
    /// Retries of each message, 0 to 15 (rdma_cm: 15).
    pub max_cm_retries: u8,
    /// Packet lifetime on the path (rdma_cm on RoCE: 18).
    pub packet_life_time: u8,
    /// ACK delay of the own device (rxe: 15).
    pub ca_ack_delay: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// IP traffic class.
    pub traffic_class: u8,
    /// TTL. At most 1 says that both ends are in one subnet.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// `enum ibv_rate`.
    pub rate: u8,
    /// At most 92 bytes for the owner at the other end.
    pub private: &'a [u8],
}

/// Parameters of [`Cm::accept`](super::Cm::accept).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RepParams<'a> {
    /// The device's node GUID.
    pub ca_guid: [u8; 8],
    /// The own QP.
    pub qpn: Qpn,
    /// The PSN that the peer is to begin sending with: the own `rq_psn`.
    pub starting_psn: Psn,
    /// READs and atomics that the own QP answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that the own QP asks for at a time.
    pub initiator_depth: u8,
    /// ACK delay of the own device, as a code (rxe: 15).
    pub target_ack_delay: u8,
    /// Whether another path can be used: 0 accepted, 1 not supported, 2 rejected.
    pub failover: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries of the *peer's* QP after receiver-not-ready, 0 to 7.
    pub rnr_retry_count: u8,
    /// The own QP has a shared receive queue.
    pub srq: bool,
    /// At most 196 bytes for the owner at the other end.
    pub private: &'a [u8],
}

/// Parameters of [`Cm::resolve_service`](super::Cm::resolve_service).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrParams<'a> {
    /// The service wanted.
    pub service_id: u64,
    /// Partition.
    pub pkey: u16,
    /// Time-out of an answer, after which the request is repeated.
    pub timeout: Duration,
    /// Maximum number of retries.
    pub max_retries: u8,
    /// At most 216 bytes for the owner at the other end.
    pub private: &'a [u8],
}

/// Parameters of [`Cm::answer_service`](super::Cm::answer_service).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrAnswer<'a> {
    /// 0 found, 1 no such service, 2 rejected, 3 no QP (`enum ib_cm_sidr_status`).
    pub status: u8,
    /// The QP of the service.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
    /// The service.
    pub service_id: u64,
    /// At most 136 bytes for the owner at the other end.
    pub private: &'a [u8],
}

/// Reason of a rejection: why a connection was refused or aborted (IBA 12.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RejectReason(pub u16);

#[allow(missing_docs)]
impl RejectReason {
    pub const NO_QP: Self = Self(1);
    pub const NO_RESOURCES: Self = Self(3);
    pub const TIMEOUT: Self = Self(4);
    pub const UNSUPPORTED: Self = Self(5);
    pub const INVALID_COMM_ID: Self = Self(6);
    pub const INVALID_SERVICE_ID: Self = Self(8);
    pub const INVALID_TRANSPORT_TYPE: Self = Self(9);
    pub const STALE_CONNECTION: Self = Self(10);
    pub const INVALID_GID: Self = Self(12);
    pub const INVALID_MTU: Self = Self(26);
    pub const INSUFFICIENT_RESPONDER_RESOURCES: Self = Self(27);
    pub const CONSUMER_DEFINED: Self = Self(28);
    pub const VENDOR_OPTION_NOT_SUPPORTED: Self = Self(35);
}

/// Event of a connection. Private data comes as received: the whole field, zeroes at its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer requests a connection; the id is new. To be answered by `accept`, `reject`, `prepare` or `destroy`.
    Request {
        /// The path back to the peer.
        path: CmPath,
        /// The request.
        req: Req,
    },
    /// The peer accepted. To be answered by `ready` or `reject`.
    Reply(Rep),
    /// The peer has confirmed the connection by RTU (passive end only).
    Established {
        /// From the peer's owner.
        private: ArrayVec<u8, 224>,
    },
    /// The peer rejected, or aborted, even after `Reply` or `Established`. `TimeWaitExit` may still follow.
    Rejected {
        /// The reason.
        reason: RejectReason,
        /// More about the reason.
        ari: ArrayVec<u8, 72>,
        /// From the peer's owner.
        private: ArrayVec<u8, 148>,
    },
    /// No answer came.
    Unreachable,
    /// The peer disconnects; on the passive end possibly before `Established`. To be answered by `disconnect`.
    DisconnectRequested {
        /// From the peer's owner.
        private: ArrayVec<u8, 220>,
    },
    /// The own `disconnect` was answered, or met the peer's.
    Disconnected,
    /// The own `disconnect` was never answered.
    DisconnectTimedOut,
    /// No packet of the connection can be under way any more.
    TimeWaitExit,
    /// A peer requests a datagram service; the id is new. To be answered by `answer_service` or `destroy`.
    ServiceRequest {
        /// The path back to the peer.
        path: CmPath,
        /// The request.
        sidr: SidrReq,
    },
    /// The answer to `resolve_service`, which may be negative.
    ServiceResolved(SidrRep),
}

/// State of a connection (IBA 12.9.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum CmState {
    /// Over: nothing but `destroy` is left.
    Idle,
    ReqSent,
    /// The peer asked for more time.
    MraReqRcvd,
    ReqRcvd,
    /// This end asked for more time.
    MraReqSent,
    RepSent,
    /// The peer asked for more time.
    MraRepRcvd,
    RepRcvd,
    /// This end asked for more time.
    MraRepSent,
    Established,
    DreqSent,
    DreqRcvd,
    TimeWait,
    SidrReqSent,
    SidrReqRcvd,
}

/// QP attributes of a connection (`ib_cm_init_qp_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionInfo {
    /// State of the connection. The peer's parameters are known from `ReqRcvd` or `RepRcvd` on.
    pub state: CmState,
    /// The path.
    pub path: CmPath,
    /// Whether this end requested the connection.
    pub is_active: bool,
    /// RC or UC.
    pub qp_type: QpType,
    /// The own QP; 0 at the passive end before `accept`.
    pub local_qpn: Qpn,
    /// The peer's QP.
    pub remote_qpn: Qpn,
    /// The PSN that the peer begins with, which is this end's own choice.
    pub rq_psn: Psn,
    /// The PSN to begin sending with, which is the peer's choice.
    pub sq_psn: Psn,
    /// `max_dest_rd_atomic`. Where it is 0, INIT allows no remote READs and atomics.
    pub responder_resources: u8,
    /// `max_rd_atomic`.
    pub initiator_depth: u8,
    /// `retry_cnt`.
    pub retry_count: u8,
    /// `rnr_retry`.
    pub rnr_retry_count: u8,
    /// `timeout`.
    pub ack_timeout: u8,
    /// Path MTU.
    pub mtu: Mtu,
    /// Partition.
    pub pkey: u16,
    /// Whether the peer's QP has a shared receive queue.
    pub srq: bool,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// IP traffic class.
    pub traffic_class: u8,
    /// TTL.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// `enum ibv_rate`.
    pub rate: u8,
}

/// Error of a call, which had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmError {
    /// There is no such connection.
    Unknown,
    /// The connection is not in a state for it.
    State(CmState),
    /// The private data, or the additional information, is longer than the message has room for.
    TooLong,
    /// The QP type cannot be connected.
    QpType,
}

impl fmt::Display for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => write!(f, "no such connection"),
            Self::State(state) => write!(f, "not possible in state {state:?}"),
            Self::TooLong => write!(f, "too much private data"),
            Self::QpType => write!(f, "a QP of this type cannot be connected"),
        }
    }
}

impl core::error::Error for CmError {}

/// Counters since the start, and the present numbers of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CmCounters {
    /// Messages sent, by kind, without repetitions.
    pub sent: [u64; Kind::COUNT],
    /// Messages received, by kind.
    pub received: [u64; Kind::COUNT],
    /// Messages sent again because no answer came, by kind.
    pub retried: [u64; Kind::COUNT],
    /// Messages received again, by kind.
    pub duplicate: [u64; Kind::COUNT],
    /// Datagrams that are no message of a connection manager of this version.
    pub malformed: u64,
    /// Messages that fit no connection, or not its state.
    pub unexpected: u64,
    /// Requests dropped because too many wait for an answer.
    pub overflow: u64,
    /// Connections and SIDR requests now in the tables, including those in time-wait.
    pub live: usize,
    /// Connections now in time-wait.
    pub time_wait: usize,
}
