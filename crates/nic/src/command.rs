//! Vocabulary of the commands that create, change and destroy objects.

use crate::congestion::CongestionControl;
use crate::path::Path;
use crate::platform::Platform;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;
use rdmesh_verbs::{Psn, QpAttr, QpState, QpType, Qpn};

/// One opened device, within one engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ContextId(pub u32);

/// Error of a refused command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandError {
    /// No such object: EINVAL.
    NoSuchObject,
    /// An argument is out of range or does not fit the object's state: EINVAL.
    Invalid,
    /// The object is in use by another: EBUSY.
    Busy,
    /// A limit of the device is reached: ENOMEM.
    Exhausted,
    /// The device cannot do this: EOPNOTSUPP.
    Unsupported,
    /// Security groups keep the endpoint from the peer: EACCES, as the kernel's own control of access to partitions has it
    /// (`ib_security_modify_qp`).
    Forbidden,
}

/// Memory of a destroyed object, for deferred drop: giving large memory back takes long, so it is dropped where no other work
/// waits.
pub struct DeferredDrop {
    _memory: Box<dyn Send>,
}

impl DeferredDrop {
    pub(crate) fn new(memory: impl Send + 'static) -> Self {
        Self { _memory: Box::new(memory) }
    }
}

/// Kind of a memory window (IBA 10.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MwType {
    /// Bound by a verb; any QP of the PD may use it.
    Type1 = 1,
    /// Bound by a work request to one QP.
    Type2 = 2,
}

/// Sizes of a queue pair (`ibv_qp_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Capabilities {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline: u32,
}

/// Parameters of a new completion queue.
pub struct CqInit<P: Platform> {
    /// Its ring.
    pub queue: P::CompletionQueue,
    /// Entries that it holds.
    pub cqe: u32,
    /// Completions that find no room are counted, and otherwise lost; without it they are an error (`IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`).
    pub ignores_overrun: bool,
}

/// Parameters of a new shared receive queue.
pub struct SrqInit<P: Platform> {
    /// Protection domain, by handle.
    pub pd: u32,
    /// Its ring.
    pub queue: P::RecvQueue,
    /// Sizes.
    pub attr: SrqAttr,
}

/// `ibv_srq_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SrqAttr {
    /// Work requests.
    pub max_wr: u32,
    /// Scatter/gather elements.
    pub max_sge: u32,
    /// An event is raised when fewer than this are posted; 0 for never.
    pub limit: u32,
}

/// Parameters of a new queue pair. Handles are the context's.
pub struct QpInit<P: Platform> {
    /// Transport.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: u32,
    /// Completion queue of sends.
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// Shared receive queue, instead of `recv`.
    pub srq: Option<u32>,
    /// Sizes.
    pub caps: Capabilities,
    /// Every send completes with an entry, signaled or not.
    pub signal_all: bool,
    /// Send ring.
    pub send: P::SendQueue,
    /// Receive ring.
    pub recv: Option<P::RecvQueue>,
}

/// Result of `query_qp`.
#[derive(Clone, Copy, Debug)]
pub struct QpInfo {
    /// All attributes; `attr.state` is the present state.
    pub attr: QpAttr,
    /// Whether the send queue is still draining in SQD.
    pub sq_draining: bool,
    /// Sizes.
    pub caps: Capabilities,
    /// Transport.
    pub qp_type: QpType,
    /// Number.
    pub qpn: Qpn,
    /// Completion queue of sends.
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// Shared receive queue.
    pub srq: Option<u32>,
    /// As created.
    pub signal_all: bool,
    /// Path of its packets; none before it is connected, and for datagrams.
    pub path: Option<Path>,
    /// The next PSN that it sends.
    pub next_psn: Psn,
    /// The oldest PSN that its peer has not acknowledged.
    pub unacked_psn: Psn,
    /// Lanes that its requests to another router leave by; none without selective retransmission.
    pub lanes: LaneCounts,
    /// Congestion control of its requests to another host; none on this host.
    pub congestion: Option<CongestionState>,
    /// The next PSN that it expects from its peer.
    pub expected_psn: Psn,
    /// Counters since creation.
    pub counters: QpCounters,
}

/// Lanes of a QP: UDP source ports of the tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneCounts {
    /// All.
    pub all: u8,
    /// Those that rest, because too much is lost there.
    pub resting: u8,
}

/// Congestion control of a connection, as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CongestionState {
    /// The algorithm. [`CongestionControl::Window`] stands for DCQCN too, which external peers' congestion notifications add to it.
    pub control: CongestionControl,
    /// Packets that may be on their way.
    pub window: u32,
    /// Smoothed round trip; none before one was measured.
    pub round_trip: Option<Duration>,
}

/// Counters of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct QpCounters {
    pub tx_messages: u64,
    pub tx_bytes: u64,
    pub rx_messages: u64,
    pub rx_bytes: u64,
    /// The part of `tx_bytes` that came here: READs and atomics bring their bytes from the peer.
    pub read_bytes: u64,
    /// The part of `rx_bytes` that went to the peer.
    pub served_bytes: u64,
    pub rnr_naks: u64,
    pub retries: u64,
    pub errors: u64,
    pub retransmitted: u64,
    pub duplicates: u64,
    pub out_of_order: u64,
    pub cnps_sent: u64,
    pub cnps_received: u64,
}

impl QpInfo {
    /// The present state.
    pub fn state(&self) -> QpState {
        self.attr.state
    }
}

/// A queue pair in a list.
#[derive(Clone, Copy, Debug)]
pub struct QpEntry {
    /// Its handle.
    pub handle: u32,
    /// Its protection domain.
    pub pd: u32,
    /// All else.
    pub info: QpInfo,
}

/// A completion queue in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqEntry {
    /// Its handle.
    pub handle: u32,
    /// Entries that it has room for.
    pub cqe: u32,
    /// Send and receive queues that report to it.
    pub users: u32,
    /// Requests that have completed with success, whether or not there was room for the entry.
    pub produced: u64,
}

/// A protection domain in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PdEntry {
    /// Its handle.
    pub handle: u32,
    /// Queue pairs, shared receive queues and address handles in it.
    pub users: u32,
}

/// A shared receive queue in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SrqEntry {
    /// Its handle.
    pub handle: u32,
    /// Its protection domain.
    pub pd: u32,
    /// The queue pairs that receive from it, in ascending order.
    pub qps: Vec<Qpn>,
}
