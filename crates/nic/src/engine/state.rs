//! Queue pair state transitions.

use super::active::Active;
use super::output::Event;
use super::qp::Wait;
use crate::platform::{Platform, RecvQueue, SendQueue};
use crate::roce::Connection;
use crate::schedule::Order;
use rdmesh_verbs::{AsyncEvent, QpState, QpType};

impl<P: Platform> Active<'_, P> {
    /// Enters `state`, by command or because of an error.
    pub(crate) fn enter(&mut self, state: QpState) {
        let before = std::mem::replace(&mut self.qp.attr.state, state);
        if before != state {
            self.out.events.push_back(Event::QpState { context: self.qp.context, qp: self.qp.handle, state });
        }
        match state {
            QpState::Reset => self.reset(),
            QpState::Rtr => self.connect(),
            QpState::Rts => {
                if before == QpState::Rtr {
                    self.qp.send.next_psn = self.qp.attr.sq_psn;
                    if let Some(connection) = &mut self.qp.connection {
                        connection.start(self.qp.attr.sq_psn);
                    }
                }
                self.qp.send.retries_left = self.qp.attr.retry_cnt;
                self.qp.send.rnr_left = self.qp.attr.rnr_retry;
                self.out.make_ready(self.index, self.qp);
            }
            QpState::Sqd => self.drain(),
            QpState::Sqe => {
                self.qp.send.set_wait(self.index, Wait::None, &mut self.out.timers);
                self.flush_sends();
            }
            QpState::Error => self.error(before),
            QpState::Init => {}
        }
    }

    /// The way to the peer is chosen when the QP is connected.
    fn connect(&mut self) {
        self.qp.recv.expected_psn = self.qp.attr.rq_psn;
        if self.qp.qp_type == QpType::Ud {
            return;
        }
        let peer = self.remote_peer(&self.qp.attr.av, self.qp.attr.dest_qpn);
        let replies = usize::from(self.qp.attr.max_dest_rd_atomic);
        self.qp.connection = peer.map(|peer| Box::new(Connection::new(peer.with_ecn(), replies)));
    }

    /// The peer has another address (IBA 10.3.1.6: allowed while the send queue is drained).
    pub(crate) fn move_peer(&mut self) {
        let peer = self.remote_peer(&self.qp.attr.av, self.qp.attr.dest_qpn);
        if let (Some(connection), Some(peer)) = (&mut self.qp.connection, peer) {
            connection.peer = peer.with_ecn();
        }
    }

    fn disconnect(&mut self) {
        self.qp.connection = None;
        self.out.schedule.remove(Order::Wire, self.index);
    }

    fn reset(&mut self) {
        self.disconnect();
        self.qp.send.set_wait(self.index, Wait::None, &mut self.out.timers);
        self.qp.send.abandon(self.out.next_epoch());
        self.qp.send.queue.clear();
        self.qp.recv.busy = false;
        self.qp.recv.received = 0;
        self.qp.recv.slow.end();
        self.qp.recv.deferred = None;
        if let Some(queue) = &mut self.qp.recv.queue {
            queue.clear();
        }
        self.out.failed.remove(self.index);
    }

    fn drain(&mut self) {
        if !self.qp.attr.sqd_async_notify {
            return;
        }
        if self.qp.send.window.is_empty() {
            self.out.async_event(self.qp.context, AsyncEvent::SqDrained, self.qp.handle);
        } else {
            self.qp.send.announce_drained = true;
        }
    }

    fn error(&mut self, before: QpState) {
        if let Some(connection) = &mut self.qp.connection {
            connection.fail();
        }
        self.qp.send.set_wait(self.index, Wait::None, &mut self.out.timers);
        self.flush_sends();
        self.flush_receives();
        if self.qp.srq.is_some() && before != QpState::Error && self.qp.qp_type != QpType::Ud {
            self.out.async_event(self.qp.context, AsyncEvent::QpLastWqeReached, self.qp.handle);
        }
        if self.qp.recv.queue.is_some() {
            self.out.failed.push_back(self.index);
        }
    }
}
