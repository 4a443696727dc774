//! A queue pair: its attributes, its send side and its receive side.

mod slowness;
mod window;

pub(crate) use slowness::Slowness;
pub(crate) use window::{Inflight, Window};

use crate::chain::{ManagedReceive, ManagedSend};
use crate::command::{Capabilities, ContextId, LaneCounts, QpCounters, QpInfo, QpInit};
use crate::path::Path;
use crate::platform::{PacketId, Platform, RecvQueue, SendQueue};
use crate::timer::{Deadlines, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;
use rdmesh_verbs::{AttrMask, Gid, Key, Precedence, Psn, QpAttr, QpState, QpType, Qpn, RecvWr, SendOp, WcStatus};

/// The part of a queue pair that does not depend on its transport: attributes, send side and receive side.
pub(crate) struct Core<P: Platform> {
    made: Made,
    pub(crate) attr: QpAttr,
    pub(crate) counters: QpCounters,
    pub(crate) send: SendSide<P>,
    pub(crate) recv: ReceiveSide<P>,
    /// Whether it is connected to a QP on another host.
    is_remote: bool,
    /// How many times the READs and atomics that were agreed on its peer keeps.
    reads_kept: u32,
    /// Tells its connections, one after the other, from each other: their packet numbers may be the same.
    connection: u32,
    /// Multicast groups that it is in.
    groups: Vec<Gid>,
}

/// Properties with which a queue pair is made, and which never change but for the context's name. Handles are its context's.
pub(crate) struct Made {
    /// Another one after a move to another engine.
    pub(crate) context: ContextId,
    pub(crate) handle: u32,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) pd: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
    pub(crate) caps: Capabilities,
    pub(crate) signal_all: bool,
}

/// The send side.
pub(crate) struct SendSide<P: Platform> {
    pub(crate) queue: P::SendQueue,
    /// In its place, if the queue is managed.
    pub(crate) chain: Option<Box<ManagedSend<P::Memory>>>,
    /// Requests that are fetched and not completed, oldest first.
    pub(crate) window: Window<P::Memory>,
    /// The one that is being sent.
    pub(crate) cursor: usize,
    pub(crate) next_psn: Psn,
    pub(crate) retries_left: u8,
    pub(crate) rnr_left: u8,
    pub(crate) wait: Wait,
    /// Of the requests' memory, here or at the peer.
    pub(crate) slow: Slowness,
    /// An SQD transition wants to know when the window is empty.
    pub(crate) announce_drained: bool,
}

/// Reason why the send side is blocked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    None,
    /// The receiver was not ready; try again then.
    Rnr(Time),
    /// Memory could not be reached; try again then.
    Slow(Time),
    /// A packet was lost; the ACK time-out ends then.
    Ack(Time),
    /// A packet was lost and no ACK time-out is set (IBA 9.7.6.1.3): for ever.
    Forever,
}

impl Wait {
    fn deadline(self) -> Option<Time> {
        match self {
            Self::Rnr(at) | Self::Slow(at) | Self::Ack(at) => Some(at),
            Self::None | Self::Forever => None,
        }
    }
}

/// The receive side.
pub(crate) struct ReceiveSide<P: Platform> {
    pub(crate) queue: Option<P::RecvQueue>,
    /// In its place, if the queue is managed.
    pub(crate) chain: Option<Box<ManagedReceive<P::Memory>>>,
    pub(crate) expected_psn: Psn,
    /// The request that a message is being received into, if `busy`, and how much of the message has come.
    pub(crate) current: RecvWr,
    pub(crate) busy: bool,
    pub(crate) received: u64,
    pub(crate) message: Message,
    /// Unreliable connection: the rest of a message is dropped.
    pub(crate) skipping: bool,
    /// Of the memory that the present request needs.
    pub(crate) slow: Slowness,
}

/// The message that is being received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    None,
    Send,
    /// The remaining length, and its destination.
    Write {
        addr: u64,
        rkey: Key,
        remaining: u64,
    },
}

impl<P: Platform> Core<P> {
    /// The properties that it was made with.
    #[inline]
    pub(crate) fn made(&self) -> &Made {
        &self.made
    }

    /// In RESET.
    pub(crate) fn new(context: ContextId, handle: u32, qpn: Qpn, init: QpInit<P>) -> Self {
        let window = WINDOW.min(init.caps.max_send_wr.max(1) as usize);
        let made = Made {
            context,
            handle,
            qpn,
            qp_type: init.qp_type,
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            caps: init.caps,
            signal_all: init.signal_all,
        };
        Self {
            made,
            attr: QpAttr::default(),
            counters: QpCounters::default(),
            send: SendSide::new(init.send, window),
            recv: ReceiveSide::new(if init.srq.is_some() { None } else { init.recv }),
            is_remote: false,
            reads_kept: 1,
            connection: 0,
            groups: Vec::new(),
        }
    }

