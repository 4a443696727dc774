//! Timers of one connection.

use super::Time;

/// A timer of a connection to another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// Silence for some round trips: one packet is sent again.
    Probe,
    /// The ACK time-out of the queue pair (IBA 9.7.6.1.3), where there is one.
    Retry,
    /// The receiver was not ready (IBA 9.7.5.2.8): nothing is sent until then.
    Rnr,
    /// Memory of a request could not be reached: nothing is sent until then.
    Slow,
    /// Packets that are overdue may have been overtaken only: they count as lost then.
    Reorder,
}

/// Times at which the timers of one connection expire.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimerTable([Option<Time>; Timer::COUNT]);

impl Timer {
    const COUNT: usize = 5;
}

impl TimerTable {
    #[inline]
    pub(crate) fn set(&mut self, timer: Timer, at: Time) {
        self.0[timer as usize] = Some(at);
    }

    #[inline]
    pub(crate) fn stop(&mut self, timer: Timer) {
        self.0[timer as usize] = None;
    }

    /// Stops a timer whose time has passed.
    #[inline]
    pub(crate) fn expire(&mut self, timer: Timer, now: Time) {
        if self.has_passed(timer, now) {
            self.stop(timer);
        }
    }

    #[inline]
    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.get(timer).is_some()
    }

    /// Whether a timer is set whose time has come.
    #[inline]
    pub(crate) fn has_passed(&self, timer: Timer, now: Time) -> bool {
        self.get(timer).is_some_and(|at| at <= now)
    }

    /// Whether a timer is set whose time has not come.
    #[inline]
    pub(crate) fn is_ahead(&self, timer: Timer, now: Time) -> bool {
        self.get(timer).is_some_and(|at| at > now)
    }

    /// Expiry of the first of some timers that are set.
    #[inline]
    pub(crate) fn first<const N: usize>(&self, timers: [Timer; N]) -> Option<Time> {
        timers.into_iter().filter_map(|timer| self.get(timer)).min()
    }

    /// Expiry of the last of two timers that are set.
    #[inline]
    pub(crate) fn last(&self, timers: [Timer; 2]) -> Option<Time> {
        timers.into_iter().filter_map(|timer| self.get(timer)).max()
    }

    #[inline]
    fn get(&self, timer: Timer) -> Option<Time> {
        self.0[timer as usize]
    }
}
