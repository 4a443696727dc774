//! Transport between two queue pairs of one host.
//!
//! * [`requester`], [`packets`]: request packets made from work requests.
//! * [`responder`]: order, and execution of a peer's requests.
//! * [`datagram`]: unreliable datagrams to other hosts.
//! * [`replies`]: replies at the requester, and packets without one.

mod datagram;
mod packets;
mod replies;
mod requester;
mod responder;

use requester::MAX_UNANSWERED;

use crate::device::{Context, Outputs};
use crate::exec::Exec;
use crate::packet::{Body, Head, Packet, acknowledgement};
use crate::platform::Platform;
use crate::qp::{Core, SendSide};
use crate::wire::Syndrome;
use alloc::collections::VecDeque;
use core::net::IpAddr;

/// A queue pair and what its packets within the host may touch.
pub(crate) struct Local<'a, P: Platform> {
    /// The engine's index of the QP.
    index: u32,
    qp: &'a mut Core<P>,
    cx: &'a mut Context<P>,
    out: &'a mut Outputs<P::Memory>,
    state: &'a mut State<P::Memory>,
}

impl<'a, P: Platform> Local<'a, P> {
    pub(crate) fn new(exec: Exec<'a, P>, state: &'a mut State<P::Memory>) -> Self {
        let Exec { index, qp, cx, out } = exec;
        Self { index, qp, cx, out, state }
    }

    pub(super) fn exec(&mut self) -> Exec<'_, P> {
        Exec { index: self.index, qp: self.qp, cx: self.cx, out: self.out }
    }
}

/// Answers a request packet as a wire would that loses it.
pub(crate) fn drop_request<M>(out: &mut Outputs<M>, head: &Head) {
    out.packet(Packet { head: head.reply(acknowledgement(Syndrome::ACK)), body: Body::Lost });
}

/// State of packets on their way.
pub(crate) struct State<M> {
    /// Carried by request packets, and by their replies. Replies with an older one are ignored.
    epoch: u32,
    /// Request packets without a reply.
    unanswered: u32,
    /// Of a datagram to a group that is being sent, the last of the other hosts that have got it.
    reached: Option<IpAddr>,
    /// Replies whose data could not be stored yet, oldest first, and those that came behind.
    held: VecDeque<(Head, Body<M>)>,
    /// Unreliable connection: what the peer had sent behind a packet that it is to send again, by epoch.
    deferred: Option<u32>,
}

impl<M> State<M> {
    /// Of a queue pair without packets, with an epoch that none of its number has used.
    pub(crate) fn new(epoch: u32) -> Self {
        Self { epoch, unanswered: 0, reached: None, held: VecDeque::new(), deferred: None }
    }

    /// Whether packets are with the peer, which reads memory when it executes them.
    pub(crate) fn has_packets_away(&self) -> bool {
        self.unanswered != 0 && self.held.is_empty()
    }

    /// Whether as many packets are on their way as may be.
    pub(super) fn is_full(&self) -> bool {
        self.unanswered >= MAX_UNANSWERED
    }

    /// Whether no packet was sent that has not been answered, in whole or in part.
    pub(crate) fn is_idle(&self) -> bool {
        self.unanswered == 0 && self.held.is_empty() && self.reached.is_none()
    }

    /// Forgets all packets on their way. Replies still to come carry an older epoch.
    pub(crate) fn abandon(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.unanswered = 0;
        self.reached = None;
        self.held.clear();
    }

    /// Goes back to the oldest packet without an answer, to send again from there.
    fn go_back<P: Platform<Memory = M>>(&mut self, send: &mut SendSide<P>, epoch: u32) {
        self.epoch = epoch;
        send.next_psn = send.next_psn.add(0u32.wrapping_sub(self.unanswered));
        self.unanswered = 0;
        send.cursor = 0;
        for i in 0..send.window.len() {
            let entry = &mut send.window[i];
            if entry.outstanding == 0 && entry.complete {
                send.cursor += 1;
                continue;
            }
            entry.sent = entry.answered;
            entry.complete = false;
            entry.started = entry.answered != 0;
            entry.outstanding = 0;
        }
    }
}
