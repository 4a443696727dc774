//! State of a queue pair's packets within the host.

use crate::packet::{Body, Head};
use crate::platform::Platform;
use crate::qp::SendSide;
use std::collections::VecDeque;
use std::net::IpAddr;

/// State of packets on their way.
pub(crate) struct State<M> {
    /// Carried by request packets, and by their replies. Replies with an older one are ignored.
    pub(super) epoch: u32,
    /// Request packets without a reply.
    pub(super) unanswered: u32,
    /// Of a datagram to a group that is being sent, the last of the other hosts that have got it.
    pub(in crate::transport) reached: Option<IpAddr>,
    /// Replies whose data could not be stored yet, oldest first, and those that came behind.
    pub(super) held: VecDeque<(Head, Body<M>)>,
    /// Unreliable connection: what the peer had sent behind a packet that it is to send again, by epoch.
    pub(super) deferred: Option<u32>,
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
    pub(in crate::transport) fn is_full(&self) -> bool {
        self.unanswered >= super::MAX_UNANSWERED
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
    pub(super) fn go_back<P: Platform<Memory = M>>(&mut self, send: &mut SendSide<P>, epoch: u32) {
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
