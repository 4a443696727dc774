//! Coming back to rings: a stream whose relay has ended, or has lost the way, goes on over TCP, and gets rings again when there is a
//! relay. It is as one that has just begun then: the end that has connected offers rings, and the other one makes itself known.

use super::Stream;
use crate::spin::now;
use rdmesh_preload::gate;
use rdmesh_streams::report::Reason;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Whether, how often and when a stream may get rings again.
#[derive(Default)]
pub(super) struct Return {
    /// It is kept on TCP only until both directions have come back to it.
    is_allowed: AtomicBool,
    /// Times that it has come back: each keeps the memory of the rings before.
    times: AtomicU32,
    /// Time at which an accepted connection is to be made known again; 0 for never.
    publish_at: AtomicU64,
}

impl Return {
    /// It stays on TCP for good.
    pub(super) fn forbid(&self) {
        self.is_allowed.store(false, Ordering::Relaxed);
    }
}

impl Stream {
    /// Keeps it on TCP until both directions have come back to it.
    pub(super) fn pin_for_now(&self, why: Reason) {
        self.give_reason(why);
        let _held = self.phase.lock();
        if !self.is_pinned.swap(true, Ordering::AcqRel) {
            self.returning.is_allowed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether rings will be welcome later.
    pub(super) fn comes_back(&self) -> bool {
        self.returning.is_allowed.load(Ordering::Relaxed)
    }

    /// Both directions are on TCP again: it may have other rings, unless it has reason to stay there.
    pub(super) fn come_back(&self) {
        let _held = self.phase.lock();
        let is_allowed = self.returning.is_allowed.swap(false, Ordering::Relaxed);
        let is_shared = self.is_shared.load(Ordering::Acquire) || self.is_inherited();
        if !is_allowed || is_shared || self.returning.times.fetch_add(1, Ordering::Relaxed) >= MOST_RETURNS {
            return;
        }
        self.calls.store(0, Ordering::Relaxed);
        self.reason.store(Reason::None as u8, Ordering::Relaxed);
        if let Some(offers) = &self.offers {
            offers.begin_again();
        }
        if self.ends.is_some() {
            self.returning.publish_at.store(now(), Ordering::Relaxed);
        }
        self.is_pinned.store(false, Ordering::Release);
    }

    /// The relay that was told of an accepted connection has ended.
    pub(super) fn forget_published(&self) {
        if self.ends.is_some() && self.offers.is_some() && !self.is_pinned.load(Ordering::Acquire) {
            self.returning.publish_at.store(now(), Ordering::Relaxed);
        }
    }

    /// Makes an accepted connection known again, if it is time. Called without locks.
    pub(super) fn publish_again(&self, fd: c_int) {
        let at = self.returning.publish_at.load(Ordering::Relaxed);
        let is_due = at != 0 && at <= now();
        // Another thread may be faster.
        if !is_due || self.returning.publish_at.compare_exchange(at, 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let _gate = gate::enter();
        let (Some(ends), Some(object)) = (self.ends, self.kept_alive()) else { return };
        if !self.process.publish(ends, fd, &object) {
            // There is no relay yet.
            self.returning.publish_at.store(now() + PUBLISH_NS, Ordering::Relaxed);
        }
    }
}

/// A connection that loses its relay more often stays on TCP.
const MOST_RETURNS: u32 = 8;
/// Time between two tries.
const PUBLISH_NS: u64 = 100_000_000;
