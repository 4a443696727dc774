//! A queue pair: its attributes, its send side and its receive side.

use super::packet::{Head, Reply};
use super::slowness::Slowness;
use super::window::Window;
use crate::command::{Capabilities, ContextId, QpCounters};
use crate::platform::{Platform, SendQueue};
use crate::roce::Connection;
use crate::time::Time;
use crate::timer::Deadlines;
use rdmesh_verbs::{Gid, Psn, QpAttr, QpState, QpType, Qpn, RecvWr};
use std::collections::VecDeque;
use std::net::IpAddr;

pub(crate) struct Qp<P: Platform> {
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
    pub(crate) attr: QpAttr,
    pub(crate) counters: QpCounters,
    pub(crate) send: Requester<P>,
    pub(crate) recv: Responder<P>,
    /// Its side of the wire, where it is connected to a QP on another host.
    pub(crate) connection: Option<Box<Connection>>,
    /// Multicast groups that it is in.
    pub(crate) groups: Vec<Gid>,
}

/// The send side.
pub(crate) struct Requester<P: Platform> {
    pub(crate) queue: P::SendQueue,
    /// Requests that are fetched and not completed, oldest first.
    pub(crate) window: Window<P::Memory>,
    /// Which of them is being sent.
    pub(crate) cursor: usize,
    pub(crate) next_psn: Psn,
    pub(crate) epoch: u32,
    /// Packets without a reply.
    pub(crate) unanswered: u32,
    /// Of a datagram to a group that is being sent, the last of the other hosts that have got it.
    pub(crate) reached: Option<IpAddr>,
    pub(crate) retries_left: u8,
    pub(crate) rnr_left: u8,
    pub(crate) wait: Wait,
    /// Of the requests' memory, here or at the peer.
    pub(crate) slow: Slowness,
    /// Replies whose data could not be stored yet, oldest first, and those that came behind.
    pub(crate) held: VecDeque<(Head, Reply<P::Memory>)>,
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
pub(crate) struct Responder<P: Platform> {
    pub(crate) queue: Option<P::RecvQueue>,
    pub(crate) expected_psn: Psn,
    /// The request that a message is being received into, if `busy`, and how much of the message has come.
    pub(crate) current: RecvWr,
    pub(crate) busy: bool,
    pub(crate) received: u64,
    /// Unreliable connection: the rest of a message is dropped.
    pub(crate) skipping: bool,
    /// Of the memory that the present request needs.
    pub(crate) slow: Slowness,
    /// Unreliable connection: what the peer had sent behind a packet that it is to send again, by epoch.
    pub(crate) deferred: Option<u32>,
}

impl<P: Platform> Qp<P> {
    pub(crate) fn state(&self) -> QpState {
        self.attr.state
    }

    /// Whether its work requests become packets; those of a QP in error are only flushed.
    pub(crate) fn is_on_wire(&self) -> bool {
        self.connection.is_some() && self.is_sending()
    }

    /// Whether its work requests are executed (IBA 10.3.1).
    pub(crate) fn is_sending(&self) -> bool {
        matches!(self.attr.state, QpState::Rts | QpState::Sqd)
    }

    /// Whether the QP has something to do on its send side without an event from outside.
    pub(crate) fn can_send(&self) -> bool {
        let sending = match self.attr.state {
            QpState::Rts => self.send.cursor < self.send.window.len() || self.send.queue.is_ready(),
            QpState::Sqd => self.send.cursor < self.send.window.len(),
            QpState::Error | QpState::Sqe => return self.send.queue.is_ready(),
            _ => false,
        };
        sending && self.send.wait == Wait::None
    }
}

impl<P: Platform> Requester<P> {
    pub(crate) fn new(queue: P::SendQueue, window: usize, epoch: u32) -> Self {
        Self {
            queue,
            window: Window::new(window),
            cursor: 0,
            next_psn: Psn::default(),
            epoch,
            unanswered: 0,
            reached: None,
            retries_left: 0,
            rnr_left: 0,
            wait: Wait::None,
            slow: Slowness::default(),
            held: VecDeque::new(),
            announce_drained: false,
        }
    }

    /// Forgets all packets in flight. Replies still to come carry an older epoch.
    pub(crate) fn abandon(&mut self, epoch: u32) {
        self.window.clear();
        self.cursor = 0;
        self.epoch = epoch;
        self.unanswered = 0;
        self.reached = None;
        self.slow = Slowness::default();
        self.held.clear();
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

    /// Goes back to the oldest packet without an answer, to send again from there.
    pub(crate) fn go_back(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.next_psn = self.next_psn.add(0u32.wrapping_sub(self.unanswered));
        self.unanswered = 0;
        self.cursor = 0;
        for i in 0..self.window.len() {
            let entry = &mut self.window[i];
            if entry.outstanding == 0 && entry.complete {
                self.cursor += 1;
                continue;
            }
            entry.sent = entry.answered;
            entry.complete = false;
            entry.started = entry.answered != 0;
            entry.outstanding = 0;
        }
    }
}

impl<P: Platform> Responder<P> {
    pub(crate) fn new(queue: Option<P::RecvQueue>) -> Self {
        Self {
            queue,
            expected_psn: Psn::default(),
            current: RecvWr::default(),
            busy: false,
            received: 0,
            skipping: false,
            slow: Slowness::default(),
            deferred: None,
        }
    }
}