    /// Everything that a query tells, but for what the transport knows.
    pub(crate) fn info(&self, path: Option<Path>, unacked_psn: Psn) -> QpInfo {
        QpInfo {
            attr: self.attr,
            sq_draining: self.state() == QpState::Sqd && !self.send.window.is_empty(),
            caps: self.made.caps,
            qp_type: self.made.qp_type,
            qpn: self.made.qpn,
            send_cq: self.made.send_cq,
            recv_cq: self.made.recv_cq,
            srq: self.made.srq,
            signal_all: self.made.signal_all,
            path,
            next_psn: self.send.next_psn,
            unacked_psn,
            lanes: LaneCounts::default(),
            congestion: None,
            expected_psn: self.recv.expected_psn,
            counters: self.counters,
        }
    }

    /// Takes over the attributes that `mask` names, but for the state.
    pub(crate) fn assign(&mut self, attr: &QpAttr, mask: AttrMask) {
        assign(&mut self.attr, attr, mask);
    }

    /// Whether one of its queues is managed.
    pub(crate) fn is_managed(&self) -> bool {
        self.send.chain.is_some() || self.recv.chain.is_some()
    }

    /// Notes whether it is connected to a QP on another host.
    pub(crate) fn set_remote(&mut self, is_remote: bool) {
        self.is_remote = is_remote;
        self.reads_kept = 1;
    }

    /// Its peer keeps the answers of so many times the READs and atomics that were agreed on.
    pub(crate) fn set_reads_kept(&mut self, times: u32) {
        self.reads_kept = times;
    }

    /// READs and atomics that it may have under way.
    pub(crate) fn reads_limit(&self) -> u32 {
        u32::from(self.attr.max_rd_atomic) * self.reads_kept
    }

    /// Its context has another name: both are on another engine now.
    pub(crate) fn enter_context(&mut self, context: ContextId) {
        self.made.context = context;
    }

    /// Multicast groups that it is in.
    pub(crate) fn groups(&self) -> &[Gid] {
        &self.groups
    }

    /// Notes that it is in a group.
    pub(crate) fn enter_group(&mut self, gid: Gid) {
        self.groups.push(gid);
    }

    /// Notes that it is no longer in a group. Returns whether it was.
    pub(crate) fn leave_group(&mut self, gid: Gid) -> bool {
        let found = self.groups.iter().position(|group| *group == gid);
        found.map(|at| self.groups.swap_remove(at)).is_some()
    }

    /// A connection begins. None of this number's has had this `number`.
    pub(crate) fn begin_connection(&mut self, number: u32) {
        self.connection = number;
    }

    /// Identity of a packet that it is about to execute.
    #[inline]
    pub(crate) fn packet_id(&self, is_response: bool, psn: Psn) -> PacketId {
        PacketId { qpn: self.made.qpn, connection: self.connection, is_response, psn }
    }

    pub(crate) fn state(&self) -> QpState {
        self.attr.state
    }

    /// Whether its work requests become packets; those of a QP in error are only flushed.
    pub(crate) fn is_on_wire(&self) -> bool {
        self.is_remote && self.is_sending()
    }

    /// Whether its work requests are only flushed (IBA 10.3.1).
    pub(crate) fn is_flushing(&self) -> bool {
        matches!(self.attr.state, QpState::Error | QpState::Sqe)
    }

    /// Whether receive requests are posted to a queue of its own.
    pub(crate) fn has_receives(&self) -> bool {
        self.recv.chain.is_none() && self.recv.queue.as_ref().is_some_and(|queue| !queue.is_empty())
    }

    /// Whether its work requests are executed (IBA 10.3.1).
    pub(crate) fn is_sending(&self) -> bool {
        matches!(self.attr.state, QpState::Rts | QpState::Sqd)
    }

    /// Whether the QP has something to do on its send side without an event from outside.
    pub(crate) fn can_send(&self) -> bool {
        let sending = match self.attr.state {
            QpState::Rts => self.send.cursor < self.send.window.len() || self.send.has_next(),
            QpState::Sqd => self.send.cursor < self.send.window.len(),
            QpState::Error | QpState::Sqe => return self.send.chain.is_none() && self.send.queue.is_ready(),
            _ => false,
        };
        sending && self.send.wait == Wait::None
    }

    /// Whether a request behind the first `earlier` of the window has to wait for them.
    pub(crate) fn must_wait(&self, request: Precedence, earlier: usize) -> bool {
        if request.is_local {
            return earlier != 0;
        }
        let mut earlier = self.send.window.iter().take(earlier);
        if request.is_fenced {
            return earlier.any(|e| e.wr.op.is_read_or_atomic());
        }
        let limit = self.reads_limit().max(1) as usize;
        request.is_read_or_atomic && earlier.filter(|e| e.wr.op.is_read_or_atomic()).count() >= limit
    }

