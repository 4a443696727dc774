//! Retransmission timers: retry, RNR and probe time-outs.

use super::RequesterState;
use crate::congestion::Controller;
use crate::platform::Platform;
use crate::timer::{Time, Timer};
use crate::transport::roce::Requester;
use core::time::Duration;
use rdmesh_verbs::{QpAttr, QpState, QpType, WcStatus, ack_timeout};

impl<P: Platform> Requester<'_, P> {
    /// A deadline has passed that may be this queue pair's.
    pub(in crate::transport::roce) fn handle_timeout(&mut self) {
        let now = self.out.now;
        if !matches!(self.qp.attr.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        let requester = &mut self.connection.requester;
        requester.timers.expire(Timer::Rnr, now);
        requester.timers.expire(Timer::Slow, now);
        if requester.timers.has_passed(Timer::Reorder, now) {
            self.find_lost();
        }
        // A rate limit may have ended too: a queue pair that still may not send finds out in its turn.
        self.out.make_wire_ready(self.index);
        let requester = &mut self.connection.requester;
        if self.qp.made().qp_type == QpType::Rc && requester.is_waiting() && !requester.is_held_back() {
            if requester.timers.has_passed(Timer::Retry, now) {
                self.retry();
            } else if requester.timers.has_passed(Timer::Probe, now) {
                self.probe();
            }
        }
        if self.qp.made().qp_type == QpType::Uc {
            self.forget_silence();
        }
        self.rearm();
    }

    /// Packets of an unreliable connection without an acknowledgement count as lost, and are not repeated.
    fn forget_silence(&mut self) {
        let requester = &mut self.connection.requester;
        if requester.is_waiting() && requester.timers.has_passed(Timer::Probe, self.out.now) {
            requester.unacked = requester.highest;
            requester.timed = None;
        }
    }

    /// The peer was silent for the ACK time-out (IBA 9.7.6.1.3), and long enough for a router that waits for a processor.
    fn retry(&mut self) {
        self.qp.counters.retries += 1;
        if self.qp.send.retries_left == 0 {
            return self.exec().fail_oldest(WcStatus::RetryExceeded);
        }
        self.qp.send.retries_left -= 1;
        self.connection.requester.timers.stop(Timer::Retry);
        self.connection.requester.congestion.on_timeout();
        self.probe();
    }

    /// Sends one packet again: its acknowledgement tells what else was lost.
    fn probe(&mut self) {
        if self.connection.requester.is_selective() {
            let oldest = self.connection.requester.unacked;
            let now = self.out.now;
            self.connection.requester.lose_to_silence(now, oldest);
        } else {
            // The other packets may only be late, and so may the one by which the round trip is measured.
            let timed = self.connection.requester.timed;
            self.go_back();
            self.connection.requester.timed = timed;
        }
        self.connection.requester.probing = true;
        self.connection.requester.probes += 1;
        self.watch_progress();
    }

    /// Something was sent or answered: silence counts from now.
    pub(super) fn watch_progress(&mut self) {
        let now = self.out.now;
        let timeout = timeout(&self.qp.attr);
        let requester = &mut self.connection.requester;
        if !requester.is_waiting() {
            return;
        }
        if self.qp.made().qp_type != QpType::Rc {
            requester.timers.set(Timer::Probe, now.after(LEAST_TIMEOUT));
            return self.rearm();
        }
        requester.timers.set(Timer::Probe, now.after(requester.probe_delay(timeout)));
        if let Some(timeout) = timeout.filter(|_| !requester.timers.is_set(Timer::Retry)) {
            requester.timers.set(Timer::Retry, now.after(timeout.max(LEAST_SILENCE)));
        }
        self.rearm();
    }

    pub(super) fn rearm(&mut self) {
        // A deadline is never now: even a wrong one cannot keep the engine in a loop.
        let (index, soonest) = (self.index, Time(self.out.now.0 + 1));
        let waits = self.connection.is_acknowledged(self.qp.made().qp_type);
        if let Some(at) = self.connection.requester.deadline().filter(|_| waits) {
            self.out.timers.set_by(index, at.max(soonest));
        }
    }
}

/// The ACK time-out. Hardware has a least one too: shorter codes would expire while a processor is busy elsewhere.
pub(super) fn timeout(attr: &QpAttr) -> Option<Duration> {
    ack_timeout(attr.timeout).map(|timeout| timeout.max(LEAST_TIMEOUT))
}

impl RequesterState {
    fn deadline(&self) -> Option<Time> {
        if self.is_held_back() {
            return self.timers.last([Timer::Rnr, Timer::Slow]);
        }
        self.is_waiting().then(|| self.timers.first([Timer::Probe, Timer::Retry, Timer::Reorder])).flatten()
    }

    /// Whether nothing may be sent for a while: the peer's silence means nothing.
    fn is_held_back(&self) -> bool {
        // Where its rate holds it, the peer may not have been asked for an acknowledgement.
        let is_unasked = self.is_limited && self.unrequested != 0;
        self.timers.is_set(Timer::Rnr) || self.timers.is_set(Timer::Slow) || is_unasked
    }

    /// Each probe without an answer doubles the time to the next, up to the ACK time-out.
    fn probe_delay(&self, timeout: Option<Duration>) -> Duration {
        let delay = self.rtt.probe_timeout() * (1 << self.probes.min(MOST_DOUBLINGS));
        delay.min(timeout.unwrap_or(MOST_DELAY)).min(MOST_DELAY)
    }
}

const LEAST_TIMEOUT: Duration = Duration::from_millis(2);
/// Least silence between hosts that counts as a retry. What is lost is sent again after a round trip or two; this only decides
/// that a peer is gone. Where all processors are busy, Linux may leave a thread that is to run waiting for seconds. NICs have
/// a least value, too ("Pitfalls of InfiniBand with On-Demand Paging", ISPASS 2021).
pub const LEAST_SILENCE: Duration = Duration::from_millis(500);
const MOST_DOUBLINGS: u32 = 12;
const MOST_DELAY: Duration = Duration::from_secs(1);
