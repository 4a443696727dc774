//! Pace of a thread that serves sockets: it looks for a while before it sleeps.

use crate::worker::{Mode, ShardHandle, SpinLimit};
use rustix::event::Timespec;
use std::time::Duration;

/// The pace. A program that has sent a request usually sends another one soon.
pub(super) struct Pace {
    spin_limit: SpinLimit,
    is_tired: bool,
}

impl Pace {
    /// For a thread beside these workers.
    pub(super) fn new(mode: Mode, shards: &[ShardHandle]) -> Self {
        // This thread never polls for ever: it is not on the data path.
        let mode = if mode == Mode::Spin { Mode::Adaptive } else { mode };
        // The two programs that set up a connection poll as well.
        let spin_limit = SpinLimit::new(mode, shards.len() + 3, SPIN_FOR, shards[0].contention());
        Self { spin_limit, is_tired: true }
    }

    /// Time for which the thread may wait for its sockets, `timer` being the time until its next deadline.
    pub(super) fn limit(&self, has_turn: bool, timer: Option<Timespec>) -> Option<Timespec> {
        if self.is_tired && !has_turn { timer } else { Some(NOW) }
    }

    /// The thread has found something to do, or nothing.
    pub(super) fn note(&mut self, has_some: bool) {
        if has_some {
            self.spin_limit.renew();
            self.is_tired = false;
        } else {
            self.is_tired = self.is_tired || self.spin_limit.is_over(false);
        }
    }
}

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Spin limit: time in which the thread looks for messages before it sleeps.
const SPIN_FOR: Duration = Duration::from_micros(50);
