//! Audit of chains: counts of a group, pace of its queues, and the requests that it has executed last.

use crate::timer::Time;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use rdmesh_verbs::chain::{ChainOp, Counts, steps};

/// A request that a group has executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Executed {
    /// Its number among those that were recorded.
    pub number: u64,
    /// The queue pair, by handle.
    pub qp: u32,
    /// Whether it is a receive request.
    pub is_receive: bool,
    /// The request, counted from the queue's first.
    pub index: u64,
    /// The operation that it had become; of a receive request, that of the message.
    pub op: ChainOp,
    /// Bytes that it moved.
    pub bytes: u64,
    /// Time at which it started.
    pub at: Time,
}

/// Audit of a group.
#[derive(Default)]
pub(super) struct Audit {
    pub(super) counts: Counts,
    /// Times that a queue stood still for want of steps, and for how many nanoseconds together.
    pub(super) starved: u64,
    starved_for: u64,
    trace: Option<Trace>,
}

/// The last requests, as long as they are recorded.
struct Trace {
    /// Request `n` is at `n` modulo the length.
    ring: Box<[Option<Executed>]>,
    recorded: u64,
    until: Time,
}

/// Pace of a queue.
#[derive(Default)]
pub(super) struct Pace {
    /// Requests since its last WAIT, or since it had nothing to do.
    since_wait: u64,
    /// Time from which on it stands still for want of steps.
    starved_since: Option<Time>,
}

impl Audit {
    /// Counts a request that has started, and returns the steps that it costs.
    #[inline]
    pub(super) fn count(&mut self, pace: &mut Pace, step: Executed) -> u64 {
        self.counts.add(step.op, step.bytes);
        pace.since_wait = if step.op == ChainOp::Wait { 0 } else { pace.since_wait + 1 };
        if let Some(since) = pace.starved_since.take() {
            self.starved_for = self.starved_for.saturating_add(step.at.0.saturating_sub(since.0));
        }
        self.record(step);
        steps(step.bytes)
    }

    /// Records a request, if that is asked for.
    #[inline]
    pub(super) fn record(&mut self, step: Executed) {
        if let Some(trace) = &mut self.trace {
            trace.record(step);
        }
    }

    /// Nanoseconds for which queues with these paces have stood still for want of steps.
    pub(super) fn starved_for<'a>(&self, paces: impl Iterator<Item = &'a Pace>, now: Time) -> u64 {
        let present = paces.filter_map(|pace| pace.starved_since).map(|since| now.0.saturating_sub(since.0));
        present.fold(self.starved_for, u64::saturating_add)
    }

    /// A queue stands still for want of steps.
    pub(super) fn starve(&mut self, pace: &mut Pace, now: Time) {
        if pace.starved_since.is_none() {
            pace.starved_since = Some(now);
            self.starved += 1;
        }
    }

    /// Records requests until then, and returns those that were recorded from number `from` on.
    pub(super) fn trace(&mut self, from: u64, until: Time) -> Vec<Executed> {
        let trace = self.trace.get_or_insert_with(|| Trace::new(until));
        trace.until = trace.until.max(until);
        trace.from(from)
    }
}

impl Trace {
    fn new(until: Time) -> Self {
        Self { ring: vec![None; TRACED].into(), recorded: 0, until }
    }

    fn record(&mut self, step: Executed) {
        if step.at <= self.until {
            let number = self.recorded;
            self.ring[(number % TRACED as u64) as usize] = Some(Executed { number, ..step });
            self.recorded += 1;
        }
    }

    fn from(&self, from: u64) -> Vec<Executed> {
        let oldest = self.recorded.saturating_sub(TRACED as u64);
        (from.max(oldest)..self.recorded).filter_map(|number| self.ring[(number % TRACED as u64) as usize]).collect()
    }
}

impl Pace {
    /// The queue has nothing to do.
    pub(super) fn rest(&mut self) {
        self.since_wait = 0;
    }

    /// Whether it goes on and on without a WAIT.
    pub(super) fn is_spinning(&self) -> bool {
        self.since_wait > SPINNING
    }

    /// Whether it stands still for want of steps.
    pub(super) fn is_starved(&self) -> bool {
        self.starved_since.is_some()
    }
}

/// Requests that are kept of a group.
const TRACED: usize = 1024;
/// Bytes of the record of a group's requests.
pub const TRACE_BYTES: usize = TRACED * size_of::<Option<Executed>>();
/// Requests without a WAIT after which a queue counts as spinning: more than programs unroll.
const SPINNING: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn step(index: u64, op: ChainOp) -> Executed {
        Executed { number: 0, qp: 1, is_receive: false, index, op, bytes: 0, at: Time(index) }
    }

    #[test]
    fn the_last_requests_are_kept_while_they_are_asked_for() {
        let (mut audit, mut pace) = (Audit::default(), Pace::default());
        audit.count(&mut pace, step(0, ChainOp::Nop));
        assert_eq!(audit.trace(0, Time(3000)), []);
        let count = TRACED as u64 + 10;
        for index in 1..=count {
            audit.count(&mut pace, step(index, ChainOp::Nop));
        }
        let kept = audit.trace(0, Time(0));
        assert_eq!((kept.len(), kept[0].number, kept[0].index), (TRACED, 10, 11));
        assert_eq!(audit.trace(count - 1, Time(0)), kept[TRACED - 1..]);
        assert_eq!(audit.trace(count + 5, Time(0)), []);
        audit.count(&mut pace, step(3001, ChainOp::Nop));
        assert_eq!(audit.trace(count, Time(0)), [], "the time is over");
    }

    #[test]
    fn a_queue_spins_that_does_not_wait() {
        let (mut audit, mut pace) = (Audit::default(), Pace::default());
        for index in 0..=SPINNING {
            audit.count(&mut pace, step(index, ChainOp::Nop));
        }
        assert!(pace.is_spinning());
        audit.count(&mut pace, step(0, ChainOp::Wait));
        assert!(!pace.is_spinning());
    }

    #[test]
    fn time_without_steps_is_counted_once() {
        let (mut audit, mut pace) = (Audit::default(), Pace::default());
        [5, 6, 7].into_iter().for_each(|at| audit.starve(&mut pace, Time(at)));
        assert_eq!((audit.starved, audit.starved_for([&pace].into_iter(), Time(15))), (1, 10));
        audit.count(&mut pace, step(20, ChainOp::Nop));
        assert_eq!(audit.starved_for([&pace].into_iter(), Time(99)), 15);
    }
}