    /// Checks the request at the cursor, which is about to start.
    pub(crate) fn check(&self, cursor: usize, datagram_max: u32) -> Result<(), WcStatus> {
        let entry = &self.send.window[cursor];
        let allowed = match (&entry.wr.op, self.made.qp_type) {
            (SendOp::Datagram { .. }, t) => t == QpType::Ud,
            (_, QpType::Ud) => false,
            (_, QpType::Rc) => true,
            (op, QpType::Uc) => matches!(
                op,
                SendOp::Send { .. }
                    | SendOp::SendInvalidate { .. }
                    | SendOp::Write { .. }
                    | SendOp::BindMw { .. }
                    | SendOp::LocalInvalidate { .. }
                    | SendOp::Enable { .. }
            ),
        };
        let needs_one_host = entry.soft || matches!(entry.wr.op, SendOp::Calc { .. });
        if entry.bad
            || !allowed
            || (needs_one_host && self.is_remote)
            || entry.wr.sges.len() > self.made.caps.max_send_sge as usize
        {
            return Err(WcStatus::LocalQpOperationError);
        }
        if entry.wr.op.is_read_or_atomic() && self.attr.max_rd_atomic == 0 {
            return Err(WcStatus::LocalQpOperationError);
        }
        let max = if self.made.qp_type == QpType::Ud { u64::from(datagram_max) } else { MESSAGE_MAX };
        if entry.total > max { Err(WcStatus::LocalLengthError) } else { Ok(()) }
    }
}

impl<P: Platform> SendSide<P> {
    pub(crate) fn new(queue: P::SendQueue, window: usize) -> Self {
        Self {
            queue,
            chain: None,
            window: Window::new(window),
            cursor: 0,
            next_psn: Psn::default(),
            retries_left: 0,
            rnr_left: 0,
            wait: Wait::None,
            slow: Slowness::default(),
            announce_drained: false,
        }
    }

    /// Whether there may be a request to fetch.
    #[inline]
    fn has_next(&self) -> bool {
        match &self.chain {
            None => self.queue.is_ready(),
            Some(chain) => !chain.is_parked,
        }
    }

    /// Hands the slot of the oldest fetched request back. Those of a managed queue stay the chain's.
    pub(crate) fn release(&mut self) {
        if self.chain.is_none() {
            self.queue.release(1);
        }
    }

    /// Forgets the requests that are fetched and not completed.
    pub(crate) fn clear(&mut self) {
        self.window.clear();
        self.cursor = 0;
        self.slow.end();
        self.announce_drained = false;
    }

    /// Blocks the send side, or lets it go on.
    pub(crate) fn set_wait(&mut self, index: u32, wait: Wait, timers: &mut Deadlines) {
        self.wait = wait;
        match wait.deadline() {
            Some(at) => timers.set(index, at),
            None => timers.stop(index),
        }
    }
}

impl<P: Platform> ReceiveSide<P> {
    pub(crate) fn new(queue: Option<P::RecvQueue>) -> Self {
        Self {
            queue,
            chain: None,
            expected_psn: Psn::default(),
            current: RecvWr::default(),
            busy: false,
            received: 0,
            message: Message::None,
            skipping: false,
            slow: Slowness::default(),
        }
    }

    /// Forgets the message that is being received.
    pub(crate) fn clear(&mut self) {
        self.busy = false;
        self.received = 0;
        self.message = Message::None;
        self.slow.end();
    }
}

/// Copies the masked attributes.
fn assign(to: &mut QpAttr, from: &QpAttr, mask: AttrMask) {
    macro_rules! copy {
        ($($flag:ident => $($field:ident),+;)*) => {
            $(if mask.contains(AttrMask::$flag) { $(to.$field = from.$field;)+ })*
        };
    }
    copy! {
        ACCESS_FLAGS => access;
        PKEY_INDEX => pkey_index;
        PORT => port;
        QKEY => qkey;
        AV => av;
        ALT_PATH => alt_av;
        PATH_MTU => path_mtu;
        TIMEOUT => timeout;
        RETRY_CNT => retry_cnt;
        RNR_RETRY => rnr_retry;
        RQ_PSN => rq_psn;
        SQ_PSN => sq_psn;
        MAX_QP_RD_ATOMIC => max_rd_atomic;
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
        MIN_RNR_TIMER => min_rnr_timer;
        DEST_QPN => dest_qpn;
        PATH_MIG_STATE => path_mig_state;
    }
}

/// Work requests of a QP on their way at once.
pub(crate) const WINDOW: usize = 64;
/// Largest message (IBA 9.7.7).
pub(crate) const MESSAGE_MAX: u64 = 1 << 31;
/// QPs whose numbers are left alone after their end while there are fresh ones.
pub(crate) const RESTING_QPS: usize = 1024;
