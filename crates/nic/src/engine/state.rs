//! What entering a state does.

use super::context::Context;
use super::output::{Event, Outputs};
use super::qp::{Qp, Wait};
use super::{requester, responder};
use crate::platform::{Platform, RecvQueue, SendQueue};
use rdmesh_verbs::{AsyncEvent, QpState, QpType};

/// Enters `state`, by command or because of an error.
pub(crate) fn enter<P: Platform>(
    index: u32,
    qp: &mut Qp<P>,
    cx: &mut Context<P>,
    out: &mut Outputs<P::Memory>,
    state: QpState,
) {
    let before = std::mem::replace(&mut qp.attr.state, state);
    if before != state {
        out.events.push_back(Event::QpState { context: qp.context, qp: qp.handle, state });
    }
    match state {
        QpState::Reset => reset(qp, out, index),
        QpState::Rtr => qp.recv.expected_psn = qp.attr.rq_psn,
        QpState::Rts => {
            if before == QpState::Rtr {
                qp.send.next_psn = qp.attr.sq_psn;
            }
            qp.send.retries_left = qp.attr.retry_cnt;
            qp.send.rnr_left = qp.attr.rnr_retry;
            out.make_ready(index, qp);
        }
        QpState::Sqd => drain(qp, out),
        QpState::Sqe => {
            requester::flush(index, qp, cx, out);
        }
        QpState::Error => error(index, qp, cx, out, before),
        QpState::Init => {}
    }
}

fn reset<P: Platform>(qp: &mut Qp<P>, out: &mut Outputs<P::Memory>, index: u32) {
    qp.send.set_wait(index, Wait::None, &mut out.timers);
    qp.send.abandon(out.next_epoch());
    qp.send.queue.clear();
    qp.recv.busy = false;
    qp.recv.received = 0;
    if let Some(queue) = &mut qp.recv.queue {
        queue.clear();
    }
    if std::mem::take(&mut qp.watched) {
        out.failed.retain(|failed| *failed != index);
    }
}

fn drain<P: Platform>(qp: &mut Qp<P>, out: &mut Outputs<P::Memory>) {
    if !qp.attr.sqd_async_notify {
        return;
    }
    if qp.send.window.is_empty() {
        out.async_event(qp.context, AsyncEvent::SqDrained, qp.handle);
    } else {
        qp.send.announce_drained = true;
    }
}

fn error<P: Platform>(index: u32, qp: &mut Qp<P>, cx: &mut Context<P>, out: &mut Outputs<P::Memory>, before: QpState) {
    qp.send.set_wait(index, Wait::None, &mut out.timers);
    requester::flush(index, qp, cx, out);
    responder::flush(qp, cx, out);
    if qp.srq.is_some() && before != QpState::Error && qp.qp_type != QpType::Ud {
        out.async_event(qp.context, AsyncEvent::QpLastWqeReached, qp.handle);
    }
    if qp.recv.queue.is_some() && !std::mem::replace(&mut qp.watched, true) {
        out.failed.push_back(index);
    }
}
