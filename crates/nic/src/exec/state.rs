//! Queue pair state transitions.

use super::Exec;
use super::chain::ends;
use crate::device::Event;
use crate::platform::{Platform, RecvQueue, SendQueue};
use crate::qp::Wait;
use rdmesh_verbs::{AsyncEvent, QpState, QpType};

impl<P: Platform> Exec<'_, P> {
    /// Enters `state`, by command or because of an error. The transport follows (see [`crate::transport::Qp`]).
    pub(crate) fn enter(&mut self, state: QpState) {
        let before = core::mem::replace(&mut self.qp.attr.state, state);
        if before != state {
            self.out.event(Event::QpState { context: self.qp.made().context, qp: self.qp.made().handle, state });
        }
        match state {
            QpState::Reset => self.reset(),
            QpState::Rtr => {
                self.qp.recv.expected_psn = self.qp.attr.rq_psn;
                self.qp.begin_connection(self.out.next_epoch());
            }
            QpState::Rts => {
                if before == QpState::Rtr {
                    self.qp.send.next_psn = self.qp.attr.sq_psn;
                }
                self.qp.send.retries_left = self.qp.attr.retry_cnt;
                self.qp.send.rnr_left = self.qp.attr.rnr_retry;
                self.out.make_ready(self.index, self.qp);
            }
            QpState::Sqd => self.drain(),
            QpState::Sqe => {
                self.qp.send.set_wait(self.index, Wait::None, &mut self.out.timers);
                self.flush_sends();
                ends::poison(self);
            }
            QpState::Error => self.error(before),
            QpState::Init => {}
        }
    }

    fn reset(&mut self) {
        ends::reset(self);
        self.qp.send.set_wait(self.index, Wait::None, &mut self.out.timers);
        self.qp.send.clear();
        self.qp.send.queue.clear();
        self.qp.recv.clear();
        if let Some(queue) = &mut self.qp.recv.queue {
            queue.clear();
        }
        self.out.forget_failed(self.index);
    }

    fn drain(&mut self) {
        if !self.qp.attr.sqd_async_notify {
            return;
        }
        if self.qp.send.window.is_empty() {
            self.out.async_event(self.qp.made().context, AsyncEvent::SqDrained, self.qp.made().handle);
        } else {
            self.qp.send.announce_drained = true;
        }
    }

    fn error(&mut self, before: QpState) {
        self.qp.send.set_wait(self.index, Wait::None, &mut self.out.timers);
        self.flush_sends();
        self.flush_receives();
        ends::poison(self);
        if self.qp.made().srq.is_some() && before != QpState::Error && self.qp.made().qp_type != QpType::Ud {
            self.out.async_event(self.qp.made().context, AsyncEvent::QpLastWqeReached, self.qp.made().handle);
        }
        if self.qp.recv.queue.is_some() && self.qp.recv.chain.is_none() {
            self.out.watch_failed(self.index);
        }
    }
}
